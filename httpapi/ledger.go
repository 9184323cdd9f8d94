package httpapi

import (
	"net/http"

	"github.com/idemd/idemd/idem"
)

const mediaStream = "application/x-ndjson"

// effects answers GET /v1/effects.
func (s *Server) effects(x *exchange) (answer, error) {
	x.w.Header()["Vary"] = []string{"Accept"}
	if accepts(x.r.Header, mediaStream) {
		return s.streamEffects(x)
	}
	params, limit, err := x.pageParams()
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
