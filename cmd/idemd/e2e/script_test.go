//go:build unix

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const faultScript = "../../../scripts/fault_inject.sh"

// runScript runs the script that injects faults, on a program, and returns what it
// said and its exit code. Nothing that it made is left.
func runScript(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{faultScript}, args...)...)
	cmd.Env = append(os.Environ(), "IDEMD="+program, "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatalf("bash and curl are needed: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// The script shows the evidence for every fault and agrees with it.
func TestFaultScript(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string][]string{
		"--drop-response": {"status 000, replayed: \n", "status 200, replayed: true", "the ledger is clean", "attempts       1=1", "succeeded"},
		"--crash":         {"before_commit=exit", "expected    6", "the ledger is clean", "duplicates  0"},
		"--concurrent":    {"status 200, replayed: false", "deliveries     20", "the ledger is clean"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			out, code := runScript(t, binary, fault)
			if code != 0 {
				t.Errorf("exit code %d", code)
			}
			for _, s := range append(want, "all as it should be") {
				if !strings.Contains(out, s) {
					t.Errorf("it does not say %q", s)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// A ledger that is not clean is not called so.
func TestFaultScriptCanFail(t *testing.T) {
	t.Parallel()
	wrong := filepath.Join(t.TempDir(), "idemd")
	text := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = reconcile ] && exit 1\nexec %s \"$@\"\n", binary)
	if err := os.WriteFile(wrong, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, code := runScript(t, wrong, "--concurrent"); code != 1 || !strings.Contains(out, "NOT as it should be") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// What is set for somebody's idemd or curl does not reach the script's, and a program
// may be anywhere.
func TestFaultScriptSurroundings(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte("user-agent = x\nfail\nproxy = http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "a program")
	if err := os.Symlink(binary, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", faultScript, "--concurrent")
	cmd.Env = append(os.Environ(), "IDEMD="+program, "TMPDIR="+t.TempDir(), "HOME="+home, "CURL_HOME="+home,
		"IDEMD_NO_SAMPLES=true", "IDEMD_COLUMN=nothing", "IDEMD_NAMESPACE=other", "http_proxy=http://127.0.0.1:1", "ALL_PROXY=http://127.0.0.1:1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all as it should be") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A script that is ended while a program of its own starts leaves neither the program
// nor a directory.
func TestFaultScriptEnded(t *testing.T) {
	t.Parallel()
	// Where these tests run under nohup, what they start would ignore it as well.
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hups) })
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir, temp := t.TempDir(), t.TempDir()
			life := filepath.Join(dir, "life") // is open for writing as long as the program lives
			if err := syscall.Mkfifo(life, 0o600); err != nil {
				t.Fatal(err)
			}
			slow := filepath.Join(dir, "idemd")
			if err := os.WriteFile(slow, fmt.Appendf(nil, "#!/bin/sh\nexec 9>%s\necho lives >&9\nexec sleep 600\n", life), 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "bash", faultScript)
			cmd.Env = append(os.Environ(), "IDEMD="+slow, "TMPDIR="+temp)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(life)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r := bufio.NewReader(f)
			if line, err := r.ReadString('\n'); err != nil || line != "lives\n" {
				t.Fatal(line, err)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it ended as if it were done")
			}
			if b, err := r.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%q, %v", b, err)
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

// A dry run starts nothing and needs nothing.
func TestFaultScriptDryRun(t *testing.T) {
	t.Parallel()
	out, code := runScript(t, "/no/such/program", "--dry-run")
	if code != 0 || !strings.Contains(out, "curl") || strings.Contains(out, "status 200, ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if out, code := runScript(t, "/no/such/program"); code != 3 {
		t.Errorf("without the program: exit code %d\n%s", code, out)
	}
	if out, code := runScript(t, binary, "--no-such-fault"); code != 2 {
		t.Errorf("an unknown fault: exit code %d\n%s", code, out)
	}
}
