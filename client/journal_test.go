package client

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
)

func openJournal(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func freeze(t *testing.T, key string, args string) frozen {
	t.Helper()
	f, err := Request{Tool: "charge", Args: []byte(args), Key: key}.freeze()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func begin(t *testing.T, j *Journal, key string) {
	t.Helper()
	if _, err := j.begin(freeze(t, key, "{}")); err != nil {
		t.Fatal(err)
	}
}

var (
	settled = settlement{known: true, final: true, effect: idem.DoubtCommitted}
	unknown = settlement{effect: idem.DoubtUnknown}
)

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		begin(t, j, key)
	}
	for key, s := range map[string]settlement{"a": settled, "b": unknown, "c": {known: true, effect: idem.DoubtNone}} {
		if err := j.settle(key, s); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.Open(); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("open: %v", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if _, err := j.begin(freeze(t, "e", "{}")); !errors.Is(err, ErrJournalClosed) {
		t.Errorf("after Close: %v", err)
	}

	j = openJournal(t, path)
	if got := j.Open(); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("open after a restart: %v", got)
	}
	if f := j.open()[0]; string(f.body) != `{"tool":"charge","args":{}}` || f.tool != "charge" {
		t.Errorf("%+v", f)
	}
	if b, err := j.begin(freeze(t, "b", "{}")); err != nil || !b.resumed || !b.doubt {
		t.Errorf("the same again: %+v, %v", b, err)
	}
	for _, key := range []string{"a", "b"} {
		if _, err := j.begin(freeze(t, key, `{"x":1}`)); !errors.Is(err, ErrJournalBytes) {
			t.Errorf("%s with another request: %v", key, err)
		}
	}
	if b, err := j.begin(freeze(t, "a", "{}")); err != nil || b.resumed || !b.doubt {
		t.Errorf("an ended one, asked for again: %+v, %v", b, err)
	}
	if got := j.Open(); !slices.Equal(got, []string{"b", "d", "a"}) {
		t.Errorf("open: %v", got)
	}
}

// Of two calls with one key the last one to return notes the outcome: the other
// may still be at it when the process is killed.
func TestJournalOneKeyTwice(t *testing.T) {
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
	begin(t, j, "k")
	begin(t, j, "k")
	for _, open := range []int{1, 0} {
		if err := j.settle("k", settled); err != nil {
			t.Fatal(err)
		}
		if got := j.Open(); len(got) != open {
			t.Errorf("open: %v", got)
		}
	}
}

// One of them does not know whether its request was carried out, the last one was
// refused: that settles nothing, and the end of the call does.
func TestJournalOneKeyTwiceInDoubt(t *testing.T) {
	refused := settlement{known: true, effect: idem.DoubtNone}
	for name, order := range map[string][]settlement{"unknown first": {unknown, refused}, "refused first": {refused, unknown}} {
		j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
		begin(t, j, "k")
		begin(t, j, "k")
		for _, s := range order {
			if err := j.settle("k", s); err != nil {
				t.Fatal(err)
			}
		}
		if got := j.Open(); len(got) != 1 {
			t.Errorf("%s: open: %v", name, got)
		}
		begin(t, j, "k")
		if err := j.settle("k", settled); err != nil || len(j.Open()) != 0 {
			t.Errorf("%s: %v, open: %v", name, err, j.Open())
		}
	}
}

// Nobody says "it was not done" of what the journal knows better.
func TestJournalKeepsTheDoubt(t *testing.T) {
	tools := func(window string) step {
		return step{status: 200, body: `{"tools":[{"name":"charge","window":"` + window + `"}]}`}
	}
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	begin(t, j, "open")
	begin(t, j, "done")
	if err := j.settle("done", settled); err != nil {
		t.Fatal(err)
	}
	call := func(t *testing.T, tools step, key string, prepare func(c *Client)) {
		t.Helper()
		c, err := New("http://idemd.test", Options{Policy: swift(), Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == pathTools {
				return respond(tools.status, tools.body), nil
			}
			return respond(401, refusalDoc("unauthorized")), nil
		})
		prepare(c)
		var e *Error
		if _, err := c.Call(t.Context(), Request{Tool: "charge", Args: []byte("{}"), Key: key}); !errors.As(err, &e) || e.Effect != idem.DoubtUnknown {
			t.Errorf("%+v", err)
		}
		if got := j.Open(); !slices.Contains(got, "open") {
			t.Errorf("open: %v", got)
		}
	}
	nothing := func(*Client) {}
	t.Run("refused, and done before", func(t *testing.T) { call(t, tools("24h"), "done", nothing) })
	t.Run("window too short", func(t *testing.T) { call(t, tools("1s"), "open", nothing) })
	t.Run("window unknown", func(t *testing.T) {
		call(t, step{status: 500}, "open", func(c *Client) { c.o.Policy.RequireWindow = true })
	})
	t.Run("client closed", func(t *testing.T) { call(t, tools("24h"), "open", (*Client).Close) })
	t.Run("journal closed", func(t *testing.T) {
		call(t, tools("24h"), "open", func(*Client) {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// What is noted in a file without its name is found by nobody.
func TestJournalIsMoved(t *testing.T) {
	for name, move := range map[string]func(path string) error{
		"away":     func(path string) error { return os.Rename(path, path+".old") },
		"removed":  os.Remove,
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			path := filepath.Join(t.TempDir(), "journal")
			c := newClient(t, d.url, Options{Journal: openJournal(t, path)})
			if err := move(path); err != nil {
				t.Fatal(err)
			}
			_, err := c.Call(t.Context(), charge("k", "1"))
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeJournal || e.Effect != idem.DoubtNone || !errors.Is(err, ErrJournalMoved) || len(d.posts()) != 0 {
				t.Errorf("%+v, %d submissions", err, len(d.posts()))
			}
		})
	}
}

// Writing the file anew touches nothing of its neighbours, whatever their names are,
// and follows no link that lies in its way.
func TestJournalLeavesItsNeighboursAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	neighbours := []string{path + ".new", filepath.Join(dir, "target")}
	for _, n := range neighbours {
		if err := os.WriteFile(n, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(neighbours[1], filepath.Join(dir, ".journal.new")); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, path)
	waste(t, j)
	if j.size > minWaste {
		t.Fatal("it was not written anew")
	}
	for _, n := range neighbours {
		if b, err := os.ReadFile(n); err != nil || string(b) != "precious" {
			t.Errorf("%s: %q, %v", n, b, err)
		}
	}
}

func TestJournalTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	begin(t, j, "k")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(path); !errors.Is(err, ErrJournalDamage) {
		t.Errorf("%v", err)
	}
}

// A link that leads to nothing yet stays one, too.
func TestJournalBehindALinkToNothing(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, link)
	waste(t, j)
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", st, err)
	}
	if _, err := OpenJournal(target); !errors.Is(err, ErrJournalInUse) {
		t.Errorf("%v", err)
	}
}

func TestJournalBehindALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := openJournal(t, target).Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, link)
	waste(t, j)
	if _, err := OpenJournal(target); !errors.Is(err, ErrJournalInUse) {
		t.Errorf("%v", err)
	}
}

func TestJournalIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	if _, err := OpenJournal(path); !errors.Is(err, ErrJournalInUse) {
		t.Errorf("%v", err)
	}
	waste(t, j) // the file that is locked now is another one
	if _, err := OpenJournal(path); !errors.Is(err, ErrJournalInUse) {
		t.Errorf("after it was written anew: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	openJournal(t, path)
	if _, err := OpenJournal(filepath.Join(t.TempDir(), "no", "such")); err == nil {
		t.Error("made a directory")
	}
}

// waste makes the journal write its file anew, and reports how large it became.
func waste(t *testing.T, j *Journal) (largest int64) {
	t.Helper()
	before, err := os.Stat(j.path)
	if err != nil {
		t.Fatal(err)
	}
	args := `{"x":"` + strings.Repeat("y", 100_000) + `"}`
	for n := range 100 {
		key := fmt.Sprint("waste-", n)
		if _, err := j.begin(freeze(t, key, args)); err != nil {
			t.Fatal(err)
		}
		if err := j.settle(key, settled); err != nil {
			t.Fatal(err)
		}
		now, err := os.Stat(j.path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, now.Size())
		if !os.SameFile(before, now) {
			return largest
		}
	}
	t.Fatal("it grows and grows")
	return 0
}

func TestJournalIsWrittenAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	begin(t, j, "open-1")
	begin(t, j, "ended")
	if err := j.settle("ended", settled); err != nil {
		t.Fatal(err)
	}
	begin(t, j, "open-2")
	if largest := waste(t, j); largest > 2*minWaste {
		t.Errorf("%d bytes", largest)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != j.size || st.Size() > minWaste || st.Mode().Perm() != 0o600 {
		t.Errorf("%v bytes, %v; it believes %d", st.Size(), err, j.size)
	}
	for range 2 {
		if got := j.Open(); !slices.Equal(got, []string{"open-1", "open-2"}) {
			t.Errorf("open: %v", got)
		}
		if _, err := j.begin(freeze(t, "ended", `{"x":1}`)); !errors.Is(err, ErrJournalBytes) {
			t.Errorf("an ended key is forgotten: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		j = openJournal(t, path)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

func TestJournalRemembersSoManyKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	j.f.Close()
	j.f = nullFile(t) // a thousand syncs tell nothing
	j.path = fmt.Sprintf("/proc/self/fd/%d", j.f.Fd())
	begin(t, j, "ended once, and open again")
	if err := j.settle("ended once, and open again", settled); err != nil {
		t.Fatal(err)
	}
	begin(t, j, "ended once, and open again")
	for n := range maxEnded + 10 {
		key := fmt.Sprint(n)
		begin(t, j, key)
		if err := j.settle(key, settled); err != nil {
			t.Fatal(err)
		}
	}
	if got := j.Open(); !slices.Equal(got, []string{"ended once, and open again"}) {
		t.Errorf("open: %v", got)
	}
	if len(j.entries) != maxEnded+1 || len(j.ended) != maxEnded || j.entries["9"] != nil || j.entries["10"] == nil || j.opened == 0 {
		t.Errorf("%d entries, %d ended, %d bytes open", len(j.entries), len(j.ended), j.opened)
	}
	var live int64
	for _, e := range j.entries {
		live += e.line
	}
	if head, _ := (&record{Op: opJournal, Version: journalVersion}).encode(); j.live != live+int64(len(head)) {
		t.Errorf("counts %d bytes, has %d", j.live, live)
	}
}

// nullFile takes everything. It cannot be synced, so it is a file without a name.
func nullFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "")
	if err != nil {
		f, err = os.CreateTemp(t.TempDir(), "")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestJournalIsFull(t *testing.T) {
	d := newIdemd(t, time.Hour)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
	j.limit = 400
	c := newClient(t, d.url, Options{Journal: j})
	begin(t, j, "open")
	_, err := c.Call(t.Context(), charge("k", "1"))
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeJournal || e.Effect != idem.DoubtNone || !errors.Is(err, ErrJournalFull) {
		t.Errorf("%+v", err)
	}
	if n := len(d.posts()); n != 0 {
		t.Errorf("%d submissions", n)
	}
	if err := j.settle("open", settled); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), charge("k", "1")); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// After a failed write nobody knows what is in the file, also when the next one
// would succeed.
func TestJournalCannotBeWritten(t *testing.T) {
	d := newIdemd(t, time.Hour)
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	good := j.f
	var err error
	if j.f, err = os.Open(path); err != nil { // not for writing
		t.Fatal(err)
	}
	c := newClient(t, d.url, Options{Journal: j})
	for range 2 {
		if _, err := c.Call(t.Context(), charge("k", "1")); !errors.Is(err, &Error{Code: CodeJournal}) {
			t.Errorf("%+v", err)
		}
		if j.f != good {
			j.f.Close()
			j.f = good
		}
	}
	if n := len(d.posts()); n != 0 {
		t.Errorf("%d submissions", n)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	c = newClient(t, d.url, Options{Journal: openJournal(t, path)})
	if _, err := c.Call(t.Context(), charge("k", "1")); err != nil {
		t.Errorf("opened again: %v", err)
	}
}

// A crash can cut the file anywhere behind what was synced; damage is something
// else.
func TestJournalTornAndDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, path)
	var ends []int64 // of lines
	ends = append(ends, j.size)
	for _, key := range []string{"a", "b", "c"} {
		begin(t, j, key)
		ends = append(ends, j.size)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"a", "b", "c"}
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := OpenJournal(path)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		lines := 0
		for _, end := range ends[1:] {
			if int64(cut) >= end {
				lines++
			}
		}
		if got := j.Open(); !slices.Equal(got, keys[:lines]) {
			t.Errorf("cut at %d: %v", cut, got)
		}
		begin(t, j, "d") // behind the cut
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if j, err = OpenJournal(path); err != nil || len(j.Open()) != lines+1 {
			t.Fatalf("cut at %d, after one more: %v", cut, err)
		}
		j.Close()
	}
	// Zeros where the last line was never written.
	torn := bytes.Clone(whole)
	for i := ends[2] + 5; i < ends[3]-1; i++ {
		torn[i] = 0
	}
	if err := os.WriteFile(path, torn, 0o600); err != nil {
		t.Fatal(err)
	}
	j = openJournal(t, path)
	if got := j.Open(); !slices.Equal(got, keys[:2]) {
		t.Errorf("zeros: %v", got)
	}
	j.Close()

	// Every byte but the last, which is the end of the last line, matters.
	for at := range len(whole) - 1 {
		bad := bytes.Clone(whole)
		bad[at] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if j, err := OpenJournal(path); !errors.Is(err, ErrJournalDamage) {
			t.Errorf("bit flipped at %d: %v", at, err)
			if err == nil {
				j.Close()
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, bad) {
			t.Fatalf("bit flipped at %d: the file was changed, %v", at, err)
		}
	}
	// Somebody else's file, and one of a later release.
	later, err := (&record{Op: opJournal, Version: journalVersion + 1}).encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"hello", "hello\n", "{}\n{}\n", string(later), strings.Repeat("\x00", 100) + "\n"} {
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenJournal(path); !errors.Is(err, ErrJournalDamage) {
			t.Errorf("%.20q: %v", other, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != other {
			t.Errorf("%.20q was changed, %v", other, err)
		}
	}
}

// What is known stays known, and what is not stays open.
func TestResume(t *testing.T) {
	d := newIdemd(t, time.Hour)
	d.failing(func(r *http.Request, _ int) fault {
		if r.Header.Get("Idempotency-Key") == "lost" {
			return dropResponse
		}
		return fine
	})
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
	c := newClient(t, d.url, Options{Journal: j})
	for key, code := range map[string]idem.Code{"done": "", "lost": CodeRetryExhausted, "refused": idem.CodeInvalidArguments} {
		amount := "1"
		if key == "refused" {
			amount = "0"
		}
		if _, err := c.Call(t.Context(), charge(key, amount)); code == "" && err != nil || code != "" && !errors.Is(err, &Error{Code: code}) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if got := j.Open(); !slices.Equal(got, []string{"lost"}) {
		t.Errorf("open: %v", got)
	}
	if outs, err := c.Resume(t.Context()); len(outs) != 0 || !errors.Is(err, ErrRetryExhausted) {
		t.Errorf("%+v, %v", outs, err)
	}
	before := len(d.posts())
	d.failing(func(*http.Request, int) fault { return fine })
	outs, err := c.Resume(t.Context())
	if err != nil || len(outs) != 1 || outs[0].Call.Key != "lost" || outs[0].Tries[0].Kind != KindFind {
		t.Errorf("%+v, %v", outs, err)
	}
	if n := len(d.posts()); n != before+1 { // which says that what was found is of this request
		t.Errorf("%d more submissions", n-before)
	}
	if len(j.Open()) != 0 || len(d.effects(t)) != 2 {
		t.Errorf("open: %v, ledger %v", j.Open(), d.effects(t))
	}
	if outs, err := c.Resume(t.Context()); len(outs) != 0 || err != nil {
		t.Errorf("%+v, %v", outs, err)
	}
	if _, err := newClient(t, d.url, Options{}).Resume(t.Context()); err == nil {
		t.Error("resumed from nothing")
	}
}

// R16: a request whose window may be over is asked for, and not sent; and a key
// that is known to be past its window is not even asked for.
func TestJournalAndWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked strings.Builder
		expires := ""
		network := roundTripper(func(r *http.Request) (*http.Response, error) {
			switch {
			case r.URL.Path == pathTools:
				return respond(200, `{"tools":[{"name":"charge","window":"24h"}]}`), nil
			case r.Method == http.MethodPost:
				asked.WriteByte('S')
				return respond(200, strings.NewReplacer(`"k"`, `"new"`, `"expires_at":null`, `"expires_at":"`+expires+`"`).Replace(callDoc("succeeded"))), nil
			}
			asked.WriteByte('F')
			return respond(404, refusalDoc("not_found")), nil
		})
		j, err := OpenJournal(filepath.Join(t.TempDir(), "journal"))
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		c, err := New("http://idemd.test", Options{Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.http.Transport = network
		begin(t, j, "old")
		if err := j.settle("old", unknown); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		_, err = c.Resume(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Code != idem.CodeKeyExpired || e.Effect != idem.DoubtUnknown || asked.String() != "F" {
			t.Errorf("%+v, asked %s", err, &asked)
		}
		if len(j.Open()) != 0 {
			t.Error("it is going to be asked for ever")
		}

		asked.Reset()
		expires = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		for range 2 { // the second is a replay
			if _, err := c.Call(t.Context(), charge("new", "1")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		_, err = c.Call(t.Context(), charge("new", "1"))
		if !errors.As(err, &e) || e.Code != idem.CodeKeyExpired || e.Effect != idem.DoubtCommitted || asked.String() != "SS" {
			t.Errorf("%+v, asked %s", err, &asked)
		}
	})
}
