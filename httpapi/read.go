package httpapi

import (
	"net/http"
	"net/url"

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
	key, err := x.echoKey([]string{name})
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
