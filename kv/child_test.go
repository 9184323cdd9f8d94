package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	childInUse    = 10
	childOpened   = 11
	childAnswered = 12 // the one thing that must not be
	childHealed   = 13 // the disk was mended in time
	childRefused  = 14 // Open, or the first change, returned an error
	childUnharmed = 15 // nothing failed
)

// child is what the test binary does when a test starts it once more.
func child(role string) int {
	dir := os.Getenv("KV_TEST_DIR")
	what, op, _ := strings.Cut(role, "/")
	switch what {
	case "open":
		s, err := Open(testOptions(nil, dir))
		switch {
		case errors.Is(err, ErrInUse):
			return childInUse
		case err != nil:
			fmt.Println(err)
			return 1
		}
		_ = s.Close() // the answer is that it opened
		return childOpened
	case "fault":
		return childFails(dir, op)
	case "open failing":
		return childOpens(dir, op)
	}
	return 1
}

// runChild starts the test binary in a role. What it logs and what it prints
// are apart, since both are judged.
func runChild(t *testing.T, role, dir string) (code int, output, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // it hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it says where
	cmd.Env = append(os.Environ(), "KV_TEST_CHILD="+role, "KV_TEST_DIR="+dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	s := openOptions(t, testOptions(nil, dir))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	refused := func(where string) {
		t.Helper()
		if again, err := Open(testOptions(nil, where)); !errors.Is(err, ErrInUse) {
			t.Fatalf("open at %s: %v, %v", where, again, err)
		}
	}
	refused(dir)
	refused(dir + "/")
	refused(link)
	// A refused alias must not have given the lock away.
	if code, out, _ := runChild(t, "open", dir); code != childInUse {
		t.Fatalf("another process: exit code %d\n%s", code, out)
	}
	if code, out, _ := runChild(t, "open", link); code != childInUse {
		t.Fatalf("another process, by the link: exit code %d\n%s", code, out)
	}
	update(t, s, keyOf("k"), submit(keyOf("k"), 1))
	closeStore(t, s)
	if code, out, _ := runChild(t, "open", link); code != childOpened {
		t.Fatalf("after the end: exit code %d\n%s", code, out)
	}

	mem := vfs.NewMem()
	openFS(t, mem)
	if _, err := Open(testOptions(mem, "data")); !errors.Is(err, ErrInUse) {
		t.Fatalf("in memory: %v", err)
	}
	closeStore(t, openOptions(t, testOptions(mem, "elsewhere")))
}
