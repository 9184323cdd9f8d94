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
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	childInUse    = 10
	childOpened   = 11
	childAnswered = 12 // the one thing that must not be
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
	case "fresh", "recycled":
		return childFails(dir, what == "recycled", op)
	}
	return 1
}

// childFails makes one operation on the log fail, and goes on as if nothing had
// happened for as long as it is let.
func childFails(dir string, recycled bool, op string) int {
	fsys := newHookFS(vfs.Default)
	o := testOptions(fsys, dir)
	o.MemTable = minMemTable
	o.Logger = nil
	var reused atomic.Int64
	o.tune = func(p *pebble.Options) {
		p.EventListener.WALCreated = func(i pebble.WALCreateInfo) {
			if i.RecycledFileNum != 0 {
				reused.Add(1)
			}
		}
	}
	s, err := Open(o)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	n := 0
	for ; n < 10 || recycled && reused.Load() == 0; n++ {
		k := keyOf(fmt.Sprintf("good-%d", n))
		if _, err := s.Update(context.Background(), k, fused(k, n)); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	fsys.set(func(o fsOp) error {
		if o.log() && o.name == op {
			return errors.New("injected")
		}
		return nil
	})
	k := keyOf("bad")
	ch, err := s.Update(context.Background(), k, fused(k, n))
	fmt.Println("answered", ch.Verdict, err)
	return childAnswered
}

func runChild(t *testing.T, role, dir string) (code int, output string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "KV_TEST_CHILD="+role, "KV_TEST_DIR="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// After a failed write or sync nothing is answered: the process ends.
func TestFailedWriteEndsTheProcess(t *testing.T) {
	for _, log := range []string{"fresh", "recycled"} {
		for _, op := range []string{"SyncData", "Write"} {
			t.Run(log+" log, "+op, func(t *testing.T) {
				dir := t.TempDir()
				code, out := runChild(t, log+"/"+op, dir)
				if code != exitUntrusted {
					t.Fatalf("exit code %d, want %d\n%s", code, exitUntrusted, out)
				}
				if n := strings.Count(out, "can no longer be trusted"); n != 1 {
					t.Fatalf("%d lines about it, want one\n%s", n, out)
				}
				// The next life has everything that was answered.
				s := openOptions(t, testOptions(nil, dir))
				defer closeStore(t, s)
				for n := range 10 {
					if _, err := s.CallByKey(t.Context(), keyOf(fmt.Sprintf("good-%d", n))); err != nil {
						t.Fatal(n, err)
					}
				}
				checkDisk(t, s)
			})
		}
	}
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
	if code, out := runChild(t, "open", dir); code != childInUse {
		t.Fatalf("another process: exit code %d\n%s", code, out)
	}
	if code, out := runChild(t, "open", link); code != childInUse {
		t.Fatalf("another process, by the link: exit code %d\n%s", code, out)
	}
	update(t, s, keyOf("k"), submit(keyOf("k"), 1))
	closeStore(t, s)
	if code, out := runChild(t, "open", link); code != childOpened {
		t.Fatalf("after the end: exit code %d\n%s", code, out)
	}

	mem := vfs.NewMem()
	openFS(t, mem)
	if _, err := Open(testOptions(mem, "data")); !errors.Is(err, ErrInUse) {
		t.Fatalf("in memory: %v", err)
	}
	closeStore(t, openOptions(t, testOptions(mem, "elsewhere")))
}
