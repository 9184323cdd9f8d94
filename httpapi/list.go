package httpapi

import (
	"encoding/binary"
	"net/http"

	"github.com/idemd/idemd/idem"
)

const (
	// maxPage ends a page of calls early, in bytes: results may be large.
	maxPage = 4 << 20
	// listStep is how many calls are asked for at once, for the same reason.
	listStep = 100
	// maxRows ends a page early where most of what the store gives cannot be
	// shown. It is above maxLimit, so that a few such rows cost no page its last
	// calls.
	maxRows = 2 * maxLimit
)

// list answers GET /v1/tool-calls.
func (s *Server) list(x *exchange) (answer, error) {
	params, limit, err := x.pageParams("status", "tool", "client_id")
	if err != nil {
		return answer{}, err
	}
	q := idem.Query{Status: idem.Status(params["status"]), Tool: params["tool"], ClientID: params["client_id"]}
	if q.Status != "" && !q.Status.Valid() {
		return answer{}, badRequest("unknown status; there are %v", idem.Statuses)
	}
	if err := checkClientID(q.ClientID); err != nil {
		return answer{}, err
	}
	cur := cursor{scope: []string{"calls", string(x.namespace()), string(q.Status), q.Tool, q.ClientID}}
	if q.Before, err = cur.idFrom(params); err != nil {
		return answer{}, err
	}

	p := &page{name: "calls"}
	for more, rows := true, 0; more && limit > 0 && len(p.items) < maxPage && rows < maxRows; {
		q.Limit = min(limit, listStep)
		calls, next, err := s.svc.List(x.r.Context(), x.namespace(), q)
		if err != nil {
			return answer{}, err
		}
		for i := range calls {
			if len(p.items) >= maxPage {
				next = calls[i-1].ID
				break
			}
			if !calls[i].Tombstone { // what is left of it cannot be shown as a call
				p.items = appendCall(comma(p.items), &calls[i])
				limit--
			}
		}
		// A store may give less than it was asked for and still have more. That
		// is its way of keeping a search short, so the page ends there too.
		more = !next.IsZero() && len(calls) == q.Limit
		rows += len(calls)
		q.Before = next
	}
	if !q.Before.IsZero() {
		p.next = cur.encode(q.Before[:])
	}
	return answer{status: http.StatusOK, body: p}, nil
}

func comma(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ',')
	}
	return b
}

// audit answers GET /v1/tool-calls/{call_id}/audit.
func (s *Server) audit(x *exchange) (answer, error) {
	id, err := x.callIDFromPath()
	if err != nil {
		return answer{}, err
	}
	params, limit, err := x.pageParams()
	if err != nil {
		return answer{}, err
	}
	cur := cursor{scope: []string{"audit", string(x.namespace()), string(id[:])}}
	from := 0
	if v := params["cursor"]; v != "" {
		b, err := cur.decode(v, 4)
		if err != nil {
			return answer{}, err
		}
		from = int(binary.BigEndian.Uint32(b))
	}
	events, err := s.svc.Events(x.r.Context(), x.namespace(), id, from, limit+1) // one more, to know whether there is one
	if err != nil {
		return answer{}, err
	}
	p := &page{name: "events"}
	if len(events) > limit {
		p.next = cur.encode(binary.BigEndian.AppendUint32(nil, uint32(events[limit].Seq)))
		events = events[:limit]
	}
	for i := range events {
		p.items = appendEvent(comma(p.items), &events[i])
	}
	return answer{status: http.StatusOK, body: p}, nil
}
