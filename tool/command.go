package tool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/idemd/idemd/idem"
)

const (
	// commandGrace is how long a program may take to end after SIGTERM, before
	// SIGKILL. Too short: it cannot tidy up. It must be below the second that the
	// runner gives at a stop, and so below its grace after a time-out, or each
	// stubborn program is an abandoned attempt.
	commandGrace = 750 * time.Millisecond

	// closeWait is how long Close waits for programs that were killed. It is long
	// only where the kernel does not let go of one (a dead network file system).
	closeWait = 2 * time.Second
)

var errCommandClosed = errors.New("tool: the command was killed, since its tool was closed")

// commandTool runs a program of this machine for each attempt.
//
// Where it can, it makes a program end with idemd, however idemd ends: the next
// life claims at once, and must not meet a program of this one that is still at
// work. It reaches the program itself and, as long as idemd lives, its process
// group. Out of reach is a process that left the group (setsid), and, once idemd
// was killed, all that the program had started.
type commandTool struct {
	name string
	spec Command
	log  *slog.Logger

	launches chan launch
	quit     chan struct{} // ends the launcher
	ended    chan struct{} // the launcher has ended
	closing  chan struct{} // kills what runs

	mu      sync.Mutex
	begun   bool // there is a launcher
	closed  bool
	running sync.WaitGroup // Invoke
}

// launch asks the launcher for a process.
type launch struct {
	path   string
	argv   []string
	attr   *os.ProcAttr
	answer chan<- launched // takes one
}

type launched struct {
	process *os.Process
	err     error
}

// newCommand makes the tool that runs c. It starts nothing until it is invoked.
func newCommand(name string, c *Command, log *slog.Logger) *commandTool {
	return &commandTool{
		name:     name,
		spec:     *c,
		log:      log,
		launches: make(chan launch),
		quit:     make(chan struct{}),
		ended:    make(chan struct{}),
		closing:  make(chan struct{}),
	}
}

// Invoke runs the program once: the args are its stdin, its stdout is the result.
// Exit code 0 is success, also where the program did not read what it was given.
// The error is a Failure where the exit code is declared as one, or where the
// program was not begun. Any other end, and the end of ctx, means that nobody
// knows; by then the program is gone.
func (t *commandTool) Invoke(ctx context.Context, inv idem.Invocation) (idem.Result, error) {
	if !t.enter() {
		return idem.Result{}, notBegun("the tool is closed")
	}
	defer t.running.Done()
	log := t.log.With("tool", t.name, "call_id", inv.CallID.String(), "attempt", inv.Attempt)
	p, err := t.begin(ctx, inv, log)
	if err != nil {
		return idem.Result{}, err
	}
	stopped := p.await(ctx, t.closing)
	state, err := p.finish(stopped == nil)
	switch {
	case stopped != nil:
		return idem.Result{}, stopped // whatever it answered to the signal
	case err != nil:
		return idem.Result{}, fmt.Errorf("tool: how the command ended is not known: %w", err)
	case state.Success():
		return p.out.result(), nil
	}
	code := state.ExitCode() // -1 after a signal, which no list can hold
	final, retryable := slices.Contains(t.spec.FinalExit, code), slices.Contains(t.spec.RetryableExit, code)
	if code < 0 || final == retryable {
		return idem.Result{}, fmt.Errorf("tool: the command ended with %s", state)
	}
	return idem.Result{}, &idem.Failure{
		Code:      idem.FailureTool,
		Message:   fmt.Sprintf("the command exited with %d", code),
		Retryable: retryable,
	}
}

// notBegun is a failure: no program ran. It names no path, since it is shown to
// clients.
func notBegun(why string) *idem.Failure {
	return &idem.Failure{Code: failureUnreachable, Message: why, Retryable: true}
}

// begin starts the program. Every error is one from before its first instruction.
func (t *commandTool) begin(ctx context.Context, inv idem.Invocation, log *slog.Logger) (*process, error) {
	if ctx.Err() != nil {
		return nil, notBegun("the time was over before the command was started")
	}
	pipes, err := openPipes()
	if err != nil {
		log.Warn("the command cannot be started", "path", t.spec.Argv[0], "err", err)
		return nil, notBegun("the command could not be started")
	}
	defer pipes.closeTheirs()
	answer := make(chan launched, 1)
	l := launch{path: t.spec.Argv[0], argv: t.argv(inv.EffectID), answer: answer, attr: &os.ProcAttr{
		Dir:   "/",
		Env:   t.env(inv.EffectID),
		Files: pipes.theirs[:],
		Sys:   processAttributes(),
	}}
	select {
	case t.launches <- l:
	case <-ctx.Done():
		pipes.closeOurs()
		return nil, notBegun("the time was over before the command was started")
	case <-t.closing:
		pipes.closeOurs()
		return nil, notBegun("the tool is closed")
	}
	got := <-answer // from here on it may have begun, so that nothing but the answer counts
	if got.err != nil {
		pipes.closeOurs()
		log.Warn("the command cannot be started", "path", t.spec.Argv[0], "err", got.err)
		return nil, notBegun("the command could not be started")
	}
	return newProcess(got.process, pipes, inv.Args, log), nil
}

// argv is what the program is given. The program itself is never chosen by an id.
func (t *commandTool) argv(effectID string) []string {
	argv := slices.Clone(t.spec.Argv)
	for i := 1; i < len(argv); i++ {
		argv[i] = strings.ReplaceAll(argv[i], effectIDMark, effectID)
	}
	return argv
}

// env is the whole environment. It is never nil: that would be idemd's own, with
// all its secrets.
func (t *commandTool) env(effectID string) []string {
	env := make([]string, 0, len(t.spec.Env))
	for _, name := range slices.Sorted(maps.Keys(t.spec.Env)) {
		env = append(env, name+"="+strings.ReplaceAll(t.spec.Env[name], effectIDMark, effectID))
	}
	return env
}

// enter counts an invocation, and starts the launcher for the first one.
func (t *commandTool) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if !t.begun {
		t.begun = true
		go t.launcher()
	}
	t.running.Add(1)
	return true
}

// launcher starts every program, on a thread of its own. On Linux a program is
// told of the death of the thread that started it, not of the process: were it
// one of the runtime's, each could be killed at any time, whenever the runtime
// ends the thread. The thread ends with this goroutine, and kills what it
// started; so this must not return before everything has ended, or was given up.
func (t *commandTool) launcher() {
	defer close(t.ended)
	runtime.LockOSThread() // never unlocked: the thread goes with it
	keepHandles()
	catchPipe()
	for {
		select {
		case l := <-t.launches:
			p, err := os.StartProcess(l.path, l.argv, l.attr)
			l.answer <- launched{p, err}
		case <-t.quit:
			return
		}
	}
}

// keepHandles keeps from programs the handles that idemd was itself started with,
// such as those that a shell or a supervisor left open. Its own are marked already,
// so that there can be none that come later. Where there is no /dev/fd it does
// nothing.
func keepHandles() {
	handles, _ := os.ReadDir("/dev/fd")
	for _, h := range handles {
		if fd, err := strconv.Atoi(h.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// catchPipe has programs begin with SIGPIPE as the system has it, also where idemd
// ignores the signal: what is ignored stays so in a program, and the first part of
// "producer | head" would go on until its time is over. What is caught does not stay,
// and does not end idemd either.
func catchPipe() {
	if signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
}

// Close kills the programs that run, with their groups, and waits for their ends,
// for two seconds at most. They should have ended before: what they did is not
// known. Nothing is started afterwards. The error says that one could not be
// ended in time.
func (t *commandTool) Close() error {
	t.mu.Lock()
	first, begun := !t.closed, t.begun
	t.closed = true
	if first {
		close(t.closing)
	}
	t.mu.Unlock()
	if !first {
		return nil
	}
	idle := make(chan struct{})
	go func() {
		t.running.Wait()
		close(t.quit)
		if begun {
			<-t.ended
		}
		close(idle)
	}()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-idle:
		return nil
	case <-limit.C:
		return fmt.Errorf("tool: a command of %s does not end", t.name)
	}
}

// keptOutput keeps the beginning of what a program writes to stdout, as much as
// may be stored and a byte more, and lets the rest go: a program that was not read
// to its end would block, or die of SIGPIPE, after its effect.
type keptOutput struct {
	buf bytes.Buffer
}

func (k *keptOutput) Write(b []byte) (int, error) {
	k.buf.Write(b[:min(len(b), idem.MaxOutput+1-k.buf.Len())])
	return len(b), nil
}

func (k *keptOutput) result() idem.Result {
	raw := k.buf.Bytes()
	return answerResult(raw[:min(len(raw), idem.MaxOutput)], len(raw) > idem.MaxOutput, "stdout", 0)
}
