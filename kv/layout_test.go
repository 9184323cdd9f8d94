package kv

import (
	"archive/tar"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// layoutRow is a call's rows as bytes: what is on disk, for good.
type layoutRow struct {
	name           string
	request, state string // in hexadecimal; no state for a plain create
	call           idem.Call
	next           uint32
}

func layoutRows() (one, two []layoutRow) {
	at, end := testStart.Add(time.Millisecond), testStart.Add(testWindow)
	client, seq := "agent-7", int64(12)
	base := idem.Call{
		Key: idem.Key{Name: "k"}, Tool: "refund", Args: []byte(`{}`), ClientID: &client, Seq: &seq, CreatedAt: at,
		UpdatedAt: at, Revision: 1, Status: idem.StatusPending, Deliveries: 1,
	}
	with := func(change func(c *idem.Call)) idem.Call {
		c := base
		change(&c)
		return c
	}
	held := func(c *idem.Call) {
		c.Status, c.Effects, c.Rerun, c.Attempt, c.Revision, c.ClaimedAt = idem.StatusHeld, idem.EffectsExternal, idem.RerunHold, 1, 3, testStart
		c.Failure = &idem.Failure{Code: "tool_timeout", Message: "too long"}
	}
	failed := func(c *idem.Call) {
		held(c)
		c.Status, c.Rerun, c.EndedAt, c.ExpiresAt = idem.StatusFailed, idem.RerunYes, testStart, end
		c.Failure = &idem.Failure{Code: "busy", Message: "no", Retryable: true}
	}
	succeeded := func(c *idem.Call) {
		held(c)
		c.Status, c.Failure, c.EndedAt, c.ExpiresAt, c.Result = idem.StatusSucceeded, nil, testStart, end, []byte(`{"ok":true}`)
	}
	tombstone := func(c *idem.Call) {
		succeeded(c)
		c.Tombstone, c.Args, c.ClientID, c.Seq, c.Result = true, nil, nil, nil, nil
	}
	const (
		request = "0107" + "016b" + "06726566756e64" + "d0cff8daa6fda506" + "076167656e742d37" + "18" + "027b7d"
		buried  = "0100" + "016b" + "06726566756e64" + "d0cff8daa6fda506"
		rules   = "000102030405060708090a0b0c0d0e0f"
		ruled   = "010f" + "016b" + "06726566756e64" + "d0cff8daa6fda506" + rules + "076167656e742d37" + "18" + "027b7d"
		ruledUp = "0108" + "016b" + "06726566756e64" + "d0cff8daa6fda506" + rules
		start   = "80c0f8daa6fda506" // testStart
		over    = "80d095c4c1fda506"
	)
	named := func(c *idem.Call) {
		for i := range c.Rules {
			c.Rules[i] = byte(i)
		}
	}
	doubt := func(of func(*idem.Call), after time.Duration) func(*idem.Call) {
		return func(c *idem.Call) {
			of(c)
			c.InDoubt = true
			if c.Failure != nil {
				c.Failure.RetryAfter = after
			}
		}
	}
	one = []layoutRow{
		{"pending", request, "", base, 1},
		{"held", request, "0112" + "030303" + "03010003" + "02" + "d0cff8daa6fda506" + start + "0c746f6f6c5f74696d656f7574" + "08746f6f206c6f6e67", with(held), 3},
		{"failed", request, "013e" + "050301" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over + "0462757379" + "026e6f", with(failed), 4},
		{"succeeded", request, "014e" + "040303" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over + "0b7b226f6b223a747275657d", with(succeeded), 4},
		{"tombstone", buried, "018e" + "040303" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over, with(tombstone), 4},
	}
	two = []layoutRow{
		{"pending under rules", ruled, "", with(named), 1},
		{"tombstone under rules", ruledUp, "018e" + "040303" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over, with(func(c *idem.Call) { tombstone(c); named(c) }), 4},
		{"held in doubt", request, "021201" + "030303" + "03010003" + "02" + "d0cff8daa6fda506" + start + "0c746f6f6c5f74696d656f757408746f6f206c6f6e67", with(doubt(held, 0)), 3},
		{"held, and how it went out", request, "02120d" + "030303" + "03010003" + "02" + "d0cff8daa6fda506" + start + "0c746f6f6c5f74696d656f757408746f6f206c6f6e67" + "a09c01" + "ffffffffffffffffff01",
			with(func(c *idem.Call) { doubt(held, 0)(c); c.Settle, c.Target = 20*time.Second, 1<<64-1 }), 3},
		{"failed with a pause", request, "023e02" + "050301" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over + "0462757379" + "026e6f" + "ac02",
			with(func(c *idem.Call) { doubt(failed, 300*time.Second)(c); c.InDoubt = false }), 4},
		{"failed in doubt, with a pause", request, "023e03" + "050301" + "03010004" + "02" + "d0cff8daa6fda506" + start + start + over + "0462757379" + "026e6f" + "01",
			with(doubt(failed, time.Second)), 4},
	}
	return one, two
}

// The bytes on disk: those of each layout are read for ever, and those of the
// first are still written where a call has nothing that is new.
func TestLayoutRows(t *testing.T) {
	one, two := layoutRows()
	for _, row := range append(one, two...) {
		t.Run(row.name, func(t *testing.T) {
			request, err := hex.DecodeString(row.request)
			if err != nil {
				t.Fatal(err)
			}
			state, err := hex.DecodeString(row.state)
			if err != nil {
				t.Fatal(err)
			}
			var got idem.Call
			if err := decodeRequest(request, &got, true); err != nil {
				t.Fatal(err)
			}
			var next uint32
			if len(state) == 0 {
				next = makePlain(&got)
			} else if next, err = decodeState(state, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, row.call) || next != row.next {
				t.Errorf("read as\n%+v, next %d\nwant\n%+v, next %d", got, next, row.call, row.next)
			}
			if b := appendRequest(nil, &row.call); hex.EncodeToString(b) != row.request {
				t.Errorf("the request is written as %x, want %s", b, row.request)
			}
			if plain(&row.call, 1) != (len(state) == 0) {
				t.Error("whether it is plain")
			}
			if len(state) == 0 {
				return
			}
			if b, err := appendState(nil, &row.call, row.next); err != nil || hex.EncodeToString(b) != row.state {
				t.Errorf("the state is written as %x, %v, want %s", b, err, row.state)
			}
		})
	}
	t.Run("doubt is not plain", func(t *testing.T) {
		c := one[0].call
		if c.InDoubt = true; plain(&c, 1) {
			t.Error("the row that says so is left out")
		}
	})
	t.Run("rules", func(t *testing.T) {
		r := &idem.Rules{Ignore: []string{"/a"}}
		const want = "01" + "11" + "7b2269676e6f7265223a5b222f61225d7d"
		if b := encodeRules(r); hex.EncodeToString(b) != want {
			t.Errorf("%x, want %s", b, want)
		}
	})
	t.Run("schema", func(t *testing.T) {
		const want = "0102" + "80c0f8daa6fda506"
		if b := encodeSchema(schema{layoutVersion, testStart}); hex.EncodeToString(b) != want {
			t.Errorf("%x, want %s", b, want)
		}
	})
	t.Run("what no release writes", func(t *testing.T) {
		for name, state := range map[string]string{
			"a later version":                   "03",
			"a flag of a later release":         "021204" + "030303" + "03010003" + "02" + "00" + "00" + "0162" + "00",
			"a pause without a failure":         "020002" + "010000" + "01000001" + "02" + "00" + "01",
			"a pause of over ten years":         "021002" + "030000" + "01000001" + "02" + "00" + "0162" + "00" + "ffffffffff01",
			"cut off before the flags":          "0212",
			"no second flags in the first form": "011201" + "030303" + "03010003" + "02" + "00" + "00" + "0162" + "00",
		} {
			b, err := hex.DecodeString(state)
			if err != nil {
				t.Fatal(err)
			}
			var c idem.Call
			if _, err := decodeState(b, &c); !errors.Is(err, errCorrupt) {
				t.Errorf("%s: %v, read as %+v", name, err, c)
			}
		}
		id := (&idem.Rules{Ignore: []string{"/a"}}).ID()
		for name, v := range map[string][]byte{
			"nothing": {}, "a later version": append([]byte{2}, encodeRules(&idem.Rules{Ignore: []string{"/a"}})[1:]...),
			"of another id": encodeRules(&idem.Rules{Ignore: []string{"/b"}}), "no rules": append([]byte{1, 2}, "{}"...),
			"more behind them": append(encodeRules(&idem.Rules{Ignore: []string{"/a"}}), 0), "not rules": append([]byte{1, 4}, "null"...),
		} {
			if r, err := decodeRules(v, id); !errors.Is(err, errCorrupt) || !strings.Contains(err.Error(), id.String()) {
				t.Errorf("rules, %s: %+v, %v", name, r, err)
			}
		}
	})
}

// unpack lays a data directory out that the release before layout 2 wrote: two
// namespaces with a call in each state. How it ended is in the name.
func unpack(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open("testdata/layout1-" + name + ".tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(z)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			// Each start makes it anew.
			if err := os.WriteFile(filepath.Join(dir, "LOCK"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, h.Name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What the first layout's release left is all there, and goes on: its calls are
// replayed, joined, refused, taken up again, and new ones have rules and doubt.
func TestFirstLayout(t *testing.T) {
	wantCalls := func(t *testing.T, s *Store) {
		t.Helper()
		for _, ns := range []idem.Namespace{"default", "other"} {
			for name, want := range map[string]struct {
				status  idem.Status
				attempt int
			}{
				"pending": {idem.StatusPending, 0}, "running": {idem.StatusRunning, 1}, "held": {idem.StatusHeld, 1},
				"succeeded": {idem.StatusSucceeded, 1}, "failed": {idem.StatusFailed, 1}, "retryable": {idem.StatusFailed, 1},
				"requeued": {idem.StatusPending, 1}, "tombstone": {idem.StatusSucceeded, 1},
			} {
				c, err := s.CallByKey(t.Context(), idem.Key{Namespace: ns, Name: name})
				if err != nil {
					t.Fatalf("%s/%s: %v", ns, name, err)
				}
				told := c.ClientID != nil && *c.ClientID == "agent-7" && c.Seq != nil && *c.Seq == 12
				if c.Status != want.status || c.Attempt != want.attempt || !c.Rules.IsZero() || c.InDoubt || c.Fingerprint != (idem.Fingerprint{1}) || told == c.Tombstone {
					t.Errorf("%s/%s is %+v", ns, name, c)
				}
				if c.Failure != nil && c.Failure.RetryAfter != 0 {
					t.Errorf("%s/%s: a pause of %v", ns, name, c.Failure.RetryAfter)
				}
			}
		}
	}
	layout := func(t *testing.T, s *Store) (sc schema) {
		t.Helper()
		if _, err := s.get(keySchema, func(v []byte) (err error) { sc, err = decodeSchema(v); return err }); err != nil {
			t.Fatal(err)
		}
		return sc
	}
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			o := testOptions(nil, unpack(t, how))
			// Read only: nothing is raised, and nothing is wrong.
			r := clean(t, o)
			if r.Layout != 1 || r.Totals.Calls != 16 || r.Tombstones != 2 {
				t.Errorf("the report is %+v", r)
			}
			created := r.CreatedAt

			s := openOptions(t, o)
			if got := layout(t, s); got.layout != layoutVersion || !got.createdAt.Equal(created) || s.commits.Load() != 1 {
				t.Errorf("the schema is %+v after %d commits, created at %v", got, s.commits.Load(), created)
			}
			wantCalls(t, s)
			checkDisk(t, s)
			if all, err := s.Rules(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("rules %v, %v", all, err)
			}
			s = reopen(t, s)
			if s.commits.Load() != 0 {
				t.Errorf("the second start: %d commits", s.commits.Load())
			}
			wantCalls(t, s)

			// It goes on.
			rules := &idem.Rules{Ignore: []string{"/memo"}}
			if err := s.SaveRules(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			if ch := update(t, s, keyOf("succeeded"), submit(keyOf("succeeded"), 100)); ch.Verdict != idem.VerdictReplayed {
				t.Errorf("succeeded: %v", ch.Verdict)
			}
			if ch := update(t, s, keyOf("requeued"), submit(keyOf("requeued"), 101)); ch.Verdict != idem.VerdictJoined {
				t.Errorf("requeued: %v", ch.Verdict)
			}
			if _, err := s.Update(t.Context(), keyOf("tombstone"), submit(keyOf("tombstone"), 102)); !errors.Is(err, idem.ErrKeyExpired) {
				t.Errorf("tombstone: %v", err)
			}
			update(t, s, keyOf("retryable"), submit(keyOf("retryable"), 103))
			update(t, s, keyOf("retryable"), claim(otherTool, time.Hour))
			update(t, s, keyOf("retryable"), settling(func(st idem.Settlement) idem.Transition {
				return idem.Fail(st, idem.Failure{Code: "busy", Retryable: true, RetryAfter: time.Minute})
			}))
			update(t, s, keyOf("held"), resolved(idem.OutcomeSucceeded))
			update(t, s, keyOf("new"), submitUnder(keyOf("new"), 104, rules.ID()))
			update(t, s, keyOf("new"), claim(holdTool, time.Hour))
			update(t, s, keyOf("new"), lose())
			image := readAll(t, s)
			s = reopen(t, s)
			for i, line := range readAll(t, s) {
				if line != image[i] {
					t.Errorf("it was\n%s\nand is\n%s", image[i], line)
				}
			}
			checkDisk(t, s)
			closeStore(t, s)
			if r := clean(t, o); r.Layout != layoutVersion || r.Totals.Calls != 17 {
				t.Errorf("the report is %+v", r)
			}
		})
	}

	// The new version is durable before anything else that is written, and lost
	// with nothing of what was there.
	t.Run("a crash at any operation of the first start", func(t *testing.T) {
		rng := seeded(t)
		disk := vfs.NewCrashableMem()
		if ok, err := vfs.Clone(vfs.Default, disk, unpack(t, "killed"), "data", vfs.CloneSync); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := syncDir(disk, "/"); err != nil {
			t.Fatal(err)
		}
		fsys := newHookFS(disk)
		cam := &camera{fs: fsys, oracle: newOracle(), percent: 50, rng: rng, pace: pace{every: 1}}
		fsys.set(cam.shoot)
		o := testOptions(fsys, "data")
		s := openOptions(t, o)
		if err := s.SaveRules(t.Context(), &idem.Rules{Ignore: []string{"/memo"}}); err != nil {
			t.Fatal(err)
		}
		fsys.set(nil)
		closeStore(t, s)
		raised := map[uint64]int{}
		for i, im := range cam.take() {
			o := testOptions(im.fs, "data")
			r, err := inspect(t, o)
			if err != nil || r.Broken() != 0 {
				t.Fatalf("image %d, before %v: %v, %+v", i, im.op, err, r)
			}
			raised[r.Layout]++
			s := openOptions(t, o)
			wantCalls(t, s)
			if all, err := s.Rules(t.Context()); err != nil || len(all) > 0 && r.Layout != layoutVersion {
				t.Errorf("image %d, before %v: layout %d with rules %v, %v", i, im.op, r.Layout, all, err)
			}
			closeStore(t, s)
		}
		t.Log("images by layout: ", raised)
		if raised[1] == 0 || raised[layoutVersion] == 0 {
			t.Error("something was not tried")
		}
	})
}

// submitUnder is submit of a request under rules.
func submitUnder(k idem.Key, n int, rules idem.RulesID) idem.Transition {
	at := testStart.Add(time.Duration(n) * time.Millisecond)
	return idem.Submit(
		idem.Request{Key: k, Tool: "refund", Args: []byte(`{"amount":100}`), Fingerprint: idem.Fingerprint{1}, Rules: rules},
		idem.Admission{ID: idOf(k, n), CreatedAt: at, Now: at},
	)
}

// readAll is what a store shows of all its calls.
func readAll(t *testing.T, s *Store) (all []string) {
	t.Helper()
	for _, ns := range []idem.Namespace{"default", "other"} {
		calls, _, err := s.List(t.Context(), ns, idem.Query{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range calls {
			c = atRest(c)
			failure := "none"
			if c.Failure != nil {
				failure = fmt.Sprintf("%+v", *c.Failure)
			}
			c.Failure, c.ClientID, c.Seq = nil, nil, nil // addresses
			all = append(all, fmt.Sprintf("%+v, failure %s", c, failure))
		}
	}
	return all
}
