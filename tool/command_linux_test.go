package tool

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The next life of a killed idemd claims at once: a command must not live on.
func TestCommandParentDeath(t *testing.T) {
	socket, next := cast(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(exe)
	parent.Env = []string{envProgram + "=parent", envSocket + "=" + socket}
	parent.Stderr = os.Stderr
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	child := next()
	if child.PPID != parent.Process.Pid {
		t.Errorf("%+v is not a child of %d", child.presence, parent.Process.Pid)
	}
	child.do("deaf") // it lives, and only SIGKILL can end it
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	child.gone()
}

// Threads of the runtime come and go, and no command dies of it: each is started by
// the one thread that stays.
func TestCommandThreads(t *testing.T) {
	const commands, rounds, threads = 8, 20, 20
	socket, next := cast(t)
	tool, _ := command(t, extraCommand(socket, "extra"))
	churn := func() {
		var all sync.WaitGroup
		for range threads {
			all.Go(func() {
				runtime.LockOSThread() // and never unlocked: the thread ends
				runtime.Gosched()
			})
		}
		all.Wait()
	}
	var got []<-chan result
	var actors []*actor
	for range commands {
		c := make(chan result, 1)
		go func() {
			res, err := tool.Invoke(context.Background(), invocation(1, `{}`))
			c <- result{res, err}
		}()
		churn()
		got = append(got, c)
		actors = append(actors, next())
	}
	for range rounds {
		churn()
		for _, a := range actors {
			a.do("deaf") // it lives
		}
	}
	for _, a := range actors {
		a.tell("exit 0")
	}
	for _, c := range got {
		if r := <-c; r.err != nil {
			t.Error(r.err)
		}
	}
}

func TestCommandHandles(t *testing.T) {
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	t.Run("a command inherits none but its three", func(t *testing.T) {
		stray, err := syscall.Dup(2) // as one that idemd was started with
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Close(stray) }()
		tool, _ := command(t, &Command{Argv: []string{"/bin/ls", "/proc/self/fd"}})
		res, err := tool.Invoke(t.Context(), invocation(1, `{}`))
		// The fourth is the directory that it reads.
		if want := `{"stdout":"0\n1\n2\n3\n"}`; err != nil || string(res.Output) != want {
			t.Errorf("got %s, %v, want %s", res.Output, err, want)
		}
	})
	t.Run("all are given back", func(t *testing.T) {
		good, _ := shell(t, `echo x >&2; echo x`)
		bad, _ := command(t, &Command{Argv: []string{"/no/such/program"}})
		run := func() {
			if _, err := good.Invoke(t.Context(), invocation(1, strings.Repeat(" ", 100_000))); err != nil {
				t.Fatal(err)
			}
			_, err := bad.Invoke(t.Context(), invocation(1, `{}`))
			wantNotBegun(t, err)
		}
		run()
		before := count()
		for range 20 {
			run()
		}
		if after := count(); after > before {
			t.Errorf("%d handles, %d before", after, before)
		}
	})
}
