package tool

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/idem"
)

// Moment is a point at which something can go wrong, and what happens then.
type Moment struct {
	When string // a few words, for the margin
	What string // a sentence or two
}

// Explain says in plain words what becomes of a call of the tool at each point
// where a crash or a lost answer can come. It follows from what is declared, and
// shows nothing of headers, variables, or of a URL beyond its host.
func (s *Spec) Explain() []Moment {
	e := &explanation{Spec: s}
	e.effect()
	e.restart()
	e.lost()
	if s.HTTP != nil {
		e.statuses()
	} else {
		e.exits()
	}
	e.bounds()
	e.share()
	e.held()
	return e.moments
}

type explanation struct {
	*Spec
	moments []Moment
}

func (e *explanation) say(when, format string, args ...any) {
	e.moments = append(e.moments, Moment{when, fmt.Sprintf(format, args...)})
}

func (e *explanation) external() bool { return e.Effects == idem.EffectsExternal }

// other is what is asked.
func (e *explanation) other() string {
	if e.HTTP != nil {
		return "downstream"
	}
	return "the program"
}

// effect says where the effect is, and what tells two dispatches of a call from
// two calls.
func (e *explanation) effect() {
	where := "a program of this machine, without a shell: "
	if e.Command != nil {
		where += e.Command.Argv[0]
	} else {
		where = e.HTTP.Method + " to " + hostOf(e.HTTP.URL)
	}
	if !e.external() {
		e.say("effect", "None is declared, so that asking again does no harm: %s.", where)
		if e.Unrecorded {
			e.say("record", "None: no call is stored, nothing is replayed. Equal requests with one key that come at the same time share one run.")
		}
		return
	}
	e.say("effect", "Outside, where only the other side knows whether it happened: %s.", where)
	carried := "The effect id, the same on every attempt, goes in " + e.carrier() + ". "
	if e.carrier() == "" {
		carried = "The program is not told the effect id. "
	}
	if e.honours() {
		e.say("sent twice", "%sIt is declared to be honoured: sent twice, the thing is done once.", carried)
	} else {
		e.say("sent twice", "%sIt is not declared to be honoured: sent twice, the thing may be done twice.", carried)
	}
}

func (e *explanation) honours() bool { return (&claims{Spec: e.Spec}).honours() }

// carrier is where the effect id goes.
func (e *explanation) carrier() string {
	if e.HTTP != nil {
		switch k := e.HTTP.EffectKey; {
		case k.Header != "":
			return "the header " + k.Header
		case k.Pointer != "":
			return "the body at " + k.Pointer
		}
		return "the URL"
	}
	for i, a := range e.Command.Argv {
		if strings.Contains(a, effectIDMark) {
			return "argument " + strconv.Itoa(i)
		}
	}
	names := []string{}
	for name, v := range e.Command.Env {
		if strings.Contains(v, effectIDMark) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "the variable " + slices.Min(names)
}

// restart says what the next start does with a call that a killed daemon left.
func (e *explanation) restart() {
	if e.Unrecorded {
		e.say("daemon killed", "The call is gone, and whoever asked gets no answer; asking again runs it.")
		e.say("clean stop", "A call that runs is waited for (--shutdown-timeout). What does not end in time is broken off: whoever asked gets 503, and may ask again.")
		return
	}
	e.say("killed before dispatch", "While the call waits in the queue nothing was sent: the next start runs it. Once a worker has it, the next start cannot tell whether it was sent, and does as under the next point.")
	var after string
	switch {
	case !e.external(), e.Rerun == idem.RerunYes:
		same, then := "", ""
		if e.external() {
			same, then = ", with the same effect id", ", and nobody knows whether it was done"
		}
		after = fmt.Sprintf("The next start runs it again at once%s; after %s that it was part of, it is failed for good (attempts_exhausted)%s.", same, e.crashes(), then)
	case e.Rerun == idem.RerunVerify:
		after = "The next start holds the call and asks: " + e.question()
	default:
		after = "The next start holds the call. Nothing is sent again until a person has decided."
	}
	e.say("killed after dispatch", "%s", after)
	commit := "The answer died with the daemon, so this is the same: "
	switch {
	case !e.external():
		commit += "it is run again."
	case e.Rerun == idem.RerunYes:
		commit += e.other() + " is asked again, and knows the effect id."
	case e.Rerun == idem.RerunVerify:
		commit += "it is held, and downstream is asked."
	default:
		commit += "it is held, although there was an answer."
	}
	e.say("killed after the answer", "%s Once its end is stored, a kill changes nothing.", commit)
	stop := "is broken off and held, as after a kill."
	if !e.external() || e.Rerun == idem.RerunYes {
		stop = "is broken off, and runs again at the next start."
	}
	e.say("clean stop", "A call that runs is waited for (--shutdown-timeout). What does not end in time %s", stop)
	if e.Command != nil {
		e.say("its processes", "On Linux a killed daemon takes the program along, elsewhere not. What the program itself had started is left, and may still be at work when the next start looks at the call.")
	}
}

func (e *explanation) crashes() string {
	if e.MaxCrashes == 0 {
		return "--max-crashes deaths of the daemon"
	}
	return fmt.Sprintf("%d deaths of the daemon", e.MaxCrashes)
}

// question says how a verification goes.
func (e *explanation) question() string {
	settle := "two times --tool-timeout"
	if e.Verify.Settle != 0 {
		settle = plainDuration(e.Verify.Settle)
	}
	return fmt.Sprintf("%s of %s by the effect id. %s: it succeeds with what was found, also where that is an empty list. %s: it runs again, but that is believed only when %s have passed since it was held, or since the last start: downstream must never be at work for longer. Any other answer, or none: it stays held and is asked again later.",
		e.Verify.Method, hostOf(e.Verify.URL), codes(e.Verify.Found), codes(e.Verify.Absent), settle)
}

// unknown is what follows where nobody knows what was done.
func (e *explanation) unknown() string {
	switch {
	case e.Unrecorded:
		return "whoever asked is told that it failed and may ask again; nothing is kept."
	case !e.external(), e.Rerun == idem.RerunYes:
		return "the call fails as retryable; it runs again when its client asks with the same key, and not before."
	case e.Rerun == idem.RerunVerify:
		return "the call is held and downstream is asked, as after a kill."
	default:
		return "the call is held. Nothing is sent again until a person has decided."
	}
}

// nobody begins what is said of an answer that does not tell what was done.
func (e *explanation) nobody() string {
	if !e.external() {
		return "that is no answer"
	}
	return "nobody knows what was done"
}

func (e *explanation) lost() {
	timeout := "--tool-timeout"
	if e.Timeout != 0 {
		timeout = plainDuration(e.Timeout)
	}
	if e.HTTP == nil {
		e.say("time-out", "After %s the program and all that it has started are killed, save what left its process group; %s", timeout, e.unknown())
		e.say("it cannot be started", "Nothing was done: %s", e.retryable())
		return
	}
	e.say("no connection", "Refused, no such host, TLS failed, none in time: nothing was sent. %s", capital(e.retryable()))
	e.say("time-out", "A connection, but no whole answer after %s: %s: %s", timeout, e.nobody(), e.unknown())
	e.say("answer lost", "A connection, then reset, closed, half an answer: %s: %s", e.nobody(), e.unknown())
}

func (e *explanation) retryable() string {
	if e.Unrecorded {
		return "whoever asked is told that it may be asked for again."
	}
	return "the call fails as retryable, and the same key may ask again."
}

func (e *explanation) statuses() {
	done := "done; the call succeeds, and the answer is its result."
	final := "not done; the call fails for good, and the same key gets the same answer."
	if e.Unrecorded {
		done, final = "done; the answer is the result.", "not done; whoever asked is told so."
	}
	h := e.HTTP
	e.say(codes(h.Success), "%s", capital(done))
	if len(h.Final) > 0 {
		e.say(codes(h.Final), "%s", capital(final))
	}
	if len(h.Retryable) > 0 {
		not := "Not done; "
		if e.external() && slices.ContainsFunc(h.Retryable, doubtful) {
			not = "Not done, or done once and not again by a second request; "
		}
		e.say(codes(h.Retryable), "%s%s", not, e.retryable())
	}
	e.say("any other status", "%s (redirects are not followed): %s", capital(e.nobody()), e.unknown())
}

func (e *explanation) exits() {
	c := e.Command
	e.say("exit 0", "Done; what it wrote to stdout is the result.")
	if len(c.FinalExit) > 0 {
		e.say("exit "+codes(c.FinalExit), "Not done, for good.")
	}
	if len(c.RetryableExit) > 0 {
		e.say("exit "+codes(c.RetryableExit), "Not done; %s", e.retryable())
	}
	e.say("any other end", "Another exit code or a signal: %s: %s", e.nobody(), e.unknown())
}

// bounds says how often it can be sent, and by whose will.
func (e *explanation) bounds() {
	attempts := "There is no bound (max_attempts)."
	switch {
	case e.MaxAttempts > 0:
		attempts = fmt.Sprintf("Attempt %d is the last, also after a kill: a failure that could be asked for again is for good then (attempts_exhausted)", e.MaxAttempts)
		if e.external() {
			attempts += ", or the call is held where nobody knows what was done"
		}
		if e.Rerun == idem.RerunVerify {
			attempts += "; what downstream does not know of then has failed for good"
		}
		attempts += "."
	case e.Rerun == idem.RerunVerify:
		attempts = fmt.Sprintf("There is no bound for clients (max_attempts); where answers are lost time after time, the daemon gives up by itself after %d attempts, and what downstream does not know of has failed for good (attempts_exhausted).", idem.DefaultMaxReruns)
	}
	switch {
	case e.Unrecorded:
		e.say("how often", "Once for each request. Only clients ask again.")
	case !e.external(), e.Rerun == idem.RerunYes:
		e.say("how often", "As often as its client asks again with the same key while it fails as retryable, and once for each start that finds it unfinished. The daemon never asks again by itself otherwise. %s", attempts)
	case e.Rerun == idem.RerunVerify:
		e.say("how often", "After a lost answer once more only when downstream has said that it was not done, or a person has. After an answer that nothing was done, when its client asks again with the same key. %s", attempts)
	default:
		e.say("how often", "At most once, unless the answer said that nothing was done and its client asks again with the same key, or a person decides so. %s", attempts)
	}
}

// share says how many run at a time.
func (e *explanation) share() {
	if e.Concurrency > 0 {
		e.say("at a time", "At most %d of its calls run; more wait.", e.Concurrency)
		return
	}
	e.say("at a time", "At most as many of its calls as half of --workers run; more wait, and those of other tools go on (concurrency).")
}

// held says what a held call means, and how it is decided.
func (e *explanation) held() {
	if !e.external() {
		e.say("held", "Never, but for calls that were begun when it was declared otherwise.")
		return
	}
	means := "It may have been done or not, and idemd sends nothing for the key any more"
	switch e.Rerun {
	case idem.RerunYes:
		means = "Rare: it ran out of attempts (max_attempts) while an answer was lost, or it was begun under stricter rules. It may have been done or not"
	case idem.RerunVerify:
		means += " unless downstream says that it was not done"
	}
	e.say("held", "%s. Clients get 409 outcome_unknown and stop. idemd list --status held finds it. Once the request can be at work there no more, look downstream for the effect id (idemd get ID shows it, and the attempt), then say what you found:\n"+
		"  idemd resolve ID --outcome succeeded --by NAME    it was done\n"+
		"  idemd resolve ID --outcome failed --by NAME       it was not done, and shall not be\n"+
		"  idemd resolve ID --outcome retry --attempt N --by NAME    attempt N was not done: run it again", means)
}

// Warnings says what is allowed and likely to be regretted. Workers is how many
// calls the daemon runs at once.
func (s *Spec) Warnings(workers int) []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	e := &explanation{Spec: s}
	switch {
	case e.external() && s.Rerun == idem.RerunHold && s.HTTP != nil && len(s.HTTP.Final) == 0 && len(s.HTTP.Retryable) == 0:
		warn("every answer but success leaves a call held: name the statuses that mean that nothing was done in final and retryable, or give it verify")
	case e.external() && s.Rerun == idem.RerunHold && s.Command != nil && len(s.Command.FinalExit) == 0 && len(s.Command.RetryableExit) == 0:
		warn("every end but exit 0 leaves a call held: name the exit codes that mean that nothing was done in final_exit and retryable_exit, or give it verify")
	}
	if e.external() && e.carrier() == "" {
		warn("the program is not told the effect id, so that nobody can look for it: put {effect_id} into argv or env")
	}
	if v := s.Verify; v != nil && !strings.Contains(mustURL(v.URL).Path, effectIDMark) {
		warn("verify.url searches for the effect id: a search that finds nothing must not answer with a status in found, or what was never done counts as done; put {effect_id} into the path if there is a place for it")
	}
	if s.Concurrency >= workers {
		warn("concurrency %d is not below the number of workers (%d unless --workers says otherwise): when it is slow, the calls of all other tools wait", s.Concurrency, workers)
	}
	if s.HTTP != nil && bareCredentials(s.HTTP.URL, s.HTTP.Headers) {
		warn("http.url is plain http to another machine and headers has an Authorization: anybody on the way can read it")
	}
	if s.Verify != nil && bareCredentials(s.Verify.URL, s.Verify.Headers) {
		warn("verify.url is plain http to another machine and headers has an Authorization: anybody on the way can read it")
	}
	if len(s.Schema) == 0 || anything(s.Schema) {
		warn("input_schema allows any object as args: a caller's typing error reaches %s", e.other())
	}
	if s.origin != nil {
		for _, path := range s.origin.dollars {
			warn("%s has a $ before a name, which is sent as it is: write ${NAME} for a variable", path)
		}
	}
	out = append(out, schemaDoubts(s.Schema)...)
	out = append(out, s.pointerDoubts()...)
	return out
}

func bareCredentials(rawURL string, headers map[string][]string) bool {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "http" || len(headers["Authorization"]) == 0 {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() != "localhost" && (err != nil || !a.IsLoopback())
}

// anything reports whether a schema says nothing of what args hold.
func anything(schema []byte) bool {
	var doc map[string]json.RawMessage
	if json.Unmarshal(schema, &doc) != nil {
		return false
	}
	for name, v := range doc {
		switch name {
		case "$schema", "$id", "$comment", "type", "title", "description", "examples", "default":
		case "properties", "required":
			if s := string(v); s != "{}" && s != "[]" {
				return false
			}
		case "additionalProperties":
			if string(v) != "true" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// hostOf is all of a URL that is shown: what follows may be a credential.
func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return hidden
	}
	return u.Scheme + "://" + u.Host
}

func codes(list []int) string {
	list = slices.Sorted(slices.Values(list))
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ", ")
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// plainDuration writes 1m30s, and 10m rather than 10m0s.
func plainDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
