//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

// TestInspect looks at a store that is in use, at one whose server was killed,
// and at one whose server was stopped.
func TestInspect(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	for n := range 5 {
		d.post(fmt.Sprintf("order-%d", n), "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	}
	if _, words, code := command(t, "inspect", d.dir); code != exitInUse || !strings.Contains(words, "in use") {
		t.Errorf("exit code %d while it runs: %s", code, words)
	}
	d.post("order-5", "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded) // nothing was disturbed
	d.post("waiting", "ext_rerun", `{"do":"hang"}`)

	d.kill(t)
	want := func(when string, lines ...string) {
		t.Helper()
		report, words, code := command(t, "inspect", d.dir)
		if code != 0 || !strings.Contains(words, "is sound") {
			t.Errorf("%s: exit code %d, %s\n%s", when, code, words, report)
		}
		for _, l := range lines {
			if !strings.Contains(report, l+"\n") {
				t.Errorf("%s: no line %q in\n%s", when, l, report)
			}
		}
	}
	for range 2 { // the first changes nothing for the second
		want("killed", "calls            7", "effects          6", "by_status        running=1 succeeded=6", "markers          1")
	}
	d.boot(t)
	d.stop(t)
	want("stopped", "calls            7", "effects          6")
}

// TestEnough closes the pipe after the first line, as head does.
func TestEnough(t *testing.T) {
	t.Parallel()
	d := start(t)
	for n := range 3 {
		d.post(fmt.Sprintf("order-%d", n), "charge", `{"amount":1}`, wait(20)).wantEnd(t, idem.StatusSucceeded)
	}
	for _, args := range [][]string{{"effects", "--json"}, {"effects"}, {"list", "--all"}} {
		whole, _, code := command(t, append(args, "--url", d.now().url)...)
		if n := strings.Count(whole, "\n"); code != 0 || n < 3 {
			t.Errorf("%v: exit code %d, %d lines", args, code, n)
		}
		cmd := exec.Command(binary, append(args, "--url", d.now().url)...)
		cmd.Env = cleanEnv()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReaderSize(out, 16).ReadString('\n'); err != nil {
			t.Errorf("%v: %q, %v", args, line, err)
		}
		out.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	// Nobody reads from the beginning.
	sh := exec.Command("sh", "-c", `{ "$0" list --all --json --url "$1"; echo "code $?" >&2; } | true`, binary, d.now().url)
	sh.Env = cleanEnv()
	var words strings.Builder
	sh.Stderr = &words
	if err := sh.Run(); err != nil || words.String() != "code 0\n" {
		t.Errorf("%v, %q", err, words.String())
	}
}
