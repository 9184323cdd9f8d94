package tool

import (
	"fmt"
	"net/http"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/idem"
)

// Bounds of what a tool may declare.
const (
	minTimeout     = time.Millisecond
	maxTimeout     = 24 * time.Hour
	maxSettle      = 7 * 24 * time.Hour
	maxConcurrency = 10_000
	maxAttempts    = 1_000_000
	minCrashes     = 2 // at 1, every death would stop each call that ran beside the poison
	maxCrashes     = 100
	maxIntent      = 16
	maxPointers    = 64
	maxArgv        = 100
	minStatus      = 100
	maxStatus      = 599
	maxExit        = 255
)

var reruns = []string{string(idem.RerunYes), string(idem.RerunVerify), string(idem.RerunHold)}

const (
	honours = "honours"
	ignores = "ignores"
)

// readOnlySuccess is what success is for a tool without an effect that does not
// say it.
var readOnlySuccess = []int{http.StatusOK, http.StatusNoContent}

// tool reads a tool, and checks what it says as a whole. It is nil where nothing
// can be made of it.
func (d *decoder) tool(v value, number int) *Spec {
	v.path, v.label = "", fmt.Sprintf("tool number %d", number)
	v.origin = newOrigin(d.file, v.position())
	if v.node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(v.node.Content); i += 2 {
			if n := v.node.Content[i+1]; v.node.Content[i].Value == "name" && n.Kind == yaml.ScalarNode && idem.ValidName(n.Value) {
				v.label = "tool " + n.Value
			}
		}
	}
	m, ok := v.mapping("name", "description", "effects", "record", "rerun", "timeout", "concurrency", "max_attempts",
		"max_crashes", "input_schema", "intent", "fingerprint", "http", "command", "verify")
	if !ok {
		return nil
	}
	s := &Spec{Timeout: d.timeout, origin: v.origin}
	for _, name := range d.spoiled {
		if _, ok := m.get(name); !ok {
			v.origin.spoil(name)
		}
	}
	if f, ok := m.need("name", "each tool needs one, for example refund"); ok {
		s.Name, _ = f.text()
	}
	if f, ok := m.get("description"); ok {
		s.Description, _ = f.text()
	}
	if f, ok := m.need("effects", "say none (it only reads, or computes) or external (it changes something outside)"); ok {
		word, _ := f.word(string(idem.EffectsNone), string(idem.EffectsExternal))
		s.Effects = idem.Effects(word)
	}
	if f, ok := m.get("record"); ok {
		record, ok := f.flag()
		s.Unrecorded = ok && !record
	}
	s.Rerun = d.rerun
	if s.Effects == idem.EffectsNone {
		s.Rerun = idem.RerunYes
	}
	if f, ok := m.get("rerun"); ok {
		word, _ := f.word(reruns...)
		s.Rerun = idem.Rerun(word)
	}
	if f, ok := m.get("timeout"); ok {
		s.Timeout, _ = f.duration(minTimeout, maxTimeout)
	}
	if f, ok := m.get("concurrency"); ok {
		s.Concurrency, _ = f.number(1, maxConcurrency)
	}
	if f, ok := m.get("max_attempts"); ok {
		s.MaxAttempts, _ = f.number(1, maxAttempts)
	}
	if f, ok := m.get("max_crashes"); ok {
		s.MaxCrashes, _ = f.number(minCrashes, maxCrashes)
	}
	if f, ok := m.get("input_schema"); ok {
		s.Schema = f.schema()
	}
	if f, ok := m.get("intent"); ok {
		s.Intent = f.texts(maxIntent)
	}
	if f, ok := m.get("fingerprint"); ok {
		s.Rules = f.rules()
	}
	if f, ok := m.get("http"); ok {
		s.HTTP = f.http(s.Effects)
	}
	if f, ok := m.get("command"); ok {
		s.Command = f.command()
	}
	if f, ok := m.get("verify"); ok {
		s.Verify = f.verify(s.Timeout)
	}
	for _, r := range s.relations() {
		if at := s.origin.at(r.path); s.origin.usableAll(r.path, r.with) {
			d.add(at.line, at.column, field(v.label, r.path), "%s", r.what)
		}
	}
	return s
}

func (v value) rules() *idem.Rules {
	m, ok := v.mapping("ignore", "trim", "nfc")
	if !ok {
		return nil
	}
	r := new(idem.Rules)
	for _, f := range m.all {
		list := f.texts(maxPointers)
		switch f.name {
		case "ignore":
			r.Ignore = list
		case "trim":
			r.Trim = list
		case "nfc":
			r.NFC = list
		}
	}
	return r
}

func (v value) http(effects idem.Effects) *HTTP {
	m, ok := v.mapping("method", "url", "headers", "effect_key", "success", "final", "retryable")
	if !ok {
		return nil
	}
	h := new(HTTP)
	if f, ok := m.need("method", "say POST, PUT, PATCH or DELETE, or GET or HEAD for a tool with effects: none"); ok {
		h.Method, _ = f.text()
	}
	if f, ok := m.need("url", "say where the request goes"); ok {
		h.URL, _ = f.url()
	}
	if f, ok := m.get("headers"); ok {
		h.Headers = f.headers()
	}
	if f, ok := m.get("effect_key"); ok {
		h.EffectKey = f.effectKey()
	}
	switch f, ok := m.get("success"); {
	case ok:
		h.Success = f.numbers(minStatus, maxStatus, "status")
	case effects == idem.EffectsNone:
		h.Success = readOnlySuccess
	}
	if f, ok := m.get("final"); ok {
		h.Final = f.numbers(minStatus, maxStatus, "status")
	}
	if f, ok := m.get("retryable"); ok {
		h.Retryable = f.numbers(minStatus, maxStatus, "status")
	}
	return h
}

// headers reads header values, which nothing repeats.
func (v value) headers() http.Header {
	m, ok := v.mapping()
	if !ok {
		return nil
	}
	h := make(http.Header, len(m.all))
	for _, f := range m.all {
		name := http.CanonicalHeaderKey(f.name)
		if _, twice := h[name]; twice {
			f.fault("the header is there already, in another spelling")
			continue
		}
		if s, ok := f.secret(); ok {
			h[name] = []string{s}
			if name != f.name {
				v.origin.fields[v.path+"."+plainName(name)] = f.position()
			}
		}
	}
	return h
}

func (v value) effectKey() EffectKey {
	var k EffectKey
	m, ok := v.mapping("header", "pointer", "downstream")
	if !ok {
		return k
	}
	if f, ok := m.get("header"); ok {
		k.Header, _ = f.text()
	}
	if f, ok := m.get("pointer"); ok {
		k.Pointer, _ = f.text()
	}
	if f, ok := m.need("downstream", "say whether the other side does a thing once for each effect id, however often it is asked: honours or ignores"); ok {
		word, _ := f.word(honours, ignores)
		k.Honours = word == honours
	}
	return k
}

func (v value) command() *Command {
	m, ok := v.mapping("argv", "env", "final_exit", "retryable_exit", "downstream")
	if !ok {
		return nil
	}
	c := new(Command)
	if f, ok := m.need("argv", "say the program and its arguments, [/usr/bin/prog, arg]"); ok {
		c.Argv = f.texts(maxArgv)
	}
	if f, ok := m.get("env"); ok {
		if env, ok := f.mapping(); ok {
			c.Env = make(map[string]string, len(env.all))
			for _, e := range env.all {
				if s, ok := e.secret(); ok {
					c.Env[e.name] = s
				}
			}
		}
	}
	if f, ok := m.get("final_exit"); ok {
		c.FinalExit = f.numbers(1, maxExit, "exit code")
	}
	if f, ok := m.get("retryable_exit"); ok {
		c.RetryableExit = f.numbers(1, maxExit, "exit code")
	}
	if f, ok := m.get("downstream"); ok {
		word, _ := f.word(honours, ignores)
		c.Honours = word == honours
	}
	return c
}

func (v value) verify(timeout time.Duration) *Verify {
	m, ok := v.mapping("method", "url", "headers", "found", "absent", "settle")
	if !ok {
		return nil
	}
	q := &Verify{Settle: 2 * timeout}
	if f, ok := m.need("method", "say GET or HEAD"); ok {
		q.Method, _ = f.text()
	}
	if f, ok := m.need("url", "say where the question goes, with {effect_id} in it"); ok {
		q.URL, _ = f.url()
	}
	if f, ok := m.get("headers"); ok {
		q.Headers = f.headers()
	}
	if f, ok := m.need("found", "say which statuses mean that it was done, for example [200]"); ok {
		q.Found = f.numbers(minStatus, maxStatus, "status")
	}
	if f, ok := m.need("absent", "say which statuses mean that it was not done, for example [404]"); ok {
		q.Absent = f.numbers(minStatus, maxStatus, "status")
	}
	if f, ok := m.get("settle"); ok {
		q.Settle, _ = f.duration(minTimeout, maxSettle)
	}
	return q
}
