package httpapi

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/idemd/idemd/idem"
)

// submit answers POST /v1/tool-calls. The order of the checks is part of the
// contract: media type and size; a key that is none, envelope, no key, canonical
// form, chaos header, query; everything after that is the service's.
func (s *Server) submit(x *exchange, body []byte) (answer, error) {
	noKey := errors.Is(x.keyErr, idem.ErrMissingKey)
	if x.keyErr != nil && !noKey {
		return answer{}, x.keyErr
	}
	env, err := parseEnvelope(body)
	if err != nil {
		return answer{}, err
	}
	x.tool = env.tool
	if noKey && !s.unrecorded(env.tool) {
		return answer{}, x.keyErr
	}
	fingerprint, err := idem.FingerprintOf(env.tool, env.args)
	if err != nil {
		return answer{}, err
	}
	fault, err := x.fault()
	if err != nil {
		return answer{}, err
	}
	if err := x.noQuery(); err != nil {
		return answer{}, err
	}
	wait := x.wait()

	x.submitted = true
	got, err := s.svc.Submit(x.r.Context(), idem.Submission{
		Request: idem.Request{
			Key: x.key, Fingerprint: fingerprint,
			Tool:     env.tool,
			Args:     bytes.Clone(env.args), // it lies in pooled memory
			ClientID: env.clientID, Seq: env.seq,
		},
		Wait: wait, Crowded: x.crowded, Fault: fault, Trace: traceparent(x.r.Header),
	})
	if err == nil || answerable(err) {
		// Also before a refusal is sent, which is an answer like any other.
		if err := s.svc.Fire(fault, idem.PointBeforeReply); err != nil {
			return answer{}, about(err, got.Call.ID)
		}
	}
	if err != nil {
		return answer{}, err
	}

	h := x.w.Header()
	if got.Replayed() {
		h["Idempotent-Replayed"] = headerTrue
	}
	if got.Unrecorded {
		delete(h, "Preference-Applied") // it was not asked for how long
		x.retryAfter(&got.Call)
		return answer{status: http.StatusOK, body: (*unrecordedBody)(&got.Call)}, nil
	}
	status := http.StatusOK
	if !got.Call.Status.Ended() {
		status = http.StatusAccepted
		h["Location"] = []string{string(appendPath(make([]byte, 0, 64), got.Call.ID))}
	}
	return x.callAnswer(status, &got.Call), nil
}

// unrecorded reports whether a tool keeps no record, so that it needs no key. It
// is asked only where there is none.
func (s *Server) unrecorded(name string) bool {
	for _, t := range s.svc.Tools() {
		if t.Name == name {
			return t.Unrecorded
		}
	}
	return false
}

// about names the call in an error that does not know it.
func about(err error, id idem.CallID) error {
	var e *idem.Error
	if !errors.As(err, &e) || !e.CallID.IsZero() {
		return err
	}
	named := *e
	named.CallID = id
	return &named
}

func answerable(err error) bool {
	var e *idem.Error
	return errors.As(err, &e)
}

func (x *exchange) callAnswer(status int, c *idem.Call) answer {
	x.callID = c.ID
	x.w.Header()["Idemd-Call-Id"] = []string{string(appendID(make([]byte, 0, 64), c.ID))}
	x.retryAfter(c)
	return answer{status: status, body: (*callBody)(c)}
}

// retryAfter passes on how long downstream asked to be left alone, where the same
// key may ask again.
func (x *exchange) retryAfter(c *idem.Call) {
	if c.Retryable() && c.Failure.RetryAfter > 0 {
		x.w.Header()["Retry-After"] = []string{strconv.FormatInt(int64(c.Failure.RetryAfter/time.Second), 10)}
	}
}

// keyFromHeader parses the Idempotency-Key header and echoes it, as it was
// received, if it is valid.
func (x *exchange) keyFromHeader() (idem.Key, error) {
	lines := x.r.Header["Idempotency-Key"]
	switch len(lines) {
	case 0:
		return idem.Key{}, idem.ErrMissingKey
	case 1:
		return x.echoKey(lines)
	default:
		return idem.Key{}, badRequest("there must be one Idempotency-Key header, not %d", len(lines))
	}
}

// echoKey parses a key, in a slice of one, which the answer's header takes over.
func (x *exchange) echoKey(received []string) (idem.Key, error) {
	key, err := idem.ParseKey(x.namespace(), received[0])
	if err == nil {
		x.w.Header()["Idempotency-Key"] = received
	}
	return key, err
}

// namespace is what the caller may see. Without credentials there is one.
func (x *exchange) namespace() idem.Namespace { return idem.DefaultNamespace }

// fault reads the Idemd-Chaos header.
func (x *exchange) fault() (*idem.Fault, error) {
	lines := x.r.Header["Idemd-Chaos"]
	switch {
	case len(lines) == 0:
		return nil, nil
	case !x.s.o.Chaos:
		return nil, badRequest("faults on purpose are not allowed here")
	case len(lines) > 1:
		return nil, badRequest("there must be one Idemd-Chaos header, not %d", len(lines))
	}
	f, err := idem.ParseFault(lines[0])
	if err != nil {
		return nil, badRequest("Idemd-Chaos: %v", err)
	}
	return &f, nil
}
