package httpapi

import (
	"bytes"
	"math"
	"net/http"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// resolve answers POST /v1/tool-calls/{call_id}/resolve.
func (s *Server) resolve(x *exchange, body []byte) (answer, error) {
	r, err := parseResolution(body)
	if err != nil {
		return answer{}, err
	}
	if err := x.noQuery(); err != nil {
		return answer{}, err
	}
	id, err := x.callIDFromPath()
	if err != nil {
		return answer{}, err
	}
	c, err := s.svc.Resolve(x.r.Context(), x.namespace(), id, r)
	if err != nil {
		return answer{}, err
	}
	return x.callAnswer(http.StatusOK, &c), nil
}

const (
	maxBy   = 255
	maxNote = 4 << 10
)

var (
	resolutionMembers = []string{"outcome", "by", "note", "result", "error", "attempt"}
	failureMembers    = []string{"code", "message", "retryable"}
)

// parseResolution reads what somebody decided about a held call. What does not
// go with the outcome is refused: a result of something that failed is more
// likely a slip than a wish.
func parseResolution(body []byte) (idem.Resolution, error) {
	var r idem.Resolution
	const outcome, by, note, result, failure, attempt = 0, 1, 2, 3, 4, 5
	r.Failure = idem.Failure{Code: idem.FailureTool, Message: "decided to have failed"}
	seen, err := readMembers(body, resolutionMembers, func(i int, v jsontext.Value) (err error) {
		switch i {
		case outcome:
			var s string
			s, err = stringValue("outcome", v)
			r.Outcome = idem.Outcome(s)
		case by:
			if r.By, err = stringValue("by", v); err == nil {
				err = checkBy(r.By)
			}
		case note:
			if r.Note, err = stringValue("note", v); err == nil && len(r.Note) > maxNote {
				err = badRequest("note is over %d bytes", maxNote)
			}
		case result:
			r.Result.Output = bytes.Clone(v) // stored as it came
			err = r.Result.Validate()
		case failure:
			err = parseFailure(v, &r.Failure)
		case attempt:
			n, whole := idem.Integer(v)
			if r.Attempt = int(n); !whole || n < 1 || n > math.MaxInt32 {
				err = badRequest("attempt must be a whole number from 1")
			}
		}
		return err
	})
	has := func(i int) bool { return seen&(1<<i) != 0 }
	switch {
	case err != nil:
	case !has(outcome):
		err = badRequest("outcome is missing")
	case r.Outcome != idem.OutcomeSucceeded && r.Outcome != idem.OutcomeFailed && r.Outcome != idem.OutcomeRetry:
		err = badRequest("outcome must be succeeded, failed or retry")
	case !has(by):
		err = badRequest("by is missing: who decided this?")
	case !has(attempt) && (r.Outcome == idem.OutcomeRetry || r.Outcome == idem.OutcomeFailed && r.Failure.Retryable):
		// A decision that lets the tool run again, made of what somebody saw of an
		// earlier attempt, would be a second effect.
		err = badRequest("attempt is missing: which one did you look into? The call shows its last one, and it may have run since")
	case has(result) && r.Outcome != idem.OutcomeSucceeded:
		err = badRequest("result goes with the outcome succeeded only")
	case has(failure) && r.Outcome != idem.OutcomeFailed:
		err = badRequest("error goes with the outcome failed only")
	}
	if err != nil {
		return idem.Resolution{}, err
	}
	if r.Outcome != idem.OutcomeFailed {
		r.Failure = idem.Failure{}
	}
	return r, nil
}

// parseFailure reads the error of a failed call over the defaults.
func parseFailure(v jsontext.Value, f *idem.Failure) error {
	if v.Kind() != '{' {
		return badRequest("error must be an object")
	}
	_, err := readMembers(v, failureMembers, func(i int, v jsontext.Value) (err error) {
		switch i {
		case 0:
			f.Code, err = stringValue("error.code", v)
		case 1:
			f.Message, err = stringValue("error.message", v)
		default:
			f.Retryable = v.Kind() == 't'
			if !f.Retryable && v.Kind() != 'f' {
				err = badRequest("error.retryable must be true or false")
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return f.Validate()
}

// checkBy wants a name that somebody can read in the audit trail later.
func checkBy(s string) error {
	if s == "" || len(s) > maxBy || s[0] == ' ' || s[len(s)-1] == ' ' {
		return badRequest("by must have 1 to %d bytes and no blank at either end", maxBy)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return badRequest("by has a character that cannot be printed")
		}
	}
	return nil
}
