//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// program is a command tool: a script for /bin/sh. Its environment has PATH,
// EFFECT_ID, DIR (a directory of the test) and WIRE (see wire).
type program struct {
	name, script, timeout string
	rerun                 idem.Rerun
	final, retryable      []int
}

// startPrograms starts a daemon with the programs as its tools.
func startPrograms(t *testing.T, dir string, programs []program, flags ...string) *daemon {
	t.Helper()
	d := preparePrograms(t, dir, programs, flags...)
	d.boot(t)
	return d
}

// preparePrograms is startPrograms without the start.
func preparePrograms(t *testing.T, dir string, programs []program, flags ...string) *daemon {
	t.Helper()
	var tools []map[string]any
	for _, p := range programs {
		command := map[string]any{
			"argv": []string{"/bin/sh", "-c", p.script},
			"env":  map[string]string{"PATH": "/usr/bin:/bin", "EFFECT_ID": "{effect_id}", "DIR": dir, "WIRE": filepath.Join(dir, "wire")},
		}
		if p.rerun == idem.RerunYes {
			command["downstream"] = "honours"
		}
		if p.final != nil {
			command["final_exit"] = p.final
		}
		if p.retryable != nil {
			command["retryable_exit"] = p.retryable
		}
		tools = append(tools, map[string]any{
			"name": p.name, "effects": "external", "rerun": p.rerun, "timeout": p.timeout, "concurrency": 8, "command": command,
		})
	}
	file, err := json.Marshal(map[string]any{"version": 1, "tools": tools}) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return prepare(t, t.TempDir(), append([]string{"--chaos", "--tools", path}, flags...)...)
}

// wire is a pipe by name between programs and the test. A script begins with onWire,
// and waits there until the test listens. What it starts has the wire as well.
type wire string

const onWire = `exec 9>"$WIRE"; echo here >&9; `

func newWire(t *testing.T, dir, name string) wire {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return wire(path)
}

// listener is the test's end of a wire.
type listener struct {
	file  *os.File
	lines *bufio.Reader
}

// listen waits until a program is there and says its first line.
func (w wire) listen(t *testing.T) *listener {
	t.Helper()
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.Open(string(w)) // waits for a writer
		if err != nil {
			t.Error(err)
		}
		opened <- f
	}()
	watchdog := time.NewTimer(patience())
	defer watchdog.Stop()
	select {
	case f := <-opened:
		t.Cleanup(func() { f.Close() })
		l := &listener{file: f, lines: bufio.NewReader(f)}
		l.expect(t, "here\n")
		return l
	case <-watchdog.C:
		t.Fatalf("no program came to %s", w)
		return nil
	}
}

func (l *listener) expect(t *testing.T, want string) {
	t.Helper()
	if err := l.file.SetReadDeadline(time.Now().Add(patience())); err != nil {
		t.Fatal(err)
	}
	if got, err := l.lines.ReadString('\n'); got != want {
		t.Fatalf("the program says %q, %v; want %q", got, err, want)
	}
}

// gone waits until no process is left that has the wire.
func (l *listener) gone(t *testing.T) {
	t.Helper()
	if err := l.file.SetReadDeadline(time.Now().Add(patience())); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(l.lines); err != nil || len(rest) > 0 {
		t.Fatalf("a process lives on: %q, %v", rest, err)
	}
}

// tell sends a word to a program, once it reads from the wire.
func (w wire) tell(t *testing.T, word string) {
	t.Helper()
	var f *os.File
	eventually(t, "a program reads from "+string(w), func() bool {
		var err error
		f, err = os.OpenFile(string(w), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	})
	defer f.Close()
	if _, err := io.WriteString(f, word+"\n"); err != nil {
		t.Fatal(err)
	}
}

// started reads what programs wrote when they were started: the id of their effect.
func started(t *testing.T, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "started"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(raw))
}

const noteStart = `echo "$EFFECT_ID" >>"$DIR/started"; `

// TestCommandKilled kills the daemon around a program. The program goes with it,
// and what may not run again does not (R11 to R13).
func TestCommandKilled(t *testing.T) {
	t.Parallel()
	stays := program{name: "stays", script: noteStart + onWire + `exec sleep 1000`, timeout: "1h"}
	t.Run("while the program runs, hold", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		w := newWire(t, dir, "wire")
		p := stays
		p.rerun = idem.RerunHold
		d := startPrograms(t, dir, []program{p})
		c := d.post("k", "stays", `{}`).want(t, http.StatusAccepted)
		l := w.listen(t)
		d.kill(t)
		l.gone(t)
		d.boot(t)
		if got := d.settled(t, "k").want(t, http.StatusOK); got.Status != idem.StatusHeld || got.Crashes != 1 || got.failure().Code != idem.FailureLost {
			t.Errorf("got %v", got)
		}
		d.post("k", "stays", `{}`, wait(5)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
		if got := started(t, dir); len(got) != 1 || got[0] != c.EffectID {
			t.Errorf("started: %v", got)
		}
		reconcile(t, d)
	})
	t.Run("after the program has ended, hold", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		d := startPrograms(t, dir, []program{{name: "quick", script: noteStart, timeout: "1h", rerun: idem.RerunHold}})
		d.post("k", "quick", `{}`, wait(20), fault(idem.PointAfterDispatch, "exit"))
		d.awaitDeath(t)
		d.boot(t)
		held := d.post("k", "quick", `{}`, wait(20)).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
		if got := started(t, dir); len(got) != 1 {
			t.Errorf("started: %v", got)
		}
		d.resolve(held.CallID, `{"outcome":"retry","attempt":1,"by":"ann"}`).want(t, http.StatusOK)
		d.look(held.CallID, wait(20)).wantEnd(t, idem.StatusSucceeded)
		if got := started(t, dir); len(got) != 2 || got[0] != got[1] { // R10
			t.Errorf("started: %v", got)
		}
		reconcile(t, d, "k")
	})
	t.Run("while the program runs, rerun", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		w := newWire(t, dir, "wire")
		p := stays
		p.rerun = idem.RerunYes
		d := startPrograms(t, dir, []program{p})
		c := d.post("k", "stays", `{}`).want(t, http.StatusAccepted)
		l := w.listen(t)
		d.kill(t)
		l.gone(t)
		d.boot(t)
		w.listen(t)
		if got := started(t, dir); len(got) != 2 || got[0] != c.EffectID || got[1] != c.EffectID {
			t.Errorf("started: %v, of %s", got, c.EffectID)
		}
	})
	t.Run("what it left behind has nothing of the daemon's", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		w, end := newWire(t, dir, "wire"), newWire(t, dir, "end")
		// Its child outlives it: a killed daemon reaches the program alone.
		d := startPrograms(t, dir, []program{{
			name: "parent", rerun: idem.RerunHold, timeout: "1h",
			script: `/bin/sh -c 'exec 9>"$WIRE"; echo here >&9; read -r word <"$DIR/end"; echo "$word" >&9' & exec sleep 1000`,
		}})
		d.post("k", "parent", `{}`).want(t, http.StatusAccepted)
		l := w.listen(t)
		d.kill(t)
		d.boot(t) // the data directory is not in use
		d.settled(t, "k")
		end.tell(t, "alive")
		l.expect(t, "alive\n")
		l.gone(t)
	})
}

// TestCommandStopped: a stop waits for programs, and ends those that take too long,
// with all that they started in their group.
func TestCommandStopped(t *testing.T) {
	t.Parallel()
	t.Run("in time", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		w, end := newWire(t, dir, "wire"), newWire(t, dir, "end")
		d := startPrograms(t, dir, []program{{
			name: "waits", rerun: idem.RerunHold, timeout: "1h", script: onWire + `read -r word <"$DIR/end"; echo "\"$word\""`,
		}})
		answer := later(func() reply { return d.post("k", "waits", `{}`, wait(20)) })
		w.listen(t)
		d.signal(t, syscall.SIGTERM)
		d.now().awaitLine(t, "stopping")
		end.tell(t, "done")
		if c := (<-answer).wantEnd(t, idem.StatusSucceeded); string(bytes.TrimSpace(c.Result)) != `"done"` {
			t.Errorf("got %v", c)
		}
		if code := d.awaitEnd(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		d.boot(t)
		reconcile(t, d, "k")
	})
	for _, c := range []struct {
		rerun  idem.Rerun
		status idem.Status
	}{{idem.RerunHold, idem.StatusHeld}, {idem.RerunYes, idem.StatusRunning}} {
		t.Run("too late, "+string(c.rerun), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			w := newWire(t, dir, "wire")
			d := startPrograms(t, dir, []program{{
				name: "deaf", rerun: c.rerun, timeout: "1h", script: noteStart + `trap "" TERM; ` + onWire + `sleep 1000 & sleep 1000; sleep 1000`,
			}}, "--shutdown-timeout", "0s")
			d.post("k", "deaf", `{}`).want(t, http.StatusAccepted)
			l := w.listen(t)
			if code := d.stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			l.gone(t)
			d.boot(t)
			runs := 1
			if c.rerun == idem.RerunYes {
				l = w.listen(t)
				runs = 2
			}
			// A clean stop is no crash (R12).
			if got := d.find("k").want(t, http.StatusOK); got.Status != c.status || got.Attempt != runs || got.Crashes != 0 {
				t.Errorf("got %v", got)
			}
			if got := started(t, dir); len(got) != runs {
				t.Errorf("started: %v", got)
			}
			d.stop(t) // a kill would leave what the program has started
			l.gone(t)
		})
	}
}

// TestCommandTimeout: when the time is over, no process of the program's group is
// left before anybody is told (R14).
func TestCommandTimeout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWire(t, dir, "wire")
	const script = noteStart + `trap "" TERM; ` + onWire + `sleep 1000 & sleep 1000; sleep 1000`
	d := startPrograms(t, dir, []program{
		{name: "held", script: script, rerun: idem.RerunHold, timeout: "300ms"},
		{name: "again", script: script, rerun: idem.RerunYes, timeout: "300ms"},
	})
	answer := later(func() reply { return d.post("k", "held", `{}`, wait(20)) })
	w.listen(t).gone(t)
	(<-answer).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	for range 2 {
		answer = later(func() reply { return d.post("l", "again", `{}`, wait(20)) })
		w.listen(t).gone(t)
		if f := (<-answer).wantEnd(t, idem.StatusFailed).failure(); f.Code != idem.FailureTimeout || !f.Retryable {
			t.Errorf("got %+v", f)
		}
	}
	if got := started(t, dir); len(got) != 3 || got[1] != got[2] || got[0] == got[1] {
		t.Errorf("started: %v", got)
	}
	if s := d.stats(t); s.Abandoned != 0 {
		t.Errorf("%d attempts were abandoned", s.Abandoned)
	}
	reconcile(t, d)
}

// TestCommandOutput: whatever a program writes, its effect counts once, and the
// result is defined and is given again byte for byte (C26).
func TestCommandOutput(t *testing.T) {
	t.Parallel()
	const xs = `head -c "$(tr -cd 0-9)" /dev/zero | tr '\000' x`
	room := idem.MaxOutput - len(`{"stdout":""}`)
	cases := []struct {
		name, script string
		n            int    // "x", so many
		want         string // where n is 0
	}{
		{name: "nine_tenths", n: idem.MaxOutput / 10 * 9},
		{name: "just_fits", n: room},
		{name: "one_more", n: room + 1},
		{name: "eleven_tenths", n: idem.MaxOutput / 10 * 11},
		{name: "hundredfold", n: 100 * idem.MaxOutput},
		{name: "nothing", script: `:`, want: `null`},
		{name: "json", script: `printf '{"a": 1.10}'`, want: `{"a": 1.10}`},
		{name: "json_and_line_end", script: `echo '{"a":1}'`, want: `{"a":1}`},
		{name: "two_documents", script: `echo '{}'; echo '{}'`, want: `{"stdout":"{}\n{}\n"}`},
		{name: "text", script: `echo hello`, want: `{"stdout":"hello\n"}`},
		{name: "no_utf8", script: `printf '\377\376'`, want: `{"stdout_base64":"//4="}`},
		{name: "args", script: `cat`, want: `{"n":0}`},
		{name: "stderr", script: `yes | head -n 100000 >&2`, want: `null`},
	}
	var programs []program
	var keys []string
	for _, c := range cases {
		script := c.script
		if script == "" {
			script = xs
		}
		programs = append(programs, program{name: c.name, script: script, rerun: idem.RerunHold, timeout: "1m"})
		keys = append(keys, c.name)
	}
	programs = append(programs, program{name: "endless", script: `yes >&2 & exec yes`, rerun: idem.RerunHold, timeout: "300ms"})
	d := startPrograms(t, t.TempDir(), programs)
	ask := func(i int) reply {
		return d.post(cases[i].name, cases[i].name, fmt.Sprintf(`{"n":%d}`, cases[i].n), wait(20))
	}
	endless := later(func() reply { return d.post("endless", "endless", `{}`, wait(20)) })
	first := make([]*call, len(cases))
	for i, c := range cases {
		first[i] = ask(i).wantEnd(t, idem.StatusSucceeded)
		got := first[i].Result
		if c.n == 0 {
			if string(bytes.TrimSpace(got)) != c.want {
				t.Errorf("%s: got %s, want %s", c.name, got, c.want)
			}
			continue
		}
		var out struct {
			Truncated bool
			Stdout    string
		}
		if err := json.Unmarshal(got, &out); err != nil || out.Truncated != (c.n > room) || strings.Trim(out.Stdout, "x") != "" ||
			len(got) > idem.MaxOutput || !out.Truncated && len(out.Stdout) != c.n || out.Truncated && len(got) < idem.MaxOutput-8 {
			t.Errorf("%s: %v, %d bytes, truncated %v: %.60s", c.name, err, len(got), out.Truncated, got)
		}
	}
	(<-endless).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
	for _, when := range []string{"at once", "in the next life"} {
		for i, c := range cases {
			r := ask(i)
			if got := r.wantEnd(t, idem.StatusSucceeded); !got.sameEnd(first[i]) || r.replayed() != "true" {
				t.Errorf("%s: another answer %s: %.200s", c.name, when, got.Result)
			}
		}
		d.post("endless", "endless", `{}`).wantRefusal(t, http.StatusConflict, idem.CodeOutcomeUnknown)
		if when == "at once" {
			d.restart(t)
		}
	}
	reconcile(t, d, keys...)
}

// TestCommandEnds: every exit code, and every signal, is a defined answer.
func TestCommandEnds(t *testing.T) {
	t.Parallel()
	d := startPrograms(t, t.TempDir(), []program{
		{name: "code", script: `exit "$(tr -cd 0-9)"`, rerun: idem.RerunHold, timeout: "1m", final: []int{1, 64, 255}, retryable: []int{75, 137}},
		// PIPE too, though the daemon ignores it.
		{name: "signal", script: `ulimit -c 0; kill -s "$(tr -cd A-Z0-9)" $$; exit 0`, rerun: idem.RerunHold, timeout: "1m", final: []int{1}, retryable: []int{15}},
	})
	together(8, func(worker int) reply {
		for code := worker; code <= 255; code += 8 {
			r := d.post(fmt.Sprintf("code-%d", code), "code", fmt.Sprintf(`{"n":%d}`, code), wait(20))
			if err := wantCode(r, code); err != nil {
				t.Errorf("exit code %d: %v", code, err)
			}
		}
		return reply{}
	})
	for _, s := range []string{"HUP", "INT", "QUIT", "ILL", "ABRT", "FPE", "KILL", "BUS", "SEGV", "SYS", "PIPE", "ALRM", "TERM", "USR1", "USR2"} {
		if r := d.post("signal-"+s, "signal", `{"":"`+s+`"}`, wait(20)); r.refusal == nil || r.refusal.Code != idem.CodeOutcomeUnknown {
			t.Errorf("SIG%s: %v", s, r)
		}
	}
	reconcile(t, d, "code-0")
}

// wantCode checks what came of an exit code of the tool code.
func wantCode(r reply, code int) error {
	var ok bool
	switch code {
	case 0:
		ok = r.call != nil && r.call.Status == idem.StatusSucceeded
	case 1, 64, 255, 75, 137:
		ok = r.call != nil && r.call.Status == idem.StatusFailed && r.call.failure().Code == idem.FailureTool &&
			r.call.failure().Retryable == (code == 75 || code == 137)
	default:
		ok = r.refusal != nil && r.refusal.Code == idem.CodeOutcomeUnknown && r.refusal.Effect == idem.DoubtUnknown
	}
	if !ok {
		return fmt.Errorf("got %v", r)
	}
	return nil
}

// TestCommandSurroundings: a program has what the file says, and nothing of the
// daemon's but its user and its mask.
func TestCommandSurroundings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := preparePrograms(t, dir, []program{{name: "env", script: `exec env`, rerun: idem.RerunHold, timeout: "1m"}})
	d.env = []string{"IDEMD_LOG_LEVEL=debug", "PAY_TOKEN=secret"}
	d.boot(t)
	c := d.post("k", "env", `{}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	var out struct{ Stdout string }
	if err := json.Unmarshal(c.Result, &out); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for line := range strings.Lines(out.Stdout) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = value
	}
	for _, own := range []string{"PWD", "SHLVL", "OLDPWD", "_"} { // shells add them
		delete(got, own)
	}
	want := map[string]string{"PATH": "/usr/bin:/bin", "EFFECT_ID": c.EffectID, "DIR": dir, "WIRE": filepath.Join(dir, "wire")}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the environment is %v, want %v", got, want)
	}
}

// TestExampleMailDeliver runs the program of the example by itself: nothing but 0
// says that a mail is there, and nothing but 0 and a doubt leaves one.
func TestExampleMailDeliver(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs(filepath.Join("..", "..", "..", "examples", "mail", "deliver"))
	if err != nil {
		t.Fatal(err)
	}
	const mail = `{"to":"ann@example.org"}`
	long := `"` + strings.Repeat("x", 100_000) + `"`
	for _, c := range []struct {
		name, id, box, stdin string // a box that is not named is a good one
		before               string // a line of shell
		code                 int
	}{
		{name: "a mail", id: "eff_1", stdin: mail},
		{name: "a long one", id: "eff_1", stdin: long},
		{name: "delivered before", id: "eff_1", stdin: mail, before: `echo old >"$MAILDIR/new/eff_1"`},
		{name: "half of an earlier attempt", id: "eff_1", stdin: mail, before: `echo half >"$MAILDIR/tmp/eff_1"`},
		{name: "no id", stdin: mail, code: 64},
		{name: "an id that is a path", id: "../x", stdin: mail, code: 64},
		{name: "an id with a quote", id: `a"b`, stdin: mail, code: 64},
		{name: "an id of two lines", id: "a\nb", stdin: mail, code: 64},
		{name: "an id beyond ASCII", id: "\u00e9", stdin: mail, code: 64},
		{name: "a box that is not absolute", id: "eff_1", box: "box", stdin: mail, code: 64},
		{name: "no box", id: "eff_1", box: "/no/such/box", stdin: mail, code: 75},
		{name: "no args", id: "eff_1", code: 75},
		{name: "no room for all of it", id: "eff_1", stdin: long, before: `trap "" XFSZ; ulimit -f 1`, code: 75},
		{name: "the box is lost on the way", id: "eff_1", stdin: mail, before: `mv() { return 64; }`, code: 1},
		{name: "the disk fails at the end", id: "eff_1", stdin: mail, before: `sync() { case $1 in */new) return 75 ;; esac; }`, code: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			good := t.TempDir()
			for _, part := range []string{"tmp", "new", "cur"} {
				if err := os.Mkdir(filepath.Join(good, part), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			box := c.box
			if box == "" {
				box = good
			}
			cmd := exec.Command("/bin/sh", "-c", c.before+"\n. "+script)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "EFFECT_ID=" + c.id, "MAILDIR=" + box}
			cmd.Stdin = strings.NewReader(c.stdin)
			var words bytes.Buffer
			cmd.Stderr = &words
			out, _ := cmd.Output() // the code is in ProcessState
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Fatalf("exit code %d, want %d: %s", got, c.code, &words)
			}
			mails, err := os.ReadDir(filepath.Join(good, "new"))
			if err != nil {
				t.Fatal(err)
			}
			if c.code != 0 {
				if len(out) > 0 || c.code != 1 && len(mails) > 0 {
					t.Errorf("it wrote %q and left %v", out, mails)
				}
				return
			}
			got, err := os.ReadFile(filepath.Join(good, "new", c.id))
			if err != nil || string(got) != c.stdin || len(mails) != 1 || string(out) != `{"delivered":"`+c.id+"\"}\n" {
				t.Errorf("it wrote %q and left %v: %.100s, %v", out, mails, got, err)
			}
		})
	}
}
