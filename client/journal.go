package client

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/idemd/idemd/idem"
)

// Errors of a journal; they lie behind an *Error with CodeJournal where a request
// was refused by it.
var (
	ErrJournalInUse  = errors.New("client: the journal is in use by another process")
	ErrJournalDamage = errors.New("client: the journal is damaged")
	ErrJournalFull   = errors.New("client: the journal is full of requests whose outcome is not known")
	ErrJournalBytes  = errors.New("client: the journal has this key with another request")
	ErrJournalClosed = errors.New("client: the journal is closed")
	ErrJournalMoved  = errors.New("client: the journal's file was moved, removed or replaced while it was open")
)

const (
	journalVersion = 1

	// maxOpenBytes is how much requests without a known outcome may take in
	// the file, and in memory.
	maxOpenBytes = 64 << 20

	// maxEnded is how many keys with a known outcome are remembered.
	maxEnded = 1000

	// maxFile is more than the file can get: what is open, twice over before it
	// is written anew, the ends of all that, and what is remembered.
	maxFile = 4*maxOpenBytes + minWaste

	// minWaste is how much of the file may be of no use before it is written
	// anew.
	minWaste = 1 << 20
)

// Journal is a file that keeps the key and the bytes of every request from before
// the first send until its outcome is known, so that a client that was killed goes
// on with the same key and the same bytes. One process at a time may have it
// open; it serves one server.
//
// A request is in the file, and the file is synced, before anything is sent. It
// stays open until it is known whether it was done, and is then noted as ended:
// also when it was refused for certain, since the caller was told so and may act
// on it. The note of a success is not synced: if it is lost, Resume asks once too
// often and gets the original answer.
//
// The file is a line of checked JSON for each note, only ever appended to. A crash
// can leave the last line unfinished; such a line was never sent, and is cut
// off. Damage anywhere else is an error, and the file is left as it is.
//
// Requests without a known outcome may take 64 MiB; more are refused before they
// are sent. The newest 1000 ended keys are remembered, to refuse another request
// under the same key early; of older ones the server's fingerprint takes care. The
// file is written anew, to a second file that then takes its name, when more than
// 1 MiB and more than half of it is of no use.
//
// Whoever moves, removes or replaces the file of an open journal finds it noticed at
// the next request, which is refused: what is noted where nobody looks is lost.
//
// The lock is flock's on the file itself, not on a file beside it, so that it goes
// with the process, however it ends, and nothing stale is left.
type Journal struct {
	path string

	mu      sync.Mutex
	f       *os.File
	broken  error // after a failed write nobody knows what is in the file
	entries map[string]*entry
	ended   []string // keys, oldest first; one may be there twice, or open again
	seq     int      // grows with every note
	size    int64    // of the file
	live    int64    // what the file would be without waste
	opened  int64    // what open entries take of it
	limit   int64    // of opened
}

// entry is a key of the journal.
type entry struct {
	record
	line  int64 // bytes of its last line
	seq   int
	users int // calls of this process that are under way

	// unsure is that one of those has returned and did not know. What another
	// one of them was refused does not settle it then.
	unsure bool
}

// record is a line of the journal.
type record struct {
	Op      string     `json:"op"`                // journal, begin, end
	Version int        `json:"version,omitempty"` // of op journal
	Key     string     `json:"key,omitempty"`
	Tool    string     `json:"tool,omitempty"`
	Began   time.Time  `json:"began,omitzero"`
	Body    []byte     `json:"body,omitempty"`   // of op begin
	Digest  []byte     `json:"digest,omitempty"` // SHA-256 of the body
	Effect  idem.Doubt `json:"effect,omitempty"` // of op end
	Expires time.Time  `json:"expires,omitzero"` // of op end: the end of the window
}

const (
	opJournal = "journal"
	opBegin   = "begin"
	opEnd     = "end"
)

func (r *record) isOpen() bool { return r.Op == opBegin }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes a line: a checksum of the JSON, a blank, the JSON.
func (r *record) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("client: journal: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(b, castagnoli), b), nil
}

// decode reads a line without its end.
func decode(line []byte) (record, error) {
	var r record
	sum, text, ok := bytes.Cut(line, []byte{' '})
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) {
		return r, errors.New("the checksum is wrong")
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	return r, nil
}

// OpenJournal opens a journal, and makes it where there is none, for its owner's
// eyes only. The error matches ErrJournalInUse or ErrJournalDamage where it is
// that; the file is then left as it is.
func OpenJournal(path string) (*Journal, error) {
	f, err := openLocked(path)
	if err != nil {
		return nil, err
	}
	// A link stays one when the file is written anew. It is followed only now,
	// since it may have led to nothing until the file was made.
	if path, err = filepath.Abs(path); err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: journal: %w", err), f.Close())
	}
	j := &Journal{path: path, f: f, entries: map[string]*entry{}, limit: maxOpenBytes}
	if err := j.load(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// openLocked opens and locks a file. Whoever has the lock may give the name to
// another file, so that the one that was locked may not be the one that counts.
func openLocked(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("client: journal: %w", err)
		}
		if err := lock(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		locked, err := f.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("client: journal: %w", err), f.Close())
		}
		if !locked.Mode().IsRegular() {
			return nil, errors.Join(fmt.Errorf("client: journal: %s is not a regular file", path), f.Close())
		}
		named, err := os.Stat(path)
		if err == nil && os.SameFile(locked, named) {
			return f, nil
		}
		_ = f.Close() // it has another name by now, or none
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("client: journal: %w", err)
		}
	}
}

func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return ErrJournalInUse
	case err != nil:
		return fmt.Errorf("client: the journal cannot be locked: %w", err)
	}
	return nil
}

// load reads the file, and begins one that is empty.
func (j *Journal) load() error {
	st, err := j.f.Stat()
	if err == nil && st.Size() > maxFile {
		return j.damaged(maxFile, errors.New("longer than a journal gets"))
	}
	data, err := io.ReadAll(j.f) // of what is locked, whatever has the name
	if err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	head, err := (&record{Op: opJournal, Version: journalVersion}).encode()
	if err != nil {
		return err
	}
	if len(data) < len(head) && bytes.HasPrefix(head, data) { // new, or torn at its birth
		return j.create(head)
	}
	offset := 0
	for offset < len(data) {
		line, rest, whole := bytes.Cut(data[offset:], []byte{'\n'})
		if !whole {
			break // torn
		}
		r, err := decode(line)
		if err != nil {
			// A line that was never finished may be in the file with zeros
			// where nothing was written yet. No finished line has any.
			if len(rest) == 0 && offset > 0 && bytes.IndexByte(line, 0) >= 0 {
				break
			}
			return j.damaged(offset, err)
		}
		if err := j.replay(r, len(line)+1, offset == 0); err != nil {
			return j.damaged(offset, err)
		}
		offset += len(line) + 1
	}
	if offset == 0 {
		return j.damaged(0, errors.New("not a journal"))
	}
	j.size = int64(offset)
	if offset == len(data) {
		return nil
	}
	if err := j.f.Truncate(j.size); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	return j.sync()
}

func (j *Journal) damaged(offset int, err error) error {
	return fmt.Errorf("%w: %s at byte %d: %w; nothing was changed", ErrJournalDamage, j.path, offset, err)
}

// create writes the first line and makes the file's name durable.
func (j *Journal) create(head []byte) error {
	if err := j.f.Truncate(0); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	if _, err := j.f.Write(head); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	j.size, j.live = int64(len(head)), int64(len(head))
	if err := j.sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

func (j *Journal) sync() error {
	if err := j.f.Sync(); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	return nil
}

// replay takes a line of the file.
func (j *Journal) replay(r record, line int, first bool) error {
	switch {
	case first != (r.Op == opJournal):
		return errors.New("not in its place")
	case first && r.Version != journalVersion:
		return fmt.Errorf("version %d; this program knows %d", r.Version, journalVersion)
	case first:
		j.live += int64(line)
	case r.Op == opBegin || r.Op == opEnd:
		if r.Key == "" || len(r.Digest) != sha256.Size || r.Op == opBegin && !bytes.Equal(digest(r.Body), r.Digest) {
			return errors.New("a line without what it needs")
		}
		j.note(r, line)
	default:
		return fmt.Errorf("unknown op %q", r.Op)
	}
	return nil
}

func digest(body []byte) []byte {
	sum := sha256.Sum256(body)
	return sum[:]
}

// note makes a line count that is in the file.
func (j *Journal) note(r record, line int) *entry {
	j.seq++
	e := j.entries[r.Key]
	if e == nil {
		e = new(entry)
		j.entries[r.Key] = e
	} else {
		j.forget(e)
	}
	e.record, e.line, e.seq, e.unsure = r, int64(line), j.seq, false
	j.live += e.line
	if r.isOpen() {
		j.opened += e.line
		return e
	}
	j.ended = append(j.ended, r.Key)
	for len(j.ended) > maxEnded {
		oldest := j.entries[j.ended[0]]
		j.ended = j.ended[1:]
		if oldest != nil && !oldest.isOpen() && oldest != e {
			j.forget(oldest)
			delete(j.entries, oldest.Key)
		}
	}
	return e
}

// forget takes what an entry has in the file for waste.
func (j *Journal) forget(e *entry) {
	j.live -= e.line
	if e.isOpen() {
		j.opened -= e.line
	}
}

// usable reports why the journal takes nothing any more.
func (j *Journal) usable() error {
	if j.f == nil {
		return ErrJournalClosed
	}
	return j.broken
}

// append writes a line, and syncs it where it must outlive a crash.
func (j *Journal) append(r record, durable bool) (*entry, error) {
	b, err := r.encode()
	if err != nil {
		return nil, err
	}
	if r.isOpen() && j.opened+int64(len(b)) > j.limit {
		return nil, ErrJournalFull
	}
	if _, err := j.f.Write(b); err != nil {
		j.broken = fmt.Errorf("client: journal: an earlier write failed; open it again: %w", err)
		return nil, fmt.Errorf("client: journal: %w", err)
	}
	j.size += int64(len(b))
	if durable {
		if err := j.sync(); err != nil {
			j.broken = err
			return nil, err
		}
	}
	return j.note(r, len(b)), nil
}

// named reports whether the file still has its name. It would be of no use to
// whoever comes next.
func (j *Journal) named() error {
	own, err := j.f.Stat()
	if err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	now, err := os.Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, now) {
		return ErrJournalMoved
	}
	if err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	return nil
}

// begun is how a request stands in the journal when it is about to be sent.
type begun struct {
	first   time.Time // when it was first begun, where that was before; else zero
	resumed bool      // it was begun before and has no known outcome: it may have been sent, since then
	doubt   bool      // it may have been done
}

// doubts reports whether a request may have been done, by what the journal knows.
func (j *Journal) doubts(f frozen) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[f.key.Name]
	return e != nil && bytes.Equal(e.Digest, digest(f.body)) && e.doubt()
}

func (e *entry) doubt() bool { return e.isOpen() || e.Effect != idem.DoubtNone }

// begin makes a request durable before it is sent.
func (j *Journal) begin(f frozen) (begun, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.usable(); err != nil {
		return begun{}, err
	}
	if err := j.named(); err != nil {
		return begun{}, err
	}
	now := time.Now().Round(0)
	sum := digest(f.body)
	e := j.entries[f.key.Name]
	switch {
	case e == nil:
	case !bytes.Equal(e.Digest, sum):
		return begun{}, ErrJournalBytes
	case e.isOpen():
		e.users++
		return begun{first: e.Began, resumed: true, doubt: true}, nil
	case !e.Expires.IsZero() && !now.Before(e.Expires):
		return begun{}, &Error{
			Code: idem.CodeKeyExpired, Key: f.key.HeaderValue(), Effect: e.Effect,
			Message: fmt.Sprintf("the journal knows the outcome of this key, and its window ended at %s: it is not sent again", e.Expires.Format(time.RFC3339)),
		}
	}
	if err := j.compact(); err != nil {
		return begun{}, err
	}
	users, doubt := 0, false
	if e != nil {
		users, doubt = e.users, e.doubt()
	}
	e, err := j.append(record{Op: opBegin, Key: f.key.Name, Tool: f.tool, Began: now, Body: f.body, Digest: sum}, true)
	if err != nil {
		return begun{}, err
	}
	e.users = users + 1
	return begun{doubt: doubt}, nil
}

// settlement is what is known when a call returns.
type settlement struct {
	known   bool // nothing more can be learnt by asking again
	final   bool // and that is of the key, not only of what one call has sent
	effect  idem.Doubt
	expires time.Time
}

func settlementOf(out Outcome, err error) settlement {
	var e *Error
	switch {
	case err == nil:
		return settlement{known: out.Call.Status.Ended(), final: true, effect: out.Try.Verdict.Effect, expires: out.Call.expiresAt()}
	case !errors.As(err, &e):
		return settlement{}
	case e.Code == idem.CodeOutcomeUnknown && e.Call != nil && e.Call.Status.Ended(): // in doubt for good, whoever asks
		return settlement{known: true, final: true, effect: e.Effect, expires: e.Call.expiresAt()}
	default:
		return settlement{
			known: e.Effect != idem.DoubtUnknown || e.Code == idem.CodeKeyExpired, effect: e.Effect,
			final: e.Code == idem.CodeConflict || e.Code == idem.CodeKeyExpired,
		}
	}
}

// settle notes what came of a request that was begun. While another call of this
// process is under way with the key, that one will note it.
func (j *Journal) settle(key string, s settlement) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[key]
	if e == nil || !e.isOpen() {
		return nil
	}
	e.users--
	e.unsure = e.unsure || !s.known
	if !s.known || e.users > 0 || e.unsure && !s.final {
		return nil
	}
	if err := j.usable(); err != nil {
		return err
	}
	// A caller who was told that nothing was done may do something else. The
	// request must not come back after that.
	durable := s.effect != idem.DoubtCommitted
	_, err := j.append(record{
		Op: opEnd, Key: key, Tool: e.Tool, Began: e.Began, Digest: e.Digest, Effect: s.effect, Expires: s.expires,
	}, durable)
	return err
}

// compact writes the file anew if too much of it is waste.
func (j *Journal) compact() error {
	if j.size-j.live <= max(minWaste, j.live) {
		return nil
	}
	entries := make([]*entry, 0, len(j.entries))
	for _, e := range j.entries {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	var b bytes.Buffer
	records := []*record{{Op: opJournal, Version: journalVersion}}
	for _, e := range entries {
		records = append(records, &e.record)
	}
	for _, r := range records {
		line, err := r.encode()
		if err != nil {
			return err
		}
		b.Write(line)
	}
	// Hidden, so that it is not another journal of the same owner.
	next, err := writeLocked(filepath.Join(filepath.Dir(j.path), "."+filepath.Base(j.path)+".new"), b.Bytes())
	if err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	if err := os.Rename(next.Name(), j.path); err != nil {
		return errors.Join(fmt.Errorf("client: journal: %w", err), next.Close(), os.Remove(next.Name()))
	}
	_ = j.f.Close() // everything in it is in the other one
	j.f, j.size, j.live = next, int64(b.Len()), int64(b.Len())
	if err := syncDir(filepath.Dir(j.path)); err != nil {
		j.broken = err
		return err
	}
	return nil
}

// writeLocked makes a file with what it is to have, synced and locked, so that it
// is never without a lock under the name that it gets. What a crash has left under
// the name goes; it is removed, not emptied, since it may be a link to anything.
func writeLocked(path string, data []byte) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err = lock(f); err == nil {
		if _, err = f.Write(data); err == nil {
			err = f.Sync()
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// open lists the requests without a known outcome, in the order in which they
// were begun.
func (j *Journal) open() []frozen {
	j.mu.Lock()
	defer j.mu.Unlock()
	var entries []*entry
	for _, e := range j.entries {
		if e.isOpen() {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	fs := make([]frozen, len(entries))
	for i, e := range entries {
		fs[i] = frozen{key: idem.Key{Namespace: idem.DefaultNamespace, Name: e.Key}, tool: e.Tool, body: e.Body}
	}
	return fs
}

// Open lists the keys whose outcome is not known, in the order in which they were
// begun.
func (j *Journal) Open() []string {
	var keys []string
	for _, f := range j.open() {
		keys = append(keys, f.key.HeaderValue())
	}
	return keys
}

// Close gives the file back. What is open stays open in it. It may be called
// again; calls that are under way note nothing more.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return nil
	}
	f := j.f
	j.f = nil
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("client: journal: %w", err)
	}
	return nil
}

// refusedByJournal is a request that the journal does not take.
func refusedByJournal(key string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeJournal, Message: err.Error(), Key: key, Effect: idem.DoubtNone, Err: err}
}
