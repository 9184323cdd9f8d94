package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// statuses maps every code to its status. Nothing else in this package knows
// the status of a refusal.
var statuses = map[idem.Code]int{
	idem.CodeMissingKey:           http.StatusBadRequest,
	idem.CodeBadRequest:           http.StatusBadRequest,
	idem.CodeConflict:             http.StatusConflict,
	idem.CodeOutcomeUnknown:       http.StatusConflict,
	idem.CodeKeyExpired:           http.StatusGone,
	idem.CodeInvalidArguments:     http.StatusUnprocessableEntity,
	idem.CodeUnauthorized:         http.StatusUnauthorized,
	idem.CodeForbidden:            http.StatusForbidden,
	idem.CodePayloadTooLarge:      http.StatusRequestEntityTooLarge,
	idem.CodeUnsupportedMediaType: http.StatusUnsupportedMediaType,
	idem.CodeMethodNotAllowed:     http.StatusMethodNotAllowed,
	idem.CodeHeadersTooLarge:      http.StatusRequestHeaderFieldsTooLarge,
	idem.CodeNotFound:             http.StatusNotFound,
	idem.CodeNotHeld:              http.StatusConflict,
	idem.CodeUnavailable:          http.StatusServiceUnavailable,
	idem.CodeInsufficientStorage:  http.StatusInsufficientStorage,
	idem.CodeInternal:             http.StatusInternalServerError,
}

// refusal is the answer that an error becomes. What is no *idem.Error is a bug:
// it is logged here, and its text never leaves the process.
func (x *exchange) refusal(err error) answer {
	var e *idem.Error
	if !errors.As(err, &e) {
		x.s.log.Error("unexpected error", "route", x.route, "err", err)
		e = idem.ErrInternal
	}
	status, known := statuses[e.Code]
	if !known {
		x.s.log.Error("error with an unknown code", "route", x.route, "code", string(e.Code))
		e, status = idem.ErrInternal, http.StatusInternalServerError
	}
	if !e.CallID.IsZero() {
		x.callID = e.CallID
		x.w.Header()["Idemd-Call-Id"] = []string{e.CallID.String()}
	}
	return answer{status: status, body: (*errorBody)(e)}
}

type errorBody idem.Error

func (e *errorBody) appendTo(b []byte) []byte {
	b = append(b, `{"error":{"code":`...)
	b = appendString(b, string(e.Code))
	b = append(b, `,"message":`...)
	b = appendString(b, e.Message)
	if !e.CallID.IsZero() {
		b = append(b, `,"call_id":`...)
		b = appendString(b, e.CallID.String())
	}
	if e.Code == idem.CodeNotHeld && e.Status != "" {
		b = append(b, `,"status":`...)
		b = appendString(b, string(e.Status))
	}
	b = append(b, `,"effect":`...)
	b = appendString(b, string(e.doubt()))
	return append(b, "}}"...)
}

// doubt fails closed: a bug may have struck after the effect.
func (e *errorBody) doubt() idem.Doubt {
	switch {
	case e.Effect != "":
		return e.Effect
	case e.Code == idem.CodeInternal:
		return idem.DoubtUnknown
	default:
		return idem.DoubtNone
	}
}

func badRequest(format string, args ...any) error {
	return idem.Errorf(idem.CodeBadRequest, format, args...)
}

// notJSON describes a syntax error by its place: the decoder's own words quote
// the body.
func notJSON(err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return badRequest("the body is not valid JSON at byte %d", syntax.ByteOffset)
	}
	return badRequest("the body is not valid JSON")
}

func (s *Server) notFound(*exchange) (answer, error) {
	return answer{}, idem.Errorf(idem.CodeNotFound, "no such route")
}

// methodNotAllowed also answers for methods that nobody has heard of, about
// which the router says nothing; only a route that exists has methods.
func (s *Server) methodNotAllowed(r *chi.Mux) handler {
	return func(x *exchange) (answer, error) {
		path := x.r.URL.RawPath
		if path == "" {
			path = x.r.URL.Path
		}
		var allowed []string
		for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			if r.Match(chi.NewRouteContext(), m, path) {
				allowed = append(allowed, m)
			}
		}
		if allowed == nil {
			return s.notFound(x)
		}
		allow := strings.Join(allowed, ", ")
		x.w.Header().Set("Allow", allow)
		return answer{}, idem.Errorf(idem.CodeMethodNotAllowed, "this route takes %s", allow)
	}
}
