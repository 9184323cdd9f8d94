package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// problems maps every code to its status, and to the title that a problem
// document gives its type. Nothing else in this package knows the status of a
// refusal.
var problems = map[idem.Code]problem{
	idem.CodeMissingKey:           {http.StatusBadRequest, "The idempotency key is missing"},
	idem.CodeBadRequest:           {http.StatusBadRequest, "The request cannot be understood"},
	idem.CodeConflict:             {http.StatusConflict, "The key is taken by another request"},
	idem.CodeOutcomeUnknown:       {http.StatusConflict, "The outcome of the call is not known"},
	idem.CodeKeyExpired:           {http.StatusGone, "The key is past its window"},
	idem.CodeInvalidArguments:     {http.StatusUnprocessableEntity, "The arguments do not fit the tool"},
	idem.CodeUnauthorized:         {http.StatusUnauthorized, "There is no valid credential"},
	idem.CodeForbidden:            {http.StatusForbidden, "The credential does not allow this"},
	idem.CodePayloadTooLarge:      {http.StatusRequestEntityTooLarge, "The body is too large"},
	idem.CodeUnsupportedMediaType: {http.StatusUnsupportedMediaType, "The body has another media type"},
	idem.CodeMethodNotAllowed:     {http.StatusMethodNotAllowed, "The route does not take this method"},
	idem.CodeHeadersTooLarge:      {http.StatusRequestHeaderFieldsTooLarge, "The header section is too large"},
	idem.CodeNotFound:             {http.StatusNotFound, "There is no such call or route"},
	idem.CodeNotHeld:              {http.StatusConflict, "The call is not held"},
	idem.CodeUnavailable:          {http.StatusServiceUnavailable, "Not available now"},
	idem.CodeInsufficientStorage:  {http.StatusInsufficientStorage, "The disk's reserve is reached"},
	idem.CodeInternal:             {http.StatusInternalServerError, "Internal error"},
}

type problem struct {
	status int
	title  string // the same at every occurrence
}

// refusal is the answer that an error becomes. What is no *idem.Error is a bug:
// it is logged here, and its text never leaves the process.
func (x *exchange) refusal(err error) answer {
	var e *idem.Error
	if !errors.As(err, &e) {
		x.s.log.Error("unexpected error", "route", x.route, "err", err)
		e = idem.ErrInternal
	}
	p, known := problems[e.Code]
	if !known {
		x.s.log.Error("error with an unknown code", "route", x.route, "code", string(e.Code))
		e = idem.ErrInternal
		p = problems[e.Code]
	}
	if !e.CallID.IsZero() {
		x.callID = e.CallID
		x.w.Header()["Idemd-Call-Id"] = []string{e.CallID.String()}
	}
	if prefers(x.r.Header, mediaProblem) {
		return answer{status: p.status, media: mediaProblem, body: &problemBody{problem: p, err: e}}
	}
	return answer{status: p.status, body: (*errorBody)(e)}
}

const (
	mediaProblem = "application/problem+json"

	// problemType and a code make the type of a problem. It is a name, not a
	// place: there is nothing to fetch.
	problemType = "urn:idemd:error:"
)

// problemBody is an error as RFC 9457 wants it. What every other client reads is
// in it unchanged.
type problemBody struct {
	problem
	err *idem.Error
}

func (p *problemBody) appendTo(b []byte) []byte {
	b = append(b, `{"type":`...)
	b = appendString(b, problemType+string(p.err.Code))
	b = append(b, `,"title":`...)
	b = appendString(b, p.title)
	b = append(b, `,"status":`...)
	b = appendInt(b, int64(p.status))
	b = append(b, `,"detail":`...)
	b = appendString(b, p.err.Message)
	if !p.err.CallID.IsZero() {
		b = append(b, `,"instance":"`...)
		b = appendPath(b, p.err.CallID)
		b = append(b, '"')
	}
	b = append(b, ',')
	b = (*errorBody)(p.err).appendMember(b)
	return append(b, '}')
}

type errorBody idem.Error

func (e *errorBody) appendTo(b []byte) []byte {
	b = append(b, '{')
	b = e.appendMember(b)
	return append(b, '}')
}

func (e *errorBody) appendMember(b []byte) []byte {
	b = append(b, `"error":{"code":`...)
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
	return append(b, '}')
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
