package httpapi

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/idemd/idemd/idem"
)

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

// ready answers GET /readyz. Calls that are held wait for somebody, and keep
// nobody else from being served: they are counted there, and change nothing.
func (s *Server) ready(x *exchange) (answer, error) {
	if why := s.svc.Ready(); why != nil {
		return answer{}, idem.Errorf(idem.CodeUnavailable, "%s", reason(why))
	}
	b := []byte(`{"status":"ready","held":`)
	if stats, err := s.svc.Stats(x.r.Context()); err == nil {
		b = appendInt(b, stats.Totals.Of(idem.StatusHeld))
	} else {
		b = append(b, "null"...) // not known, which says nothing about being ready
	}
	return answer{status: http.StatusOK, body: text(append(b, '}'))}, nil
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
