package tool

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/idemd/idemd/idem"
)

func (c *claims) http(h *HTTP) {
	c.method(h)
	inURL := c.url("http.url", h.URL)
	c.headers("http.headers", h.Headers)
	c.effectKey(h, inURL)
	c.statuses(h)
}

func (c *claims) method(h *HTTP) {
	switch h.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	case http.MethodGet, http.MethodHead:
		if c.Effects == idem.EffectsExternal {
			c.wrong("http.method", with("effects"), "%s must change nothing, and whoever is in between may repeat it; use POST, or say effects: none", h.Method)
		}
	default:
		c.wrong("http.method", nil, "must be POST, PUT, PATCH or DELETE, or GET or HEAD for a tool with effects: none, in upper case")
	}
}

// url checks a URL without showing it, and reports whether the effect id is in it.
func (c *claims) url(at, raw string) (hasEffectID bool) {
	bad := func(what string) bool {
		c.wrong(at, nil, "%s", what)
		return false
	}
	if len(raw) > maxSecret {
		return bad("it is over " + strconv.Itoa(maxSecret) + " bytes")
	}
	_, rest, _ := strings.Cut(raw, "://")
	host := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		host = rest[:i]
	}
	if strings.ContainsAny(host, "{}") {
		return bad("the host is fixed; {effect_id} can stand only in the path and in the query")
	}
	// By something, or what is before and after it could make a URL together that it
	// is none with an id in between.
	plain := strings.ReplaceAll(raw, effectIDMark, "0")
	if strings.ContainsAny(plain, "{}") {
		return bad("{effect_id} is all that can stand in braces; args go in the body, or in the query of a GET")
	}
	u, err := url.Parse(plain)
	switch {
	case err != nil:
		return bad("must be a URL, https://HOST/PATH")
	case u.Scheme != "http" && u.Scheme != "https", u.Opaque != "", u.Hostname() == "":
		return bad("must be a whole URL, https://HOST/PATH or http://HOST/PATH")
	case u.User != nil:
		return bad("must not hold a name and a password; put them into a header: Authorization: Basic ${CREDENTIALS}")
	case strings.Contains(raw, "#"):
		return bad("must not have a fragment (#), which is never sent")
	case u.Port() != "" && !validPort(u.Port()), strings.HasSuffix(u.Host, ":"):
		return bad("the port must be from 1 to 65535")
	case strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return bad("must not have blanks; write %20")
	case strings.Contains(u.Path, effectIDMark):
		return bad("{effect_id} must be written as it is, without %7B")
	}
	return strings.Contains(raw, effectIDMark)
}

func validPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && 1 <= n && n <= 65535
}

// ownHeaders are set by idemd, or by what sends its requests.
var ownHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Traceparent", "Tracestate", "Upgrade",
}

func (c *claims) headers(at string, h http.Header) {
	instead := "say effect_key: {header: NAME, ...} for it"
	if at == "verify.headers" {
		instead = "put it into verify.url"
	}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		values := h[name]
		at := at + "." + plainName(name)
		switch {
		case !validHeaderName(name):
			c.wrong(at, nil, "this cannot be the name of a header")
			continue
		case slices.Contains(ownHeaders, http.CanonicalHeaderKey(name)):
			c.wrong(at, nil, "this header is not for a file to set; leave it out")
			continue
		case http.CanonicalHeaderKey(name) == "Idempotency-Key":
			c.wrong(at, nil, "one value for all calls would make them one; say effect_key: {header: Idempotency-Key, ...}")
			continue
		}
		for _, v := range values {
			switch {
			case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
				c.wrong(at, nil, "the value of a header must not have line breaks or other control characters")
			case strings.Contains(v, effectIDMark):
				c.wrong(at, nil, "{effect_id} is not replaced in a header; %s", instead)
			case http.CanonicalHeaderKey(name) == "Host" && !validHost(v):
				c.wrong(at, nil, "must be HOST or HOST:PORT")
			}
		}
	}
}

// validHost reports whether a request can be sent with s as its Host.
func validHost(s string) bool {
	u, err := url.Parse("//" + s)
	return err == nil && u.Host == s && u.Hostname() != "" && !strings.HasSuffix(s, ":") && (u.Port() == "" || validPort(u.Port()))
}

func validHeaderName(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

func (c *claims) effectKey(h *HTTP, inURL bool) {
	const at = "http.effect_key"
	k := h.EffectKey
	if c.Effects == idem.EffectsNone {
		if k != (EffectKey{}) || c.says(at) {
			c.wrong(at, with("effects"), "a tool with effects: none has no effect id; leave it out")
		}
		if inURL {
			c.wrong("http.url", with("effects"), "a tool with effects: none has no effect id")
		}
		return
	}
	switch {
	case c.origin != nil && !c.says(at):
		c.wrong("http", with("effects", at), "effect_key is missing; say where the effect id goes, for example effect_key: {header: Idempotency-Key, downstream: ignores}")
	case k.Header == "" && k.Pointer == "" && !inURL:
		c.wrong(at, with("effects", "http.url"), "say where the effect id goes: header: NAME, or pointer: /MEMBER of the body, or {effect_id} in the URL")
	case k.Header != "" && k.Pointer != "":
		c.wrong(at, nil, "say header or pointer, not both")
	}
	if name := http.CanonicalHeaderKey(k.Header); k.Header != "" {
		switch {
		case !validHeaderName(k.Header):
			c.wrong(at+".header", nil, "this cannot be the name of a header")
		case slices.Contains(ownHeaders, name), name == "Host", name == "Content-Type", name == "Authorization":
			c.wrong(at+".header", nil, "%s means something else; name another header, for example Idempotency-Key", name)
		case len(h.Headers.Values(name)) > 0:
			c.wrong(at+".header", with("http.headers"), "headers sets %s as well; leave it out there", name)
		}
	}
	switch {
	case k.Pointer == "":
	case !validPointer(k.Pointer):
		c.wrong(at+".pointer", nil, "must be a JSON pointer to a member of the body, for example /idempotency_key")
	case hasProperty(c.Schema, parseMember(k.Pointer)):
		c.wrong(at+".pointer", with("input_schema"), "args have this member by input_schema, and a call that brings it along would be refused; name another, or leave it out there")
	}
}

// statuses checks what each status is said to mean.
func (c *claims) statuses(h *HTTP) {
	const success, final, retryable = "http.success", "http.final", "http.retryable"
	if len(h.Success) == 0 {
		at := success
		if !c.says(success) {
			at = "http"
		}
		c.wrong(at, with(success, "effects"), "success must name a status at least, for example success: [200, 201]")
	}
	c.disjoint(success, h.Success, final, h.Final, "status")
	c.disjoint(success, h.Success, retryable, h.Retryable, "status")
	c.disjoint(final, h.Final, retryable, h.Retryable, "status")
	for i, code := range h.Success {
		if code < 200 || code >= 300 && code < 400 || code >= 500 || turnedAway(code) {
			c.wrong(item(success, i), nil, "%d never says that it was done%s", code, redirected(code))
		}
	}
	for _, l := range []struct {
		at    string
		codes []int
	}{{final, h.Final}, {retryable, h.Retryable}} {
		for i, code := range l.codes {
			at := item(l.at, i)
			switch {
			case code < 200:
				c.wrong(at, nil, "%d is never the last answer to a request", code)
			case code < 300:
				c.wrong(at, nil, "%d says that it was done, or may have been; it can be in success only", code)
			case doubtful(code) && !c.honours():
				c.wrong(at, with("effects", "http.effect_key"), "%d does not say that nothing was done, and the downstream ignores the effect id; leave it out, so that the outcome counts as unknown", code)
			case doubtful(code) && l.at == final && c.Effects != idem.EffectsNone:
				c.wrong(at, with("effects"), "%d does not say that nothing was done, so that it cannot be for good; call it retryable, which goes out with the same effect id, or leave it out", code)
			}
		}
	}
}

func redirected(code int) string {
	if code/100 == 3 {
		return "; redirects are not followed"
	}
	return ""
}

func (c *claims) verify(v *Verify) {
	if v.Method != http.MethodGet && v.Method != http.MethodHead {
		c.wrong("verify.method", nil, "must be GET or HEAD: a question must change nothing")
	}
	before := len(c.found)
	if !c.url("verify.url", v.URL) && len(c.found) == before {
		c.wrong("verify.url", nil, "must have {effect_id} in its path or its query: it asks about one effect")
	}
	c.headers("verify.headers", v.Headers)
	const found, absent = "verify.found", "verify.absent"
	if len(v.Found) == 0 {
		c.wrong("verify", with(found), "found must name a status at least, for example found: [200]")
	}
	if len(v.Absent) == 0 {
		c.wrong("verify", with(absent), "absent must name a status at least, for example absent: [404]")
	}
	c.disjoint(found, v.Found, absent, v.Absent, "status")
	for i, code := range v.Found {
		if code/100 != 2 {
			c.wrong(item(found, i), nil, "%d does not say that it was found; found takes statuses from 200 to 299", code)
		}
	}
	for i, code := range v.Absent {
		if saysNothing(code) {
			c.wrong(item(absent, i), nil, "%d says nothing about the effect, and a wrong absent runs the tool twice; leave it out, so that the question is asked again", code)
		}
	}
	switch {
	case c.Timeout == 0 && v.Settle != 0:
		c.wrong("verify.settle", with("timeout"), "it must be at least timeout, so say that as well")
	case v.Settle < c.Timeout:
		c.wrong("verify.settle", with("timeout"), "it must be at least timeout (%v): until then downstream may still be at work", c.Timeout)
	}
}
