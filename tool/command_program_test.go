//go:build unix

package tool

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This test binary is also the programs that the tests run: which one, the
// environment says.
const (
	envProgram = "IDEMD_TEST_PROGRAM"
	envSocket  = "IDEMD_TEST_SOCKET"
	envName    = "IDEMD_TEST_NAME"
)

func init() {
	switch os.Getenv(envProgram) {
	case "":
		return
	case "extra":
		extra()
	case "parent":
		parent()
	case "starved":
		starved()
	}
	os.Exit(98)
}

// presence is what an extra says of itself first.
type presence struct {
	Name            string
	PID, PPID, PGID int
}

// extra calls the test and does what it is told, line by line. Without the test it
// ends.
func extra() {
	conn, err := net.Dial("unix", os.Getenv(envSocket))
	if err != nil {
		os.Exit(96)
	}
	group, _ := syscall.Getpgid(0)
	_ = json.NewEncoder(conn).Encode(presence{os.Getenv(envName), os.Getpid(), os.Getppid(), group})
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "say":
			fmt.Fprint(os.Stdout, rest)
		case "complain":
			fmt.Fprintln(os.Stderr, rest)
		case "deaf":
			signal.Ignore(syscall.SIGTERM)
		case "spawn", "escape": // into the group, and out of it
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), envName+"="+rest)
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: word == "escape"}
			if c.Start() != nil {
				os.Exit(95)
			}
		case "exit":
			code, _ := strconv.Atoi(rest)
			os.Exit(code)
		}
		fmt.Fprintln(conn, "done")
	}
	os.Exit(97)
}

// parent runs an extra as a command, as idemd would.
func parent() {
	c := newCommand("extra", extraCommand(os.Getenv(envSocket), "child"), slog.New(slog.DiscardHandler))
	_, err := c.Invoke(context.Background(), invocation(1, `{}`))
	fmt.Println("it returned:", err)
	os.Exit(94)
}

func extraCommand(socket, name string) *Command {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return &Command{Argv: []string{exe}, Env: map[string]string{envProgram: "extra", envSocket: socket, envName: name}}
}

// actor is an extra as the test sees it. It lives as long as its connection.
type actor struct {
	presence
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
}

// cast makes a socket that extras call. It ends those that are left.
func cast(t *testing.T) (socket string, next func() *actor) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cast") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return socket, func() *actor {
		t.Helper()
		_ = l.SetDeadline(time.Now().Add(patience))
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("nobody came: %v", err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		a := &actor{t: t, conn: conn, lines: bufio.NewReader(conn)}
		if err := json.Unmarshal([]byte(a.line()), &a.presence); err != nil {
			t.Fatal(err)
		}
		return a
	}
}

// patience is how long a test waits for what must come.
const patience = time.Minute

func (a *actor) line() string {
	a.t.Helper()
	_ = a.conn.SetReadDeadline(time.Now().Add(patience))
	s, err := a.lines.ReadString('\n')
	if err != nil {
		a.t.Fatalf("%s says nothing: %v", a.Name, err)
	}
	return s
}

// do has the extra do something, and waits until it has.
func (a *actor) do(what string) {
	a.t.Helper()
	a.tell(what)
	if got := a.line(); got != "done\n" {
		a.t.Fatalf("%s says %q", a.Name, got)
	}
}

func (a *actor) tell(what string) {
	a.t.Helper()
	if _, err := fmt.Fprintln(a.conn, what); err != nil {
		a.t.Fatal(err)
	}
}

// gone waits for the end of the extra's process, and fails if it does not come.
func (a *actor) gone() {
	a.t.Helper()
	_ = a.conn.SetReadDeadline(time.Now().Add(patience))
	rest, err := io.ReadAll(a.lines)
	if err != nil || len(rest) > 0 {
		a.t.Fatalf("%s does not end: %q, %v", a.Name, rest, err)
	}
}
