package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// effectIDMark is what stands for the effect id in what is configured.
const effectIDMark = "{effect_id}"

// httpTool asks for things over HTTP. One attempt is one request on the wire.
//
// Args are the body, byte for byte. With GET and HEAD they are the query, after
// what the URL has of its own: the members of args that are texts, numbers (as
// they are written), true or false.
type httpTool struct {
	spec   *HTTP
	url    *url.URL
	header http.Header // of every request; not to be changed
	host   string      // where it is not the URL's
	member member      // where the effect id goes in the body; nil where it does not
	hidden *strings.Replacer
	wire   *wire
}

// newHTTP makes a tool of what was declared, which must be valid: it panics if the
// URL cannot be read. Close gives its connections back.
func newHTTP(h *HTTP) *httpTool {
	t := &httpTool{spec: h, url: mustURL(h.URL), hidden: hideSecrets(h.URL, h.Headers)}
	t.header, t.host = requestHeader(h.Headers)
	if t.hasBody() && t.header.Get("Content-Type") == "" {
		t.header.Set("Content-Type", "application/json")
	}
	if p := h.EffectKey.Pointer; p != "" {
		t.member = parseMember(p)
	}
	t.wire = newWire(t.hasBody())
	return t
}

// Close closes the connections that are not in use.
func (t *httpTool) Close() { t.wire.close() }

func (t *httpTool) hasBody() bool {
	return t.spec.Method != http.MethodGet && t.spec.Method != http.MethodHead
}

// CheckArgs reports args that no request can be made of: an *idem.Error with
// CodeInvalidArguments. It shows nothing of them.
func (t *httpTool) CheckArgs(args []byte) error {
	if _, err := t.payload(args, ""); err != nil {
		return idem.Errorf(idem.CodeInvalidArguments, "%v", err)
	}
	return nil
}

// payload is the query or the body of a request.
func (t *httpTool) payload(args []byte, effectID string) ([]byte, error) {
	if !t.hasBody() {
		q, err := query(args)
		if err != nil {
			return nil, fmt.Errorf("args: %w", err)
		}
		return q, nil
	}
	switch {
	case len(args) == 0: // a request without a body could be sent twice, see wire
		return nil, fmt.Errorf("args: %w", errNotJSON)
	case t.member == nil:
		// The transport may read it after the answer is there, when args are not ours
		// any more.
		return bytes.Clone(args), nil
	}
	body, err := t.member.insert(args, effectID)
	if err != nil {
		return nil, fmt.Errorf("args%s: %w", t.spec.EffectKey.Pointer, err)
	}
	return body, nil
}

// Invoke runs one attempt. The error is an *idem.Failure where downstream said that
// nothing was done, or was not asked. After any other error nobody knows, which
// holds for a status that is in no list as well.
func (t *httpTool) Invoke(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
	payload, err := t.payload(inv.Args, inv.EffectID)
	if err != nil { // accepted under an older configuration
		return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: err.Error()}
	}
	a, err := t.wire.send(ctx, t.request(inv, payload))
	if err != nil {
		return idem.Result{}, err
	}
	switch {
	case slices.Contains(t.spec.Success, a.status):
		return a.result(), nil
	case slices.Contains(t.spec.Final, a.status):
		return idem.Result{}, &idem.Failure{Code: idem.FailureTool, Message: t.message(a)}
	case slices.Contains(t.spec.Retryable, a.status):
		return idem.Result{}, &idem.Failure{
			Code: idem.FailureTool, Message: t.message(a), Retryable: true, Unsure: doubtful(a.status),
			RetryAfter: retryAfter(a.header, time.Now()),
		}
	}
	return idem.Result{}, fmt.Errorf("tool: downstream answered %d, which does not say what was done", a.status)
}

// request makes the one request of an attempt. It is never one that
// [http.NewRequest] made, which would set GetBody, see wire.
func (t *httpTool) request(inv idem.Invocation, payload []byte) *http.Request {
	req := newRequest(t.spec.Method, t.url, t.host, t.header, inv)
	if name := t.spec.EffectKey.Header; name != "" {
		req.Header.Set(name, inv.EffectID)
	}
	switch {
	case t.hasBody():
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(payload)), int64(len(payload))
	case len(payload) > 0 && req.URL.RawQuery != "":
		req.URL.RawQuery += "&" + string(payload)
	case len(payload) > 0:
		req.URL.RawQuery = string(payload)
	}
	return req
}

// message says what downstream answered. A short text of its own goes along, since
// the caller may know what to make of it.
func (t *httpTool) message(a answer) string {
	const short, shown = 1 << 10, 512
	msg := "downstream answered " + strconv.Itoa(a.status)
	if len(a.body) > short || !utf8.Valid(a.body) {
		return msg
	}
	if text := strings.TrimSpace(string(a.body)); text != "" {
		msg += ": " + clip(t.hidden.Replace(text), shown)
	}
	return msg
}

// newRequest makes a request without a body.
func newRequest(method string, u *url.URL, host string, header http.Header, inv idem.Invocation) *http.Request {
	h := maps.Clone(header)
	if idem.ValidTraceparent(inv.Trace) {
		h.Set("Traceparent", inv.Trace)
	}
	return &http.Request{
		Method: method, URL: withEffectID(u, inv.EffectID), Host: host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// requestHeader is what every request has, and the host's name where the one that
// is asked for is not that of the URL.
func requestHeader(configured http.Header) (http.Header, string) {
	h := make(http.Header, len(configured)+4)
	for name, values := range configured {
		for _, v := range values {
			h.Add(name, v)
		}
	}
	host := h.Get("Host")
	h.Del("Host") // the transport takes it from elsewhere
	for name, value := range map[string]string{"User-Agent": "idemd", "Accept-Encoding": "identity"} {
		if h.Get(name) == "" {
			h.Set(name, value)
		}
	}
	return h, host
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic("tool: a URL that was not checked") // and without it: it may hold a secret
	}
	return u
}

// withEffectID returns a copy of u with the effect id in its path and query. It is
// of characters that are never escaped there.
func withEffectID(u *url.URL, effectID string) *url.URL {
	c := *u
	for _, part := range []*string{&c.Path, &c.RawPath, &c.RawQuery} {
		*part = strings.ReplaceAll(*part, effectIDMark, effectID)
	}
	return &c
}

// query makes a query of args.
func query(args []byte) ([]byte, error) {
	r := newReader(args)
	defer r.release()
	if tok, err := r.dec.ReadToken(); err != nil || tok.Kind() != jsontext.KindBeginObject {
		return nil, errors.New("must be an object")
	}
	var out []byte
	for r.dec.PeekKind() == jsontext.KindString {
		raw, err := r.dec.ReadValue()
		if err != nil {
			return nil, errNotJSON
		}
		name, err := unquote(raw)
		if err != nil {
			return nil, errNotJSON
		}
		v, err := r.dec.ReadValue()
		if err != nil {
			return nil, errNotJSON
		}
		text := string(v)
		switch v.Kind() {
		case jsontext.KindString:
			if text, err = unquote(v); err != nil {
				return nil, errNotJSON
			}
		case jsontext.KindNumber, jsontext.KindTrue, jsontext.KindFalse:
		default:
			return nil, errors.New("a query can have texts, numbers, true and false, and nothing else")
		}
		if len(out) > 0 {
			out = append(out, '&')
		}
		out = append(out, url.QueryEscape(name)...)
		out = append(out, '=')
		out = append(out, url.QueryEscape(text)...)
	}
	if tok, err := r.dec.ReadToken(); err != nil || tok.Kind() != jsontext.KindEndObject {
		return nil, errNotJSON
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errNotJSON
	}
	return out, nil
}
