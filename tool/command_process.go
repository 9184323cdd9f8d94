package tool

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// drainWait is how long the pipes of a program that has ended are read on while
	// somebody out of reach holds them open. What the program itself wrote is read
	// in any case.
	drainWait = 250 * time.Millisecond

	// maxPipe is as much as a pipe can hold, unless the machine was told otherwise.
	maxPipe = 1 << 20
)

// pipes are the three standard handles of a program: their ends, and ours.
type pipes struct {
	theirs [3]*os.File
	ours   [3]*os.File
}

func openPipes() (*pipes, error) {
	p := &pipes{}
	for i := range p.theirs {
		r, w, err := os.Pipe()
		if err != nil {
			p.closeTheirs()
			p.closeOurs()
			return nil, err
		}
		if i == 0 {
			p.theirs[i], p.ours[i] = r, w
		} else {
			p.theirs[i], p.ours[i] = w, r
		}
	}
	return p, nil
}

func (p *pipes) closeTheirs() { closeAll(p.theirs) }
func (p *pipes) closeOurs()   { closeAll(p.ours) }

func closeAll(files [3]*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// process is a program that runs, the leader of its own group.
type process struct {
	leader *os.Process
	pipes  *pipes
	out    keptOutput
	err    stderrLog
	copies sync.WaitGroup

	ended chan struct{} // the leader has ended

	// What came of the leader, once ended is closed, where the system cannot tell
	// of an end without reaping. Nil: it is not reaped.
	state   *os.ProcessState
	waitErr error
}

func newProcess(leader *os.Process, pipes *pipes, args []byte, log *slog.Logger) *process {
	p := &process{leader: leader, pipes: pipes, err: newStderrLog(log), ended: make(chan struct{})}
	p.copies.Go(func() {
		// A program need not read its args: a broken pipe is no error.
		_, _ = pipes.ours[0].Write(args)
		_ = pipes.ours[0].Close()
	})
	p.copies.Go(func() { _, _ = io.Copy(&p.out, pipes.ours[1]) })
	p.copies.Go(func() { _, _ = io.Copy(&p.err, pipes.ours[2]) })
	go func() {
		defer close(p.ended)
		if !awaitEnd(leader.Pid) {
			p.state, p.waitErr = leader.Wait()
		}
	}()
	return p
}

// await returns when the leader has ended. It returns nil if it ended by itself,
// and otherwise why it was ended.
func (p *process) await(ctx context.Context, closing <-chan struct{}) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
	case <-closing:
	}
	select {
	case <-p.ended: // at the same moment: its answer counts
		return nil
	default:
	}
	why := errCommandClosed
	if err := ctx.Err(); err != nil {
		why = fmt.Errorf("tool: the command was ended: %w", err)
		signalGroup(p.leader.Pid, syscall.SIGTERM)
		grace := time.NewTimer(commandGrace)
		defer grace.Stop()
		select {
		case <-p.ended:
			return why
		case <-grace.C:
		}
	}
	signalGroup(p.leader.Pid, syscall.SIGKILL)
	<-p.ended
	return why
}

// finish ends what is left of the group of a leader that has ended, takes what it
// wrote, and gives everything back. It does not wait for those who hold the pipes
// if what they hold is not wanted.
//
// The group is killed before its leader is reaped: until then no other process
// can get its number, which the group goes by. Where the system cannot do that
// (see awaitEnd), there is a moment between the two.
func (p *process) finish(wanted bool) (*os.ProcessState, error) {
	signalGroup(p.leader.Pid, syscall.SIGKILL)
	state, err := p.state, p.waitErr
	if state == nil && err == nil {
		state, err = p.leader.Wait()
	}
	p.drain(wanted)
	p.pipes.closeOurs()
	p.err.finish()
	return state, err
}

func (p *process) drain(wanted bool) {
	_ = p.pipes.ours[0].Close() // ends a write that nobody reads
	copied := make(chan struct{})
	go func() {
		p.copies.Wait()
		close(copied)
	}()
	if wanted {
		limit := time.NewTimer(drainWait)
		defer limit.Stop()
		select {
		case <-copied:
			return
		case <-limit.C:
		}
	}
	out, err := p.pipes.ours[1], p.pipes.ours[2]
	past := time.Unix(1, 0)
	_, _ = out.SetReadDeadline(past), err.SetReadDeadline(past)
	<-copied
	sweep(&p.out, out)
	sweep(&p.err, err)
}

// sweep takes what a pipe holds at this moment, and waits for nothing. A leader's
// output was there when it ended, so none of it is missed, however late the copying
// was. It is bounded, since a process out of reach may write on.
func sweep(to io.Writer, pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		b := make([]byte, 32<<10)
		for taken := 0; taken < maxPipe; {
			n, err := syscall.Read(int(fd), b)
			if err == syscall.EINTR {
				continue
			}
			if n <= 0 || err != nil { // the end, or empty (EAGAIN)
				return
			}
			_, _ = to.Write(b[:n])
			taken += n
		}
	})
}

// signalGroup signals a program and what it started, except what left its group.
func signalGroup(leader int, sig syscall.Signal) {
	_ = syscall.Kill(-leader, sig) // nobody there is as well
}
