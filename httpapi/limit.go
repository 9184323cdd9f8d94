package httpapi

import (
	"net/http"

	"github.com/idemd/idemd/idem"
)

// limited refuses what is too much.
func (s *Server) limited(h handler) handler {
	return func(x *exchange) (answer, error) {
		if err := x.enter(); err != nil {
			return answer{}, err
		}
		if err := x.checkHeaders(); err != nil {
			return answer{}, err
		}
		return h(x)
	}
}

// withBody is limited for requests with a body. They take their place only when
// the body is there: slow senders would keep everybody else out for as long as
// ReadTimeout lets them.
func (s *Server) withBody(h func(x *exchange, body []byte) (answer, error)) handler {
	return func(x *exchange) (answer, error) {
		if err := x.checkHeaders(); err != nil {
			return answer{}, err
		}
		body, err := x.readJSON()
		if err != nil {
			return answer{}, err
		}
		if err := x.enter(); err != nil {
			return answer{}, err
		}
		return h(x, body)
	}
}

// enter takes a place among the requests in flight, which finish gives back.
func (x *exchange) enter() error {
	n := x.s.inFlight.Add(1)
	x.entered = true
	if n > int64(x.s.o.MaxInFlight) {
		return errBusy
	}
	x.crowded = n > int64(x.s.o.MaxInFlight+1)/2
	return nil
}

func (x *exchange) checkHeaders() error {
	if tooManyHeaders(x.r, x.s.o.MaxHeaderBytes) {
		x.w.Header()["Connection"] = headerClose
		return errHeaders
	}
	return nil
}

var (
	errBusy    = idem.Errorf(idem.CodeUnavailable, "too many requests are being worked on")
	errHeaders = idem.Errorf(idem.CodeHeadersTooLarge, "the header section is too large")
)

// tooManyHeaders makes the limit exact. net/http reads 4 KiB more than it is
// told before it refuses, in plain text; what lies between is refused here, in
// the contract's own words.
func tooManyHeaders(r *http.Request, limit int) bool {
	n := len(r.Method) + len(r.RequestURI) + len(r.Proto) + len("  \r\n") + len("Host: \r\n") + len(r.Host) + len("\r\n")
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(": \r\n") + len(v)
		}
	}
	return n > limit
}
