package httpapi

import (
	"encoding/binary"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/idemd/idemd/idem"
)

// call answers GET /v1/tool-calls/{call_id}.
func (s *Server) call(x *exchange) (answer, error) {
	id, err := x.callIDFromPath()
	if err != nil {
		return answer{}, err
	}
	if err := x.noQuery(); err != nil {
		return answer{}, err
	}
	c, err := s.svc.Call(x.r.Context(), x.namespace(), id, x.wait())
	return x.found(c, err)
}

// callByPath answers GET /v1/tool-calls/by-key/{key}.
func (s *Server) callByPath(x *exchange) (answer, error) {
	name, err := x.pathParam("*")
	if err != nil {
		return answer{}, err
	}
	// Before the key is looked at: of a key with a question mark that nobody
	// encoded, the path holds the first part only, even where nothing follows.
	if x.r.URL.RawQuery != "" || x.r.URL.ForceQuery {
		return x.byKey(idem.Key{}, errQuery)
	}
	key, err := x.echoKey(name)
	return x.byKey(key, err)
}

// callByHeader answers GET /v1/tool-calls/by-key with an Idempotency-Key header.
func (s *Server) callByHeader(x *exchange) (answer, error) {
	key, err := x.keyFromHeader()
	if err == nil {
		err = x.noQuery()
	}
	return x.byKey(key, err)
}

func (x *exchange) byKey(key idem.Key, err error) (answer, error) {
	h := x.w.Header()
	h["Idempotent-Replayed"] = headerFalse
	if err != nil {
		return answer{}, err
	}
	c, err := x.s.svc.CallByKey(x.r.Context(), key, x.wait())
	a, err := x.found(c, err)
	if err == nil {
		h["Idempotent-Replayed"] = headerTrue // it neither created nor requeued the call
	}
	return a, err
}

// found answers a look-up. A call past its window is shown until it is swept:
// people look at calls for longer than clients repeat them. What is left of it
// then cannot be shown as a call any more.
func (x *exchange) found(c idem.Call, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	if c.Tombstone {
		gone := *idem.ErrKeyExpired
		gone.CallID = c.ID
		return answer{}, &gone
	}
	return x.callAnswer(http.StatusOK, &c), nil
}

// pathParam returns a parameter of the path, decoded once. The router matches
// the raw path where there is one, and the decoded path otherwise; decoding
// the latter again would make a/b of the key a%2Fb.
func (x *exchange) pathParam(name string) (string, error) {
	v := chi.URLParam(x.r, name)
	if x.r.URL.RawPath == "" {
		return v, nil
	}
	v, err := url.PathUnescape(v)
	if err != nil {
		return "", badRequest("the path is not percent-encoded as it should be")
	}
	return v, nil
}

func (x *exchange) callIDFromPath() (idem.CallID, error) {
	v, err := x.pathParam("call_id")
	if err != nil {
		return idem.CallID{}, idem.ErrNotFound
	}
	id, err := idem.ParseCallID(v)
	if err == nil {
		x.callID = id
	}
	return id, err
}

const (
	defaultLimit = 100
	maxLimit     = 1000

	// maxPage ends a page of calls early, in bytes: results may be large.
	maxPage = 4 << 20
	// listStep is how many calls are asked for at once, for the same reason.
	listStep = 100
)

// params reads the query, in which every parameter is known and there is one of
// each. An empty one is as good as absent.
func (x *exchange) params(known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query cannot be read")
	}
	params := make(map[string]string, len(values))
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badRequest("unknown query parameter; known are %s", strings.Join(known, ", "))
		case len(v) > 1:
			return nil, badRequest("query parameter %s is there twice", name)
		}
		params[name] = v[0]
	}
	return params, nil
}

var errQuery = badRequest("there are no query parameters here")

// noQuery is params where none is known.
func (x *exchange) noQuery() error {
	if x.r.URL.RawQuery != "" {
		return errQuery
	}
	return nil
}

func limitOf(params map[string]string) (int, error) {
	v := params["limit"]
	if v == "" {
		return defaultLimit, nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n < 1 || n > maxLimit {
		return 0, badRequest("limit must be a number from 1 to %d", maxLimit)
	}
	return int(n), nil
}

// idFrom reads a cursor whose position is a call; none is the zero id.
func (c cursor) idFrom(params map[string]string) (id idem.CallID, err error) {
	if v := params["cursor"]; v != "" {
		var b []byte
		if b, err = c.decode(v, len(id)); err == nil {
			id = idem.CallID(b)
		}
	}
	return id, err
}

// list answers GET /v1/tool-calls.
func (s *Server) list(x *exchange) (answer, error) {
	params, err := x.params("status", "tool", "client_id", "limit", "cursor")
	if err != nil {
		return answer{}, err
	}
	limit, err := limitOf(params)
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
	for more := true; more && limit > 0 && len(p.items) < maxPage; {
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
	params, err := x.params("limit", "cursor")
	if err != nil {
		return answer{}, err
	}
	limit, err := limitOf(params)
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

const mediaStream = "application/x-ndjson"

// effects answers GET /v1/effects.
func (s *Server) effects(x *exchange) (answer, error) {
	x.w.Header()["Vary"] = []string{"Accept"}
	if accepts(x.r.Header, mediaStream) {
		return s.streamEffects(x)
	}
	params, err := x.params("limit", "cursor")
	if err != nil {
		return answer{}, err
	}
	limit, err := limitOf(params)
	if err != nil {
		return answer{}, err
	}
	cur := cursor{scope: []string{"effects", string(x.namespace())}}
	after, err := cur.idFrom(params)
	if err != nil {
		return answer{}, err
	}
	effects, err := s.svc.Effects(x.r.Context(), x.namespace(), after, limit+1)
	if err != nil {
		return answer{}, err
	}
	p := &page{name: "effects"}
	if len(effects) > limit {
		effects = effects[:limit]
		last := effects[limit-1].CallID
		p.next = cur.encode(last[:])
	}
	for i := range effects {
		p.items = appendEffect(comma(p.items), &effects[i])
	}
	return answer{status: http.StatusOK, body: p}, nil
}

const (
	// streamStep is how many rows of the ledger are in memory at once for a
	// stream, which is some 100 KiB.
	streamStep = 256
	// maxStreams is how many streams may go on at once: each is as long as the
	// ledger and its reader make it, and holds a place in flight all the while.
	maxStreams = 64
)

var errStreams = idem.Errorf(idem.CodeUnavailable, "too many streams of the ledger are going on")

// streamEffects gives the whole ledger, a row a line. It asks for step after
// step, so that nothing in the store is held while the reader is slow. A stream
// that cannot go on is broken off, never ended as if it were whole.
func (s *Server) streamEffects(x *exchange) (answer, error) {
	if x.r.URL.RawQuery != "" {
		return answer{}, badRequest("the stream is the whole ledger; it takes no query parameters")
	}
	x.streaming = true // finish counts it off again
	if s.streams.Add(1) > maxStreams {
		return answer{}, errStreams
	}
	next := func(after idem.CallID) ([]idem.Effect, error) {
		return s.svc.Effects(x.r.Context(), x.namespace(), after, streamStep)
	}
	rows, err := next(idem.CallID{}) // before anything is sent: what is wrong now can still be said
	if err != nil {
		return answer{}, err
	}
	stream := func(write func([]byte) error) error {
		var b []byte
		for len(rows) > 0 {
			b = b[:0]
			for i := range rows {
				b = append(appendEffect(b, &rows[i]), '\n')
			}
			if err := write(b); err != nil {
				return err
			}
			select {
			case <-s.stopping:
				return http.ErrServerClosed
			case <-x.r.Context().Done():
				return x.r.Context().Err()
			default:
			}
			if rows, err = next(rows[len(rows)-1].CallID); err != nil {
				if !x.gone(err) {
					s.log.Error("the ledger's stream broke off", "err", err)
				}
				return err
			}
		}
		return nil
	}
	return answer{status: http.StatusOK, media: mediaStream, stream: stream}, nil
}

// stats answers GET /stats.
func (s *Server) stats(x *exchange) (answer, error) {
	if err := x.noQuery(); err != nil {
		return answer{}, err
	}
	stats, err := s.svc.Stats(x.r.Context())
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: (*statsBody)(&stats)}, nil
}

func sortedNames(m map[string]idem.Counts) []string { return slices.Sorted(maps.Keys(m)) }

// tools answers GET /v1/tools.
func (s *Server) tools(x *exchange) (answer, error) {
	if err := x.noQuery(); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: &toolsBody{tools: s.svc.Tools(), window: s.svc.Window()}}, nil
}

// health answers GET /healthz: the process lives, whatever else is wrong.
func (s *Server) health(*exchange) (answer, error) {
	b := appendString([]byte(`{"status":"ok","version":`), s.o.Version)
	return answer{status: http.StatusOK, body: text(append(b, '}'))}, nil
}

// ready answers GET /readyz.
func (s *Server) ready(*exchange) (answer, error) {
	if why := s.svc.Ready(); why != nil {
		return answer{}, idem.Errorf(idem.CodeUnavailable, "%s", reason(why))
	}
	return answer{status: http.StatusOK, body: text(`{"status":"ready"}`)}, nil
}

func reason(err error) string {
	if e, ok := err.(*idem.Error); ok { //nolint:errorlint // only an error that is nothing else has its text in Message
		return e.Message
	}
	return err.Error()
}

// openAPI answers GET /openapi.yaml, which is the same for everybody until the
// next release.
func (s *Server) openAPI(x *exchange) (answer, error) {
	x.w.Header()["Cache-Control"] = []string{"max-age=" + strconv.Itoa(int(time.Hour/time.Second))}
	return answer{status: http.StatusOK, media: "application/yaml", body: text(openAPI)}, nil
}
