package tool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

type dispatch struct {
	EffectID string `json:"effect_id"`
	Attempt  int    `json:"attempt"`
}

func readOutside(t *testing.T, file string) []dispatch {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []dispatch
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var d dispatch
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		all = append(all, d)
	}
	return all
}

func TestChaosDoesAsItIsTold(t *testing.T) {
	for _, name := range []string{"ext_rerun", "ext_verify", "ext_hold"} {
		for _, tc := range []struct {
			args  string
			check func(t *testing.T, res idem.Result, err error)
		}{
			{`{}`, wantDispatched},
			{`{"do":"return","more":[1]}`, wantDispatched},
			{`{"do":"fail"}`, func(t *testing.T, _ idem.Result, err error) {
				if wantFailure(t, err).Retryable {
					t.Error("not asked to be retryable")
				}
			}},
			{`{"do":"fail","retryable":true}`, func(t *testing.T, _ idem.Result, err error) {
				if !wantFailure(t, err).Retryable {
					t.Error("asked to be retryable")
				}
			}},
			{`{"do":"panic"}`, func(t *testing.T, _ idem.Result, err error) { wantUnknown(t, err, errPanicked) }},
			{`{"do":"exit"}`, func(t *testing.T, _ idem.Result, err error) { wantUnknown(t, err, nil) }},
			{`{"do":"hang"}`, func(t *testing.T, _ idem.Result, err error) { wantUnknown(t, err, context.DeadlineExceeded) }},
			{`{"do":"deaf","seconds":7.5}`, wantDispatched},
		} {
			t.Run(name+"/"+tc.args, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "ext.ndjson")
				synctest.Test(t, func(t *testing.T) {
					exits := 0
					tools, out := Chaos(file, func() { exits++ })
					tool := named(t, tools, name)
					if err := tool.Check([]byte(tc.args)); err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), tool.Timeout)
					defer cancel()
					inv, began := invocation(3, tc.args), time.Now()
					res, err := invoke(ctx, tool, inv)
					tc.check(t, res, err)

					var want time.Duration
					switch tc.args {
					case `{"do":"hang"}`:
						want = tool.Timeout
					case `{"do":"deaf","seconds":7.5}`:
						want = 7500 * time.Millisecond
					}
					if d := time.Since(began); d != want {
						t.Errorf("took %v, want %v", d, want)
					}
					if want := map[bool]int{true: 1}[tc.args == `{"do":"exit"}`]; exits != want {
						t.Errorf("ended the process %d times, want %d", exits, want)
					}
					if err := out.Close(); err != nil {
						t.Error(err)
					}
					if all := readOutside(t, file); len(all) != 1 || all[0] != (dispatch{inv.EffectID, 3}) {
						t.Errorf("the file says %v", all)
					}
				})
			})
		}
	}
}

var errPanicked = errors.New("panicked")

// invoke runs a tool as the runner does, panics included.
func invoke(ctx context.Context, tool *idem.Tool, inv idem.Invocation) (res idem.Result, err error) {
	defer func() {
		if recover() != nil {
			err = errPanicked
		}
	}()
	return tool.Invoke(ctx, inv)
}

func wantDispatched(t *testing.T, res idem.Result, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var d dispatch
	if err := json.Unmarshal(res.Output, &d); err != nil || d != (dispatch{invocation(3, "").EffectID, 3}) {
		t.Errorf("got %s, %v", res.Output, err)
	}
}

// wantUnknown checks an error that says nothing about what was done.
func wantUnknown(t *testing.T, err, target error) {
	t.Helper()
	var f *idem.Failure
	if err == nil || errors.As(err, &f) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	if target != nil && !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
}

func TestChaosSchema(t *testing.T) {
	tools, out := Chaos(filepath.Join(t.TempDir(), "ext.ndjson"), func() {})
	defer out.Close()
	for _, bad := range []string{`{"do":"dance"}`, `{"do":1}`, `{"retryable":"yes"}`, `{"seconds":61}`, `{"seconds":-1}`, `{"found":"maybe"}`, `{"found":null}`} {
		for _, tool := range tools {
			wantInvalid(t, tool.Check([]byte(bad)))
		}
	}
	// Unchecked, it is refused before the line is written.
	for _, bad := range []string{`{"do":"dance"}`, `{"do":1}`, `{"retryable":"yes"}`, `{"seconds":61}`, `[]`, ``} {
		_, err := tools[0].Invoke(t.Context(), invocation(1, bad))
		wantFailure(t, err)
	}
	if _, err := os.Stat(out.(*outside).path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}

func TestChaosVerify(t *testing.T) {
	tools, out := Chaos(filepath.Join(t.TempDir(), "ext.ndjson"), func() {})
	defer out.Close()
	tool := named(t, tools, "ext_verify")
	for args, want := range map[string]string{
		`{"found":true}`: "found", `{"found":false}`: "absent",
		`{"found":"error"}`: "error", `{}`: "error", `{"found":null}`: "error", `[]`: "error",
	} {
		t.Run(args, func(t *testing.T) {
			inv := invocation(1, args)
			v, err := tool.Verify(t.Context(), inv)
			got := "absent"
			switch {
			case err != nil:
				got = "error"
			case v.Found:
				got = "found"
				if !bytes.Contains(v.Result.Output, []byte(inv.EffectID)) || !json.Valid(v.Result.Output) {
					t.Errorf("found %s", v.Result.Output)
				}
			}
			if got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	if tool.Settle < tool.Timeout {
		t.Error("not found would be believed while downstream may be at work")
	}
}

func TestChaosFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ext.ndjson")

	t.Run("many at once, whole lines", func(t *testing.T) {
		tools, out := Chaos(file, func() {})
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				if _, err := tools[i%3].Invoke(t.Context(), invocation(i+1, `{}`)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := out.Close(); err != nil {
			t.Error(err)
		}
		seen := map[int]bool{}
		for _, d := range readOutside(t, file) {
			seen[d.Attempt] = true
		}
		if len(seen) != 60 {
			t.Errorf("%d of 60 lines", len(seen))
		}
	})
	t.Run("goes on after a restart", func(t *testing.T) {
		tools, out := Chaos(file, func() {})
		if _, err := tools[0].Invoke(t.Context(), invocation(61, `{}`)); err != nil {
			t.Error(err)
		}
		if err := out.Close(); err != nil {
			t.Error(err)
		}
		if n := len(readOutside(t, file)); n != 61 {
			t.Errorf("%d lines, want 61", n)
		}
	})
	t.Run("closed", func(t *testing.T) {
		tools, out := Chaos(file, func() {})
		for range 2 {
			if err := out.Close(); err != nil {
				t.Error(err)
			}
		}
		_, err := tools[0].Invoke(t.Context(), invocation(62, `{}`))
		wantFailure(t, err)
		if n := len(readOutside(t, file)); n != 61 {
			t.Errorf("%d lines, want 61", n)
		}
	})
	t.Run("cannot be opened", func(t *testing.T) {
		tools, out := Chaos(filepath.Join(file, "no", "such"), func() {})
		defer out.Close()
		_, err := tools[0].Invoke(t.Context(), invocation(1, `{}`))
		if f := wantFailure(t, err); !f.Retryable || bytes.Contains([]byte(f.Message), []byte(file)) {
			t.Errorf("got %+v", f)
		}
	})
	t.Run("cannot be written", func(t *testing.T) {
		tools, out := Chaos("/dev/full", func() {})
		defer out.Close()
		if _, err := os.Stat("/dev/full"); err != nil {
			t.Skip("needs /dev/full")
		}
		_, err := tools[0].Invoke(t.Context(), invocation(1, `{}`))
		wantUnknown(t, err, nil)
	})
}

func ExampleChaos() {
	tools, out := Chaos("ext.ndjson", func() { os.Exit(137) })
	defer out.Close()
	for _, tool := range tools {
		fmt.Println(tool.Name, tool.Rerun)
	}
	// Output:
	// ext_rerun rerun
	// ext_verify verify
	// ext_hold hold
}
