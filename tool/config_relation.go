package tool

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/idemd/idemd/idem"
)

// relation is something that does not fit what else a tool says.
type relation struct {
	path string   // of the field that is to be changed
	what string   // what is wrong, and what would be right
	with []string // paths of the other fields that it is about
}

// usableAll reports whether a relation is about fields that could be read.
func (o *origin) usableAll(path string, with []string) bool {
	return o.usable(path) && !slices.ContainsFunc(with, func(p string) bool { return !o.usable(p) })
}

// Validate reports what is wrong with a tool that no file declared, all of it.
// What [Load] gives is valid.
func (s *Spec) Validate() error {
	var faults []error
	if len(s.Schema) > 0 {
		if _, err := Check(s.Schema); err != nil {
			faults = append(faults, fmt.Errorf("tool: %s: input_schema: %w", s.Name, err))
		}
	}
	for _, r := range s.relations() {
		faults = append(faults, fmt.Errorf("tool: %s: %s", field(s.Name, r.path), r.what))
	}
	return errors.Join(faults...)
}

// relations are all rules about what a tool says, in one place. A field that has
// a wrong value by itself is among them where only its value can tell.
func (s *Spec) relations() []relation {
	c := &claims{Spec: s}
	c.tool()
	c.args()
	switch {
	case s.HTTP == nil && s.Command == nil:
		c.wrong("", with("http", "command"), "nothing says how it is run; give it http or command")
	case s.HTTP != nil && s.Command != nil:
		c.wrong("command", with("http"), "a tool has http or command, not both")
	}
	if s.HTTP != nil {
		c.http(s.HTTP)
	}
	if s.Command != nil {
		c.command(s.Command)
	}
	c.rerun()
	if s.Verify != nil {
		c.verify(s.Verify)
	}
	return c.found
}

// claims are what a tool says, while it is checked.
type claims struct {
	*Spec
	found []relation
}

func with(paths ...string) []string { return paths }

func (c *claims) wrong(path string, with []string, format string, args ...any) {
	c.found = append(c.found, relation{path, fmt.Sprintf(format, args...), with})
}

func (c *claims) tool() {
	if !idem.ValidName(c.Name) {
		c.wrong("name", nil, "a name must match %s", idem.NamePattern)
	}
	switch c.Effects {
	case idem.EffectsNone, idem.EffectsExternal:
	case idem.EffectsLocal:
		c.wrong("effects", nil, "local is for tools that idemd brings along; say none or external")
	default:
		c.wrong("effects", nil, "must be none or external")
	}
	if c.Unrecorded && c.Effects != idem.EffectsNone {
		c.wrong("record", with("effects"), "record: false is for effects: none only; an effect without a record could not be kept from happening twice")
	}
	if c.Unrecorded && c.MaxAttempts != 0 {
		c.wrong("max_attempts", with("record"), "with record: false nobody counts attempts; leave it out")
	}
	if c.Unrecorded && c.MaxCrashes != 0 {
		c.wrong("max_crashes", with("record"), "with record: false nobody counts crashes; leave it out")
	}
}

func (c *claims) args() {
	seen := make(map[string]bool)
	for i, p := range c.Intent {
		at := item("intent", i)
		switch {
		case !validPointer(p):
			c.wrong(at, nil, "must be a JSON pointer to a member of args, for example /order_id")
		case seen[p]:
			c.wrong(at, nil, "the pointer is there already")
		}
		seen[p] = true
	}
	if c.Rules == nil {
		return
	}
	for i, p := range c.Intent {
		for _, ignored := range c.Rules.Ignore {
			if p == ignored || strings.HasPrefix(p, ignored+"/") {
				c.wrong(item("intent", i), with("fingerprint"), "%s is ignored by fingerprint.ignore, so that it can name no intent", p)
			}
		}
	}
	err := c.Rules.Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			what := strings.TrimPrefix(err.Error(), "idem: rules: ")
			at := "fingerprint"
			if list, rest, ok := strings.Cut(what, ": "); ok && slices.Contains([]string{"ignore", "trim", "nfc"}, list) {
				at, what = at+"."+list, rest
			}
			c.wrong(at, nil, "%s", what)
		}
	}
}

// rerun checks what may happen after a lost answer (R13).
func (c *claims) rerun() {
	switch {
	case c.Effects == idem.EffectsNone && c.Rerun != idem.RerunYes:
		c.wrong("rerun", with("effects"), "a tool with effects: none can always run again; say rerun, or leave it out")
		return
	case c.Effects != idem.EffectsExternal:
		if c.Verify != nil {
			c.wrong("verify", with("effects"), "a tool with effects: none has nothing to ask about; leave it out")
		}
		return
	}
	switch c.Rerun {
	case idem.RerunYes:
		if c.Verify != nil {
			c.wrong("verify", with("rerun"), "it is asked only with rerun: verify")
		}
		if c.honours() {
			break
		}
		if c.Command != nil {
			c.wrong("rerun", with("effects", "command"), "rerun would do it twice: say downstream: honours under command, if what the program asks does a thing once for each effect id, or say verify or hold")
		} else {
			c.wrong("rerun", with("effects", "http"), "rerun would do it twice: the downstream is declared to ignore the effect id; say verify or hold")
		}
	case idem.RerunVerify:
		if c.Verify == nil {
			c.wrong("rerun", with("effects", "verify"), "rerun: verify needs verify, which says how downstream is asked; else say hold")
		}
	case idem.RerunHold:
		if c.Verify != nil {
			c.wrong("verify", with("effects", "rerun"), "it is asked only with rerun: verify")
		}
	default:
		c.wrong("rerun", nil, "must be %s", oneOf(reruns))
	}
}

// honours reports whether doing it twice with one effect id does it once.
func (c *claims) honours() bool {
	return c.Effects == idem.EffectsNone ||
		c.HTTP != nil && c.HTTP.EffectKey.Honours || c.HTTP == nil && c.Command != nil && c.Command.Honours
}

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

// says reports whether a file has the field.
func (c *claims) says(path string) bool {
	if c.origin == nil {
		return false
	}
	_, ok := c.origin.fields[path]
	return ok
}

// validPointer reports whether s is a JSON pointer (RFC 6901) to a member.
func validPointer(s string) bool {
	if len(s) < 2 || len(s) > 1024 || s[0] != '/' {
		return false
	}
	for i := range len(s) {
		if s[i] == '~' && (i+1 == len(s) || s[i+1] != '0' && s[i+1] != '1') {
			return false
		}
	}
	return true
}

func item(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

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
			}
		}
	}
}

// turnedAway reports whether a status is about who asks, how or when, so that it
// cannot mean that what is asked for is there.
func turnedAway(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return true
	}
	return false
}

func redirected(code int) string {
	if code/100 == 3 {
		return "; redirects are not followed"
	}
	return ""
}

// doubtful reports whether a status leaves open whether anything was done.
func doubtful(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusConflict || code >= 500
}

// disjoint wants no code in both lists. It names the later one.
func (c *claims) disjoint(first string, a []int, second string, b []int, what string) {
	for i, code := range b {
		if slices.Contains(a, code) {
			c.wrong(item(second, i), with(first), "the %s %d is in %s as well; it can mean one thing only", what, code, path.Ext(first)[1:])
		}
	}
}

func (c *claims) command(p *Command) {
	const argv, env = "command.argv", "command.env"
	switch {
	case len(p.Argv) == 0:
		c.wrong("command", with(argv), "argv must name the program")
	case len(p.Argv) > maxArgv:
		c.wrong(argv, nil, "at most %d are allowed; there are %d", maxArgv, len(p.Argv))
	case !path.IsAbs(p.Argv[0]) || strings.Contains(p.Argv[0], effectIDMark):
		c.wrong(item(argv, 0), nil, "the program must be an absolute path, /usr/bin/prog: there is no shell and no PATH")
	}
	carries := false
	for i, a := range p.Argv {
		carries = carries || strings.Contains(a, effectIDMark)
		if strings.ContainsRune(a, 0) {
			c.wrong(item(argv, i), nil, "must not have a NUL")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		v, at := p.Env[name], env+"."+plainName(name)
		carries = carries || strings.Contains(v, effectIDMark)
		if !validVariable(name) {
			c.wrong(at, nil, "this cannot be the name of a variable: letters, digits and _, no digit first")
		}
		if strings.ContainsRune(v, 0) {
			c.wrong(at, nil, "the value must not have a NUL")
		}
	}
	switch {
	case c.Effects == idem.EffectsNone && (p.Honours || c.says("command.downstream")):
		c.wrong("command.downstream", with("effects"), "a tool with effects: none has no effect id; leave it out")
	case p.Honours && !carries:
		c.wrong("command.downstream", with(argv, env), "nothing can honour an effect id that it does not get; put {effect_id} into argv or env")
	case c.Verify != nil && !carries:
		c.wrong("command", with(argv, env, "verify"), "verify asks for the effect id, which the program does not get; put {effect_id} into argv or env")
	}
	for _, l := range []struct {
		at    string
		codes []int
	}{{"command.final_exit", p.FinalExit}, {"command.retryable_exit", p.RetryableExit}} {
		for i, code := range l.codes {
			if code < 1 || code > maxExit {
				c.wrong(item(l.at, i), nil, "an exit code in a list is from 1 to %d; 0 is success", maxExit)
			}
		}
	}
	c.disjoint("command.final_exit", p.FinalExit, "command.retryable_exit", p.RetryableExit, "exit code")
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
		if unsure(code) {
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

// unsure reports whether a status is about the question, the asker or the server
// and not about what was asked for.
func unsure(code int) bool {
	switch code {
	case http.StatusBadRequest, http.StatusPaymentRequired, http.StatusConflict, http.StatusLocked:
		return true
	}
	return turnedAway(code) || code < 200 || code/100 == 3 || code >= 500
}
