package bench

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// callsPath is where calls are asked for.
const callsPath = "/v1/tool-calls"

// What a request asks for. The texts are of the length of everyday ones.
const (
	chargeBody = `{"tool":"charge","args":{"amount":100,"currency":"EUR","customer":"c-1234567","note":"an order of the day"},"client_id":"bench","seq":1}`
	otherBody  = `{"tool":"charge","args":{"amount":101,"currency":"EUR","customer":"c-1234567","note":"an order of the day"},"client_id":"bench","seq":1}`
	sleepBody  = `{"tool":"sleep","args":{"seconds":0.010},"client_id":"bench","seq":1}`
)

// sleepTime is what sleepBody asks for; the control takes it as well.
const sleepTime = 10 * time.Millisecond

const (
	// crowd is how many requests the seed's case has, and threads how many are
	// under way at once in it.
	crowd   = 300
	threads = 20

	// sleepers is at most as many as idemd has workers: more would measure the
	// queue before them.
	sleepers = 16

	// recoveryRate is the rate of profile recovery where none is asked for. A
	// closed loop would stop asking while nobody answers, and see nothing.
	recoveryRate = 500
)

// keys says which keys the requests of a profile have.
type keys int

const (
	newKeys   keys = iota // every request its own
	oneKey                // all the same, new one
	mixedKeys             // nine of ten their own, one of ten that of a request of the last second
	knownKeys             // those of calls that have ended
)

// declaration is what a profile is, once for all.
type declaration struct {
	name  string
	about string // for people

	keys  keys
	body  string
	wait  bool // Prefer: wait
	get   bool // ask for the call by its id instead
	right int  // status of the right answer

	effects     int64         // of a call
	delay       time.Duration // that the control takes as well
	requests    int64         // fixed; 0: as asked for
	connections int           // fixed; 0: as asked for
	kill        bool          // the daemon is killed meanwhile, and started again
}

var declarations = []declaration{
	{name: "distinct", about: "every request its own key, waits for the result",
		keys: newKeys, body: chargeBody, wait: true, right: http.StatusOK, effects: 1},
	{name: "distinct-202", about: "every request its own key, does not wait",
		keys: newKeys, body: chargeBody, right: http.StatusAccepted, effects: 1},
	{name: "distinct-300", about: "300 requests, each its own key, 20 at a time",
		keys: newKeys, body: chargeBody, wait: true, right: http.StatusOK, effects: 1, requests: crowd, connections: threads},
	{name: "same", about: "300 requests, one new key, 20 at a time",
		keys: oneKey, body: chargeBody, wait: true, right: http.StatusOK, effects: 1, requests: crowd, connections: threads},
	{name: "same-300", about: "300 requests at once, one new key",
		keys: oneKey, body: chargeBody, wait: true, right: http.StatusOK, effects: 1, requests: crowd, connections: crowd},
	{name: "same-sustained", about: "one new key, as long as it is measured",
		keys: oneKey, body: chargeBody, wait: true, right: http.StatusOK, effects: 1},
	{name: "mixed", about: "nine of ten new, one of ten a duplicate of the last second",
		keys: mixedKeys, body: chargeBody, wait: true, right: http.StatusOK, effects: 1},
	{name: "replay", about: "keys of calls that have ended",
		keys: knownKeys, body: chargeBody, wait: true, right: http.StatusOK, effects: 1},
	{name: "wait", about: "latency to the result of a tool that takes 10 ms, over 16 connections; the control takes them too",
		keys: newKeys, body: sleepBody, wait: true, right: http.StatusOK, delay: sleepTime, connections: sleepers},
	{name: "conflict", about: "known keys with other args",
		keys: knownKeys, body: otherBody, wait: true, right: http.StatusConflict, effects: 1},
	{name: "poll", about: "ended calls asked for by their id",
		keys: knownKeys, get: true, right: http.StatusOK},
	{name: "recovery", about: "distinct at a rate, killed and started again meanwhile",
		keys: newKeys, body: chargeBody, wait: true, right: http.StatusOK, effects: 1, kill: true},
}

// ProfileInfo says what a profile is.
type ProfileInfo struct {
	Name  string
	About string
}

// Profiles lists the profiles in the order in which they run.
func Profiles() []ProfileInfo {
	all := make([]ProfileInfo, len(declarations))
	for i, d := range declarations {
		all[i] = ProfileInfo{d.name, d.about}
	}
	return all
}

// request is what is sent.
type request struct {
	method string
	path   string
	key    string // empty: none
	wait   bool
	body   string
}

// workload makes the requests of one series. It may be used by many goroutines.
type workload struct {
	declaration
	prefix string // of the keys that are made
	known  []known
	renew  int64 // with oneKey: a new key after so many requests; 0: never
	now    func() time.Time

	sent  atomic.Int64 // requests that were made
	fresh atomic.Int64 // keys that were made

	recent recent // of mixedKeys
}

// known is a call that has ended.
type known struct{ key, id string }

// newWorkload makes the requests of a series, with keys that nobody has.
func newWorkload(d declaration, pool []known) *workload {
	var unique [6]byte
	_, _ = rand.Read(unique[:]) // never fails
	return &workload{declaration: d, prefix: "bench-" + hex.EncodeToString(unique[:]), known: pool, now: time.Now}
}

// next makes a request. All requests of a workload have the same length.
func (w *workload) next() request {
	n := w.sent.Add(1) - 1
	r := request{method: http.MethodPost, path: callsPath, wait: w.wait, body: w.body}
	switch w.keys {
	case newKeys:
		r.key = w.newKey()
	case oneKey:
		i := int64(0)
		if w.renew > 0 {
			i = n / w.renew
		}
		for f := w.fresh.Load(); f < i+1 && !w.fresh.CompareAndSwap(f, i+1); f = w.fresh.Load() {
		}
		r.key = w.key(i)
	case mixedKeys:
		r.key = w.mixed(n)
	case knownKeys:
		k := w.known[n%int64(len(w.known))]
		r.key = k.key
		if w.get {
			return request{method: http.MethodGet, path: callsPath + "/" + k.id}
		}
	}
	return r
}

func (w *workload) newKey() string { return w.key(w.fresh.Add(1) - 1) }

func (w *workload) key(i int64) string { return fmt.Sprintf("%s-%012d", w.prefix, i) }

// duplicateOf is the age up to which a key is sent again.
const duplicateOf = time.Second

// mixed gives every tenth request a key that was made at most a second ago, if
// there is one. Which one is spread over all of them, without chance, so that
// two runs do the same.
func (w *workload) mixed(n int64) string {
	now := w.now()
	if n%10 == 9 {
		if i, ok := w.recent.pick(now.Add(-duplicateOf), uint64(n)); ok {
			return w.key(i)
		}
	}
	i := w.fresh.Add(1) - 1
	w.recent.add(i, now)
	return w.key(i)
}

// recent remembers which keys were made when. It is bounded: at more than so
// many keys a second, the last of them are what is picked from.
type recent struct {
	mu   sync.Mutex
	made [1 << 16]struct {
		key int64
		at  time.Time
	}
	n int64 // ever made
}

func (r *recent) add(key int64, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slot := &r.made[r.n%int64(len(r.made))]
	slot.key, slot.at = key, at
	r.n++
}

// pick gives one of the keys that were made since then.
func (r *recent) pick(since time.Time, n uint64) (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := max(0, r.n-int64(len(r.made)))
	lo, hi := oldest, r.n // the first one that is young enough; times go up but for races, which do not matter
	for lo < hi {
		mid := (lo + hi) / 2
		if r.made[mid%int64(len(r.made))].at.Before(since) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == r.n {
		return 0, false
	}
	// The upper half of a product with a number that is spread evenly is one that
	// is spread evenly below the other factor.
	at, _ := bits.Mul64(n*0x9E3779B97F4A7C15, uint64(r.n-lo))
	return r.made[(lo+int64(at))%int64(len(r.made))].key, true
}
