package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// startTime is how long a server may take to listen. A big store takes longer
	// than an empty one.
	startTime = time.Minute

	// stopTime is how long it may take to stop before it is killed.
	stopTime = 30 * time.Second

	// keepTail is how many lines of its stderr are kept for an error.
	keepTail = 5

	// maxLine bounds them, in bytes.
	maxLine = 500
)

// server is a process of ours that answers requests: idemd, or the control.
type server struct {
	name  string
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when the process is gone
	tail  []string      // to be read when it is gone
}

// startDaemon starts idemd on a data directory and waits until it listens.
func startDaemon(ctx context.Context, binary, listen, data string, flags []string) (*server, error) {
	args := append([]string{"serve", "--listen", listen, "--data", data, "--log-level", "warn"}, flags...)
	return startServer(ctx, "idemd", "idemd listening on ", append([]string{binary}, args...), nil)
}

// controlListening is what the control says on stderr, before its URL.
const controlListening = "control listening on "

// startControl starts the control with the answer that it is to give. It ends by
// itself when its stdin does, whatever became of us.
func startControl(ctx context.Context, command []string, a Answer) (*server, error) {
	doc, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return startServer(ctx, "control", controlListening, command, append(doc, '\n'))
}

// startServer starts a process and waits until it says where it listens. in, if
// there is any, is written to its stdin, which stays open.
func startServer(ctx context.Context, name, listening string, command []string, in []byte) (*server, error) {
	cmd := exec.Command(command[0], command[1:]...)
	// What is in the environment for somebody's idemd must not reach this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "IDEMD_") })
	s := &server{name: name, cmd: cmd, ended: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	var stdin io.WriteCloser
	if in != nil {
		if stdin, err = cmd.StdinPipe(); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		s.stdin = stdin
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: %s cannot be started: %w", name, err)
	}
	ready := make(chan string, 1)
	go func() {
		s.tail = readWords(stderr, listening, ready)
		_ = cmd.Wait() // how it ended is in ProcessState
		close(s.ended)
	}()
	if in != nil {
		// A process that does not read ends, or does not listen: seen below.
		_, _ = stdin.Write(in)
	}
	late := time.NewTimer(startTime)
	defer late.Stop()
	select {
	case s.url = <-ready:
		return s, nil
	case <-s.ended:
		err = fmt.Errorf("bench: %s ended (%v) before it listened: %s", name, cmd.ProcessState, s.words())
	case <-late.C:
		err = fmt.Errorf("bench: %s does not listen after %v", name, startTime)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = s.kill()
	return nil, err
}

// readWords reads what a process says until it says no more, and hands over the
// URL that it listens on. It returns the last lines.
func readWords(stderr io.Reader, listening string, ready chan<- string) (tail []string) {
	r := bufio.NewReader(stderr)
	for told := false; ; {
		line, err := r.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			if url, ok := strings.CutPrefix(line, listening); ok && !told {
				told = true
				ready <- url
			}
			if len(line) > maxLine {
				line = line[:maxLine]
			}
			tail = append(tail, line)
			tail = tail[max(0, len(tail)-keepTail):]
		}
		if err != nil {
			return tail
		}
	}
}

// words are the last ones of the process, which is gone.
func (s *server) words() string { return strings.Join(s.tail, "; ") }

// kill ends the process by SIGKILL and waits until it is gone.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("bench: %w", err)
	}
	<-s.ended
	s.closeStdin()
	return nil
}

func (s *server) closeStdin() {
	if s.stdin != nil {
		_ = s.stdin.Close() // closed before, by Wait
	}
}

// stop asks the process to end, and kills it if it does not. It does not look at
// any context: nothing may be left behind. An end that is not a clean one is an
// error.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("bench: %w", err), s.kill())
	}
	s.closeStdin()
	late := time.NewTimer(stopTime)
	defer late.Stop()
	select {
	case <-s.ended:
	case <-late.C:
		return errors.Join(fmt.Errorf("bench: %s does not stop after %v and was killed", s.name, stopTime), s.kill())
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("bench: %s stopped with exit code %d: %s", s.name, code, s.words())
	}
	return nil
}

// cpu is how many seconds of CPU the process has used so far, or -1 where that
// cannot be known.
func (s *server) cpu() float64 {
	if s == nil {
		return -1
	}
	return processCPU(s.cmd.Process.Pid)
}
