package probe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ErrLedgerInUse is that another process, or another [Downstream] of this one, has
// the ledger open.
var ErrLedgerInUse = errors.New("probe: the ledger is in use")

// DownstreamEntry is a line of a [Downstream]'s ledger: an effect that happened.
type DownstreamEntry struct {
	Number   int         `json:"entry"`            // in the ledger, from 1
	EffectID string      `json:"effect_id"`        // what the request named
	Intent   string      `json:"intent,omitempty"` // member of the body, where it is a string
	Amount   json.Number `json:"amount,omitempty"` // member of the body, where it is a number; as it was written
	At       time.Time   `json:"at"`
	Attempt  int         `json:"attempt_seq"` // which request of the id did it, from 1

	// Body is the SHA-256 of the request's body, in hexadecimal digits.
	Body string `json:"body_sha256"`

	// Answer is the body of the answer, which later requests of the id get again
	// from a service that honours ids.
	Answer string `json:"answer"`
}

// span is where a line of the ledger is, without its line feed.
type span struct {
	offset int64
	length int
}

// effectLedger is the file. A line is there, synced, before anybody is told of it.
type effectLedger struct {
	f *os.File

	mu     sync.Mutex // one line after the other
	size   int64
	lines  int
	broken error // after a failed write nobody knows what is in the file
}

// maxLedgerLine bounds a line. What goes into one is bounded far below it.
const maxLedgerLine = 64 << 10

// openEffectLedger opens a ledger, makes it where there is none, locks it until
// close, and hands what is in it to each. torn is how many bytes were cut off at its
// end: a line that was never finished, of which nobody was told.
func openEffectLedger(path string, each func(DownstreamEntry, span)) (l *effectLedger, torn int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("probe: the ledger: %w", err)
	}
	l = &effectLedger{f: f}
	if torn, err = l.load(path, each); err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return l, torn, nil
}

func (l *effectLedger) load(path string, each func(DownstreamEntry, span)) (torn int64, err error) {
	st, err := l.f.Stat()
	switch {
	case err != nil:
		return 0, fmt.Errorf("probe: the ledger: %w", err)
	case !st.Mode().IsRegular():
		return 0, fmt.Errorf("probe: the ledger %s is not a regular file", path)
	}
	// The lock is on the file itself and goes with the process, however it ends.
	switch err := syscall.Flock(int(l.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return 0, fmt.Errorf("%w: %s", ErrLedgerInUse, path)
	case err != nil:
		return 0, fmt.Errorf("probe: the ledger cannot be locked: %w", err)
	}
	r := bufio.NewReaderSize(l.f, maxLedgerLine)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			torn = int64(len(line))
			break
		}
		bad := func(reason any) error {
			return fmt.Errorf("probe: the ledger %s: line %d: %v; the file is left as it is", path, l.lines+1, reason)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, bad("it is too long to be of this service")
		case err != nil:
			return 0, fmt.Errorf("probe: the ledger: %w", err)
		}
		var e DownstreamEntry
		text := bytes.TrimSuffix(line, []byte{'\n'})
		if err := json.Unmarshal(text, &e); err != nil {
			return 0, bad(err)
		}
		if e.Number != l.lines+1 || e.EffectID == "" {
			return 0, bad(fmt.Sprintf("it is entry %d of id %q", e.Number, shorten(e.EffectID)))
		}
		each(e, span{l.size, len(text)})
		l.size += int64(len(line))
		l.lines++
	}
	if torn > 0 {
		err = l.f.Truncate(l.size)
	}
	if err == nil {
		err = l.f.Sync()
	}
	if err == nil {
		err = syncDir(filepath.Dir(path)) // or a file that was made now may be gone after a crash
	}
	if err != nil {
		return 0, fmt.Errorf("probe: the ledger: %w", err)
	}
	return torn, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// append makes an effect happen: it gives e its number and its answer, and returns
// when the line is durable.
func (l *effectLedger) append(e *DownstreamEntry) (span, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return span{}, l.broken
	}
	e.Number = l.lines + 1
	answer, err := json.Marshal(struct {
		EffectID string      `json:"effect_id"`
		Entry    int         `json:"entry"`
		Amount   json.Number `json:"amount,omitempty"`
	}{e.EffectID, e.Number, e.Amount})
	if err != nil {
		return span{}, fmt.Errorf("probe: the ledger: %w", err)
	}
	e.Answer = string(answer)
	line, err := json.Marshal(e)
	if err != nil {
		return span{}, fmt.Errorf("probe: the ledger: %w", err)
	}
	at := span{l.size, len(line)}
	if _, err = l.f.Write(append(line, '\n')); err == nil {
		err = l.f.Sync()
	}
	if err != nil {
		l.broken = fmt.Errorf("probe: the ledger could not be written: %w", err)
		return span{}, l.broken
	}
	l.size += int64(len(line)) + 1
	l.lines++
	return at, nil
}

// line reads a line as it is in the file.
func (l *effectLedger) line(at span) ([]byte, error) {
	b := make([]byte, at.length)
	if _, err := l.f.ReadAt(b, at.offset); err != nil {
		return nil, fmt.Errorf("probe: the ledger: %w", err)
	}
	return b, nil
}

// entry reads a line.
func (l *effectLedger) entry(at span) (e DownstreamEntry, err error) {
	b, err := l.line(at)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("probe: the ledger: %w", err)
	}
	return e, nil
}

// all is the ledger as it is now, in whole lines.
func (l *effectLedger) all() io.Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return io.NewSectionReader(l.f, 0, l.size)
}

// entries reads the whole ledger.
func (l *effectLedger) entries() (all []DownstreamEntry, err error) {
	for dec := json.NewDecoder(l.all()); ; {
		var e DownstreamEntry
		switch err := dec.Decode(&e); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("probe: the ledger: %w", err)
		}
		all = append(all, e)
	}
}

// close gives the ledger to others.
func (l *effectLedger) close() error {
	if err := l.f.Close(); err != nil {
		return fmt.Errorf("probe: the ledger: %w", err)
	}
	return nil
}
