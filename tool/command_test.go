//go:build unix

package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

// journal is a log that a test reads.
type journal struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	wrote chan struct{} // takes one signal
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case j.wrote <- struct{}{}:
	default:
	}
	return j.buf.Write(b)
}

// await waits until something was logged.
func (j *journal) await(t *testing.T, what string) {
	t.Helper()
	for limit := time.After(patience); !strings.Contains(j.String(), what); {
		select {
		case <-j.wrote:
		case <-limit:
			t.Fatalf("%q is not logged", what)
		}
	}
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) records(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(j.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func command(t testing.TB, c *Command) (*commandTool, *journal) {
	t.Helper()
	j := &journal{wrote: make(chan struct{}, 1)}
	tool := newCommand("mail", c, slog.New(slog.NewJSONHandler(j, nil)))
	t.Cleanup(func() {
		if err := tool.Close(); err != nil {
			t.Error(err)
		}
	})
	return tool, j
}

func shell(t testing.TB, script string, args ...string) (*commandTool, *journal) {
	t.Helper()
	return command(t, &Command{
		Argv:          append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		FinalExit:     []int{1, 2},
		RetryableExit: []int{75},
	})
}

// wantNotBegun checks a failure from before the program's first instruction.
func wantNotBegun(t *testing.T, err error) idem.Failure {
	t.Helper()
	var f *idem.Failure
	if !errors.As(err, &f) || f.Code != failureUnreachable || !f.Retryable {
		t.Fatalf("got %v, want a retryable %s", err, failureUnreachable)
	}
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
	return *f
}

// result is what an Invoke in the background brings. Its args fill a pipe.
type result struct {
	res idem.Result
	err error
}

func start(ctx context.Context, tool *commandTool) <-chan result {
	c := make(chan result, 1)
	go func() {
		res, err := tool.Invoke(ctx, invocation(1, `{}`+strings.Repeat(" ", 200_000)))
		c <- result{res, err}
	}()
	return c
}

func TestCommandResult(t *testing.T) {
	args := `{"n": 12345678901234567890.10, "text":"\u00fc\n"}` + "\n "
	big := `"` + strings.Repeat("x", idem.MaxOutput-2) + `"`
	for name, c := range map[string]struct{ script, args, want string }{
		"args are stdin, byte for byte":            {`cat`, args, args},
		"args of the largest size, echoed":         {`cat`, big, big},
		"args are not read, the pipe is full":      {`echo '{"sent":true}'`, big, `{"sent":true}` + "\n"},
		"args are not read, stdin is closed":       {`exec <&-; echo 1`, big, "1\n"},
		"args are read in part":                    {`read -r x; echo 2`, "{}\n" + strings.Repeat(" ", 200_000), "2\n"},
		"stdin ends after the args":                {`cat >/dev/null; echo 3`, args, "3\n"},
		"text":                                     {`echo hello; printf '"you"'`, `{}`, `{"stdout":"hello\n\"you\""}`},
		"nothing":                                  {`:`, `{}`, ``},
		"bytes":                                    {`printf '\377\376'`, `{}`, `{"stdout_base64":"//4="}`},
		"two documents are text":                   {`echo '{}'; echo '{}'`, `{}`, `{"stdout":"{}\n{}\n"}`},
		"stderr is not in it":                      {`echo secret >&2; echo 4`, `{}`, "4\n"},
		"stdout and stderr closed, then exit code": {`exec >&- 2>&-; exit 0`, `{}`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			tool, _ := shell(t, "PATH=/bin:/usr/bin; "+c.script)
			res, err := tool.Invoke(t.Context(), invocation(1, c.args))
			if err != nil {
				t.Fatal(err)
			}
			if string(res.Output) != c.want {
				t.Errorf("got %.200q, want %.200q", res.Output, c.want)
			}
			if err := res.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCommandEnd(t *testing.T) {
	for _, c := range []struct {
		name, script     string
		final, retryable bool
	}{
		{"declared as final", `exit 1`, true, false},
		{"declared as final, the second", `echo secret; exit 2`, true, false},
		{"declared as retryable", `echo secret; echo secret >&2; exit 75`, false, true},
		{"not declared", `exit 3`, false, false},
		{"not declared, the largest", `exit 255`, false, false},
		{"a signal", `kill -KILL $$`, false, false},
		{"a signal, its number is a declared code", `kill -HUP $$`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool, _ := shell(t, c.script)
			_, err := tool.Invoke(t.Context(), invocation(1, `{}`))
			if !c.final && !c.retryable {
				wantUnknown(t, err, nil)
				return
			}
			f := wantFailure(t, err)
			code := strings.Fields(c.script)[len(strings.Fields(c.script))-1]
			if f.Retryable != c.retryable || f.Message != "the command exited with "+code {
				t.Errorf("got %+v", f)
			}
		})
	}
}

// R14: definitely not executed.
func TestCommandNotBegun(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain-secret")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noInterpreter := filepath.Join(dir, "interpreter-secret")
	if err := os.WriteFile(noInterpreter, []byte("#!/no/such/secret\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Command{
		"no such file":        {Argv: []string{dir + "/no-secret"}},
		"no right":            {Argv: []string{plain}},
		"a directory":         {Argv: []string{dir}},
		"no interpreter":      {Argv: []string{noInterpreter}},
		"too long an arg":     {Argv: []string{"/bin/sh", "-c", "exit 0", strings.Repeat("secret", 1<<20)}},
		"too big a variable":  {Argv: []string{"/bin/sh", "-c", "exit 0"}, Env: map[string]string{"A": strings.Repeat("x", 8<<20)}},
		"a zero byte, in env": {Argv: []string{"/bin/sh", "-c", "exit 0"}, Env: map[string]string{"A": "\x00"}},
	} {
		t.Run(name, func(t *testing.T) {
			tool, j := command(t, &c)
			_, err := tool.Invoke(t.Context(), invocation(1, `{}`))
			if f := wantNotBegun(t, err); strings.ContainsAny(f.Message, "/") || strings.Contains(f.Message, "secret") {
				t.Errorf("the message shows a path: %q", f.Message)
			}
			r := j.records(t)
			if len(r) != 1 || r[0]["level"] != "WARN" || r[0]["path"] != c.Argv[0] || r[0]["tool"] != "mail" || r[0]["attempt"] != 1.0 {
				t.Errorf("log: %.500s", j)
			}
		})
	}
	t.Run("the time was over before", func(t *testing.T) {
		tool, _ := shell(t, `:`)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := tool.Invoke(ctx, invocation(1, `{}`))
		wantNotBegun(t, err)
	})
	t.Run("the time is over while others start", func(t *testing.T) {
		tool := newCommand("mail", &Command{Argv: []string{"/bin/true"}}, slog.New(slog.DiscardHandler))
		tool.begun = true // by nobody: the launcher is busy for good
		ctx, cancel := context.WithCancel(t.Context())
		got := start(ctx, tool)
		cancel()
		wantNotBegun(t, (<-got).err)
	})
	t.Run("closed", func(t *testing.T) {
		tool, _ := shell(t, `:`)
		if err := errors.Join(tool.Close(), tool.Close()); err != nil {
			t.Fatal(err)
		}
		_, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		wantNotBegun(t, err)
	})
	t.Run("no file handle", func(t *testing.T) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(exe)
		c.Env = []string{envProgram + "=starved"}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
}

// starved invokes a command in a process that has no more file handles, or a few,
// and then again when it has.
func starved() {
	tool := newCommand("mail", &Command{Argv: []string{"/bin/sh", "-c", "exit 0"}}, slog.New(slog.DiscardHandler))
	run := func() error {
		_, err := tool.Invoke(context.Background(), invocation(1, `{}`))
		return err
	}
	if err := run(); err != nil {
		fmt.Println("before:", err)
		os.Exit(1)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var files []*os.File
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		files = append(files, f)
	}
	refused := 0
	for i := range 8 { // with room for each number of handles up to that of a start
		var f *idem.Failure
		err := run()
		if err == nil {
			break
		}
		if !errors.As(err, &f) || f.Code != failureUnreachable || !f.Retryable {
			fmt.Println("with", i, "handles:", err)
			os.Exit(1)
		}
		refused++
		_ = files[i].Close()
	}
	for _, f := range files {
		_ = f.Close()
	}
	if err := run(); err != nil || refused < 3 {
		fmt.Println("after", refused, "refusals:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestCommandSurroundings(t *testing.T) {
	t.Run("environment and arguments are what is declared", func(t *testing.T) {
		t.Setenv("IDEMD_SECRET", "not for commands")
		tool, _ := command(t, &Command{
			Argv: []string{"/usr/bin/env"},
			Env:  map[string]string{"B": "x{effect_id}y{effect_id}", "A": "{call_id} $B"},
		})
		inv := invocation(1, `{}`)
		res, err := tool.Invoke(t.Context(), inv)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"stdout":"A={call_id} $B\nB=x` + inv.EffectID + `y` + inv.EffectID + `\n"}`
		if string(res.Output) != want {
			t.Errorf("got %s, want %s", res.Output, want)
		}
	})
	t.Run("no environment declared is none", func(t *testing.T) {
		tool, _ := command(t, &Command{Argv: []string{"/usr/bin/env"}})
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		if err != nil || res.Output != nil {
			t.Errorf("got %s, %v", res.Output, err)
		}
	})
	t.Run("arguments go through no shell", func(t *testing.T) {
		tool, _ := command(t, &Command{Argv: []string{"/bin/echo", "--id={effect_id}", "$HOME;  *"}})
		for i := range byte(2) { // the declaration is not changed by the first
			inv := invocation(1, `{}`)
			inv.EffectID = idem.EffectID(idem.CallID{i})
			res, err := tool.Invoke(t.Context(), inv)
			if want := `{"stdout":"--id=` + inv.EffectID + ` $HOME;  *\n"}`; err != nil || string(res.Output) != want {
				t.Errorf("got %s, %v, want %s", res.Output, err, want)
			}
		}
	})
	t.Run("no id chooses the program", func(t *testing.T) {
		named := filepath.Join(t.TempDir(), effectIDMark)
		if err := os.Symlink("/bin/sh", named); err != nil {
			t.Fatal(err)
		}
		tool, _ := command(t, &Command{Argv: []string{named, "-c", "echo $0"}})
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		if err != nil || !strings.Contains(string(res.Output), "/"+effectIDMark+`\n`) {
			t.Errorf("got %s, %v", res.Output, err)
		}
	})
	t.Run("the directory is the root", func(t *testing.T) {
		tool, _ := shell(t, `pwd`)
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		if err != nil || string(res.Output) != `{"stdout":"/\n"}` {
			t.Errorf("got %s, %v", res.Output, err)
		}
	})
	t.Run("SIGPIPE is not ignored, though the test ignores it", func(t *testing.T) {
		signal.Ignore(syscall.SIGPIPE)
		t.Cleanup(func() { signal.Reset(syscall.SIGPIPE) })
		tool, _ := shell(t, `kill -PIPE $$; echo it lives`)
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		if wantUnknown(t, err, nil); !strings.Contains(err.Error(), syscall.SIGPIPE.String()) {
			t.Errorf("got %s, %v", res.Output, err)
		}
	})
	t.Run("a group of its own", func(t *testing.T) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "child"))
		got := start(t.Context(), tool)
		a := next()
		if a.PGID != a.PID || a.PGID == syscall.Getpgrp() || a.PPID != os.Getpid() {
			t.Errorf("got %+v in the group of the test (%d)", a.presence, syscall.Getpgrp())
		}
		a.tell("exit 0")
		if r := <-got; r.err != nil {
			t.Error(r.err)
		}
	})
}

// What runs when the time is over does not outlive it.
func TestCommandTimeout(t *testing.T) {
	begin := func(t *testing.T) (*actor, func() *actor, context.CancelCauseFunc, <-chan result) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "leader"))
		ctx, cancel := context.WithCancelCause(t.Context())
		got := start(ctx, tool)
		return next(), next, cancel, got
	}
	wantOver := func(t *testing.T, got <-chan result) {
		t.Helper()
		wantUnknown(t, (<-got).err, context.Canceled)
	}
	t.Run("the command and what it started end on SIGTERM", func(t *testing.T) {
		leader, next, cancel, got := begin(t)
		leader.do("spawn second")
		second := next()
		if second.PGID != leader.PID {
			t.Fatalf("got %+v", second.presence)
		}
		cancel(nil)
		wantOver(t, got)
		leader.gone()
		second.gone()
	})
	t.Run("deaf to SIGTERM", func(t *testing.T) {
		leader, _, cancel, got := begin(t)
		leader.do("deaf")
		cancel(nil)
		wantOver(t, got)
		leader.gone()
	})
	t.Run("what it started is deaf", func(t *testing.T) {
		leader, next, cancel, got := begin(t)
		leader.do("spawn second")
		second := next()
		second.do("deaf")
		cancel(nil)
		wantOver(t, got)
		leader.gone()
		second.gone()
	})
	t.Run("stopped, as by Ctrl-Z", func(t *testing.T) {
		leader, _, cancel, got := begin(t)
		if err := syscall.Kill(leader.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		cancel(nil)
		wantOver(t, got)
		leader.gone()
	})
	t.Run("it answers the signal with a declared code", func(t *testing.T) {
		for _, code := range []string{"0", "1", "75"} {
			tool, j := shell(t, `trap 'echo {}; echo tidied >&2; exit `+code+`' TERM; /bin/sleep 100 & echo ready >&2; wait; echo awake >&2`)
			ctx, cancel := context.WithCancel(t.Context())
			got := start(ctx, tool)
			j.await(t, "ready")
			cancel()
			wantOver(t, got)
			if !strings.Contains(j.String(), "tidied") || strings.Contains(j.String(), "awake") {
				t.Errorf("it did not end by its answer: %s", j)
			}
		}
	})
}

// What a command leaves behind neither delays its answer nor spoils it.
func TestCommandLeftovers(t *testing.T) {
	t.Run("in its group: killed", func(t *testing.T) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "leader"))
		got := start(t.Context(), tool)
		leader := next()
		leader.do("spawn second")
		second := next()
		second.do("deaf")
		leader.do(`say {"sent":1}`)
		leader.tell("exit 0")
		second.gone()
		if r := <-got; r.err != nil || string(r.res.Output) != `{"sent":1}` {
			t.Errorf("got %s, %v", r.res.Output, r.err)
		}
	})
	t.Run("out of its group, and it holds the pipes: left alone", func(t *testing.T) {
		socket, next := cast(t)
		tool, j := command(t, extraCommand(socket, "leader"))
		got := start(t.Context(), tool)
		leader := next()
		leader.do("escape second")
		second := next()
		leader.do(`say {"sent":2}`)
		leader.do(`complain that was hard`)
		leader.tell("exit 0")
		if r := <-got; r.err != nil || string(r.res.Output) != `{"sent":2}` {
			t.Errorf("got %s, %v", r.res.Output, r.err)
		}
		if !strings.Contains(j.String(), "that was hard") {
			t.Errorf("log: %s", j)
		}
		second.do("deaf") // it lives
		second.tell("exit 0")
		second.gone()
	})
	t.Run("out of its group, after the time was over", func(t *testing.T) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "leader"))
		ctx, cancel := context.WithCancel(t.Context())
		got := start(ctx, tool)
		leader := next()
		leader.do("escape second")
		second := next()
		cancel()
		wantUnknown(t, (<-got).err, nil)
		leader.gone()
		second.tell("exit 0")
		second.gone()
	})
}

// What a leader wrote before its end is taken even if nothing was read until then.
func TestDrain(t *testing.T) {
	pipes, err := openPipes()
	if err != nil {
		t.Fatal(err)
	}
	defer pipes.closeTheirs() // until then they are held open
	defer pipes.closeOurs()
	const n = 60 << 10
	if _, err := pipes.theirs[1].Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	p := &process{pipes: pipes, err: newStderrLog(slog.New(slog.DiscardHandler))}
	p.copies.Go(func() { _, _ = io.Copy(&p.err, pipes.ours[2]) }) // that of stdout had no time yet
	p.drain(true)
	if got := p.out.buf.Len(); got != n {
		t.Errorf("got %d bytes, want %d", got, n)
	}
}

// C26: answers beyond the cap.
func TestCommandOutputCap(t *testing.T) {
	const scale = idem.MaxOutput
	for name, n := range map[string]int{
		"nine tenths":    scale * 9 / 10,
		"the cap":        scale - len(`{"stdout":""}`),
		"a byte more":    scale - len(`{"stdout":""}`) + 1,
		"eleven tenths":  scale * 11 / 10,
		"a hundredfold":  100 * scale,
		"exactly as raw": scale,
	} {
		t.Run(name, func(t *testing.T) {
			tool, _ := shell(t, fmt.Sprintf(`/usr/bin/head -c %d /dev/zero | /usr/bin/tr '\000' x`, n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 16*scale {
				t.Errorf("allocated %d bytes in all", got)
			}
			if err := res.Validate(); err != nil {
				t.Fatal(err)
			}
			var out struct {
				Stdout    string
				Truncated bool
			}
			if err := json.Unmarshal(res.Output, &out); err != nil {
				t.Fatal(err)
			}
			if over := n > scale-len(`{"stdout":""}`); out.Truncated != over || (!over && len(out.Stdout) != n) || strings.Trim(out.Stdout, "x") != "" {
				t.Errorf("truncated %v, %d bytes", out.Truncated, len(out.Stdout))
			}
			if len(res.Output) < min(n, scale) {
				t.Errorf("only %d bytes are kept", len(res.Output))
			}
		})
	}
	t.Run("JSON over the cap", func(t *testing.T) {
		tool, _ := shell(t, fmt.Sprintf(`printf '"'; /usr/bin/head -c %d /dev/zero | /usr/bin/tr '\000' x; printf '"'`, scale-1))
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		if err != nil || !bytes.HasPrefix(res.Output, []byte(`{"truncated":true,"stdout":"\"xxx`)) {
			t.Errorf("got %.100s, %v", res.Output, err)
		}
	})
	t.Run("endless, on both", func(t *testing.T) {
		tool, j := shell(t, `/usr/bin/yes >&2 & exec /usr/bin/yes`)
		ctx, cancel := context.WithCancel(t.Context())
		got := start(ctx, tool)
		j.await(t, "the command wrote") // stdout is on its way too
		cancel()
		wantUnknown(t, (<-got).err, nil)
		if n := len(j.records(t)); n > maxStderrLines+1 {
			t.Errorf("%d lines of log", n)
		}
	})
	t.Run("what is kept of an endless one", func(t *testing.T) {
		var k keptOutput
		for range 100 {
			if n, err := k.Write(make([]byte, scale)); n != scale || err != nil {
				t.Fatal(n, err)
			}
		}
		if k.buf.Len() != scale+1 || k.buf.Cap() > 4*scale {
			t.Errorf("keeps %d bytes in %d", k.buf.Len(), k.buf.Cap())
		}
	})
}

func TestCommandStderr(t *testing.T) {
	texts := func(t *testing.T, script string) (lines []string, omitted float64) {
		t.Helper()
		tool, j := shell(t, "PATH=/bin:/usr/bin; "+script)
		if res, err := tool.Invoke(t.Context(), invocation(3, `{}`)); err != nil || res.Output != nil {
			t.Fatalf("got %s, %v", res.Output, err)
		}
		for _, r := range j.records(t) {
			if r["level"] != "INFO" || r["tool"] != "mail" || r["attempt"] != 3.0 || r["call_id"] != invocation(3, "").CallID.String() {
				t.Errorf("record: %v", r)
			}
			if line, ok := r["line"].(string); ok {
				lines = append(lines, line)
			} else {
				omitted += r["omitted_bytes"].(float64)
			}
		}
		return lines, omitted
	}
	t.Run("line by line, the last without an end, no blank ones", func(t *testing.T) {
		got, omitted := texts(t, `printf 'one\r\n\n \n\033[31mtwo\n' >&2; printf three >&2`)
		if strings.Join(got, "|") != "one|\x1b[31mtwo|three" || omitted != 0 {
			t.Errorf("got %q, %v", got, omitted)
		}
	})
	t.Run("a long line", func(t *testing.T) {
		got, omitted := texts(t, `head -c 5000 /dev/zero | tr '\000' x >&2; echo >&2; echo next >&2`)
		if len(got) != 2 || len(got[0]) != maxStderrLine || got[1] != "next" || omitted != 5000-maxStderrLine {
			t.Errorf("got %d lines, %v", len(got), omitted)
		}
	})
	t.Run("a lot", func(t *testing.T) {
		got, omitted := texts(t, `head -c 2000000 /dev/zero | tr '\000' x | fold -w 1000 >&2`)
		total := 0
		for _, line := range got {
			total += len(line)
		}
		if total != maxStderr || omitted != float64(2_000_000-total) {
			t.Errorf("logged %d bytes in %d lines, %v left out", total, len(got), omitted)
		}
	})
	t.Run("many lines", func(t *testing.T) {
		got, omitted := texts(t, `yes | head -n 5000 >&2`)
		if len(got) != maxStderrLines || omitted != float64(5000-maxStderrLines) {
			t.Errorf("logged %d lines, %v left out", len(got), omitted)
		}
	})
}

func TestCommandParallel(t *testing.T) {
	tool, _ := command(t, &Command{Argv: []string{"/bin/cat"}})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			args := fmt.Sprintf(`{"i":%d}`, i)
			res, err := tool.Invoke(t.Context(), invocation(1, args))
			if err != nil || string(res.Output) != args {
				t.Errorf("%d: got %s, %v", i, res.Output, err)
			}
		})
	}
	all.Wait()
}

func TestCommandClose(t *testing.T) {
	t.Run("kills what runs", func(t *testing.T) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "leader"))
		got := start(t.Context(), tool)
		leader := next()
		leader.do("deaf")
		leader.do("spawn second")
		second := next()
		if err := tool.Close(); err != nil {
			t.Error(err)
		}
		select {
		case r := <-got: // before Close returned, but for its last step
			wantUnknown(t, r.err, nil)
		case <-time.After(patience):
			t.Fatal("it runs on")
		}
		leader.gone()
		second.gone()
	})
	t.Run("in the grace of one", func(t *testing.T) {
		socket, next := cast(t)
		tool, _ := command(t, extraCommand(socket, "leader"))
		ctx, cancel := context.WithCancel(t.Context())
		got := start(ctx, tool)
		leader := next()
		leader.do("deaf")
		cancel()
		if err := tool.Close(); err != nil {
			t.Error(err)
		}
		wantUnknown(t, (<-got).err, nil)
		leader.gone()
	})
	t.Run("is bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tool := newCommand("mail", &Command{}, slog.New(slog.DiscardHandler))
			if !tool.enter() { // an invocation whose program the kernel does not let go of
				t.Fatal("closed")
			}
			began := time.Now()
			if err := tool.Close(); err == nil || time.Since(began) != closeWait {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			tool.running.Done()
			<-tool.ended
		})
	})
}
