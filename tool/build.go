package tool

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/idemd/idemd/idem"
)

// Build makes tools of what was declared, and what closes the connections that
// they keep and ends the programs that still run: after the runner has stopped.
// An error is a declaration that is not valid, see [Spec.Validate]; what [Load]
// gives always is.
func Build(specs []*Spec, log *slog.Logger) ([]*idem.Tool, io.Closer, error) {
	var (
		tools  []*idem.Tool
		open   opened
		faults []error
	)
	for _, s := range specs {
		if err := s.Validate(); err != nil {
			faults = append(faults, err)
			continue
		}
		t, err := open.build(s, log)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		tools = append(tools, t)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	return tools, open, nil
}

// opened is what closes what tools have open.
type opened []func() error

// Close closes all of it.
func (o opened) Close() error {
	faults := make([]error, len(o))
	for i, c := range o {
		faults[i] = c()
	}
	return errors.Join(faults...)
}

// add takes what cannot fail.
func (o *opened) add(done func()) {
	*o = append(*o, func() error { done(); return nil })
}

// target is a digest of where a tool sends things, and of how the effect id is known
// there. Queries have no part in it: they may hold what changes. Nor has verify: a
// way to ask may be added for what was sent before.
func (s *Spec) target() uint64 {
	h := sha256.New()
	say := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	if t := s.HTTP; t != nil {
		u := mustURL(t.URL)
		say("http", t.Method, u.Scheme, u.Host, u.EscapedPath(), t.EffectKey.Header, t.EffectKey.Pointer)
	}
	if c := s.Command; c != nil {
		say("command")
		say(c.Argv...)
		for _, name := range slices.Sorted(maps.Keys(c.Env)) {
			if strings.Contains(c.Env[name], effectIDMark) {
				say(name, c.Env[name])
			}
		}
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// build makes one tool of what is valid.
func (o *opened) build(s *Spec, log *slog.Logger) (*idem.Tool, error) {
	t := &idem.Tool{
		Name:        s.Name,
		Description: s.Description,
		Effects:     s.Effects,
		Rerun:       s.Rerun,
		Schema:      s.Schema,
		Timeout:     s.Timeout,
		Concurrency: s.Concurrency,
		MaxAttempts: s.MaxAttempts,
		MaxCrashes:  s.MaxCrashes,
		Rules:       s.Rules,
		Intent:      s.Intent,
		Unrecorded:  s.Unrecorded,
		Target:      s.target(),
	}
	var checks []func(args []byte) error
	if len(s.Schema) > 0 {
		c, err := Check(s.Schema)
		if err != nil {
			return nil, err
		}
		checks = append(checks, c)
	}
	if s.HTTP != nil {
		h := newHTTP(s.HTTP)
		o.add(h.Close)
		t.Invoke = h.Invoke
		checks = append(checks, h.CheckArgs)
	} else {
		c := newCommand(s.Name, s.Command, log)
		*o = append(*o, c.Close)
		t.Invoke = c.Invoke
	}
	if s.Verify != nil {
		v := newVerify(s.Verify)
		o.add(v.Close)
		t.Verify, t.Settle = v.Verify, s.Verify.Settle
	}
	t.Check = func(args []byte) error {
		for _, check := range checks {
			if err := check(args); err != nil {
				return err
			}
		}
		return nil
	}
	return t, t.Validate()
}
