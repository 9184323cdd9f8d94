package tool

import (
	"errors"
	"fmt"
	"maps"
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
