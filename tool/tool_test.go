package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/idem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// named finds a tool that must be there.
func named(t testing.TB, tools []*idem.Tool, name string) *idem.Tool {
	t.Helper()
	for _, tool := range tools {
		if tool.Name == name {
			return tool
		}
	}
	t.Fatalf("no tool %s", name)
	return nil
}

func sample(t testing.TB, name string) *idem.Tool { t.Helper(); return named(t, Samples(), name) }

func invocation(attempt int, args string) idem.Invocation {
	id := idem.CallID{1, 2, 3}
	return idem.Invocation{CallID: id, EffectID: idem.EffectID(id), Attempt: attempt, Args: []byte(args)}
}

// wantInvalid checks a refusal, and that it repeats nothing of the payload.
func wantInvalid(t *testing.T, err error, secrets ...string) {
	t.Helper()
	var e *idem.Error
	if !errors.As(err, &e) || e.Code != idem.CodeInvalidArguments {
		t.Fatalf("got %v, want %s", err, idem.CodeInvalidArguments)
	}
	for _, s := range secrets {
		if strings.Contains(e.Message, s) {
			t.Errorf("message %q repeats %q", e.Message, s)
		}
	}
}

// wantFailure checks a definite failure and returns it.
func wantFailure(t *testing.T, err error) idem.Failure {
	t.Helper()
	var f *idem.Failure
	if !errors.As(err, &f) || f.Code != idem.FailureTool {
		t.Fatalf("got %v, want a failure %s", err, idem.FailureTool)
	}
	return *f
}

func TestDeclarations(t *testing.T) {
	chaos, file := Chaos("unused", func() {})
	t.Cleanup(func() { _ = file.Close() })
	for _, tool := range append(Samples(), chaos...) {
		t.Run(tool.Name, func(t *testing.T) {
			if err := tool.Validate(); err != nil {
				t.Error(err)
			}
			if !json.Valid(tool.Schema) || tool.Check == nil || tool.Description == "" {
				t.Error("wants a schema, a check and a description")
			}
			for _, notAnObject := range []string{`[]`, `null`, `1`, `"x"`, ``, `{`, `{} {}`} {
				wantInvalid(t, tool.Check([]byte(notAnObject)))
			}
		})
	}
}

// R10 and the promise of a local tool: the same invocation, the same bytes; the
// attempt and members that the tool does not know change nothing.
func TestLocalToolsArePure(t *testing.T) {
	for name, args := range map[string][]string{
		"charge":     {`{"amount":100}`, `{"amount":1e2,"currency":"EUR","note":{"a":[1]}}`},
		"send_email": {`{"to":"a","subject":"b","body":"c"}`, `{"x":1,"to":"a","subject":"b","body":"c"}`},
	} {
		t.Run(name, func(t *testing.T) {
			var first []byte
			for _, a := range args {
				for attempt := 1; attempt <= 3; attempt++ {
					tool := sample(t, name) // a new declaration each time, as after a restart
					if err := tool.Check([]byte(a)); err != nil {
						t.Fatal(err)
					}
					given := invocation(attempt, a)
					res, err := tool.Invoke(t.Context(), given)
					if err != nil {
						t.Fatal(err)
					}
					if string(given.Args) != a {
						t.Fatal("the args were modified")
					}
					if !json.Valid(res.Output) {
						t.Fatalf("output %q is not JSON", res.Output)
					}
					if first == nil {
						first = res.Output
					}
					if !bytes.Equal(res.Output, first) {
						t.Errorf("attempt %d of %s: got %s, before %s", attempt, a, res.Output, first)
					}
				}
			}
			other := invocation(1, args[0])
			other.EffectID = idem.EffectID(idem.CallID{9})
			res, err := sample(t, name).Invoke(t.Context(), other)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(res.Output, first) {
				t.Error("another effect id gives the same output")
			}
			if bytes.Contains(res.Output, []byte(other.EffectID)) {
				t.Error("the output shows the effect id")
			}
		})
	}
}

// Args that an older schema let through must not panic, and nothing was done.
func TestInvokeUnchecked(t *testing.T) {
	for name, bad := range map[string][]string{
		"charge": {``, `[]`, `{}`, `{"amount":null}`, `{"amount":"1"}`, `{"amount":0}`, `{"amount":-5}`, `{"amount":1.5}`, `{"amount":1e999}`, `{"amount":1`, `{"Amount":1}`},
		"sleep":  {``, `[]`, `{}`, `{"seconds":null}`, `{"seconds":-1}`, `{"seconds":11}`, `{"seconds":1e1000}`, `{"seconds":"1"}`},
		"fail":   {``, `[]`, `{"message":1}`, `{"retryable":1}`, `{"panic":"no"}`, `{"times":0.5}`, `{"times":null}`},
	} {
		for _, args := range bad {
			t.Run(name+"/"+args, func(t *testing.T) {
				_, err := sample(t, name).Invoke(context.Background(), invocation(1, args))
				if f := wantFailure(t, err); f.Retryable {
					t.Error("asking again cannot help")
				}
			})
		}
	}
}
