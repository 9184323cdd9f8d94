package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// sinkRule is how a sink tells an order that it has seen from a new one. All but
// keyAtomic are wrong, on purpose, and stand nowhere else than here: nothing of
// idemd can be set to one of them.
type sinkRule string

const (
	naive       sinkRule = "naive"        // it does not
	keyAtomic   sinkRule = "key_atomic"   // by key; check and write are one critical section
	keyRacy     sinkRule = "key_racy"     // by key; check, then write
	keyTTL      sinkRule = "key_ttl"      // by key, for a window after the payment
	contentHash sinkRule = "content_hash" // by what is paid to whom
)

// sinkWindow is how long a sink with the rule keyTTL remembers a key.
const sinkWindow = 100 * time.Millisecond

// order is what a sink is asked for. Intent is the buyer's number of the order:
// it goes into the ledger, so that the ledger can be judged, and is no part of
// what is paid to whom.
type order struct {
	Intent string `json:"intent"`
	To     string `json:"to"`
	Amount int    `json:"amount"`
}

// payment is a line of a sink's ledger: money that is gone.
type payment struct {
	Effect string `json:"effect_id"`
	Intent string `json:"intent"`
	Key    string `json:"key"`
	To     string `json:"to"`
	Amount int    `json:"amount"`
}

// book decides which orders are paid. It forgets everything with the process,
// as the keys of a cache do; the ledger stays.
type book struct {
	rule  sinkRule
	write func(payment) (string, error) // into the ledger, durably; gives the effect's id
	now   func() time.Duration          // monotonic, since any moment
	meet  func(ctx context.Context, identity string) error

	mu   sync.Mutex
	paid map[string]paidOrder
}

type paidOrder struct {
	effect string
	at     time.Duration
}

func newBook(r sinkRule, write func(payment) (string, error)) *book {
	began := time.Now()
	return &book{
		rule: r, write: write, paid: make(map[string]paidOrder),
		now:  func() time.Duration { return time.Since(began) },
		meet: func(context.Context, string) error { return nil },
	}
}

// pay pays an order, or says that it was paid before.
func (b *book) pay(ctx context.Context, o order, key string) (effect string, replayed bool, err error) {
	p := payment{Intent: o.Intent, Key: key, To: o.To, Amount: o.Amount}
	switch b.rule {
	case naive:
		effect, err = b.write(p)
		return effect, false, err

	case keyRacy:
		b.mu.Lock()
		was, known := b.paid[key]
		b.mu.Unlock()
		if known {
			return was.effect, true, nil
		}
		// Here is the hole: whoever looks now sees nothing either.
		if err := b.meet(ctx, key); err != nil {
			return "", false, err
		}
		effect, err := b.write(p)
		if err == nil {
			b.mu.Lock()
			b.paid[key] = paidOrder{effect: effect, at: b.now()}
			b.mu.Unlock()
		}
		return effect, false, err

	case keyAtomic, keyTTL, contentHash:
		identity := key
		if b.rule == contentHash {
			identity = fmt.Sprintf("%d to %s", o.Amount, o.To)
		}
		// Whoever is to race is in the house before the first one goes through
		// the door.
		if err := b.meet(ctx, identity); err != nil {
			return "", false, err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		was, known := b.paid[identity]
		if known && (b.rule != keyTTL || b.now()-was.at <= sinkWindow) {
			return was.effect, true, nil
		}
		effect, err := b.write(p)
		if err == nil {
			b.paid[identity] = paidOrder{effect: effect, at: b.now()}
		}
		return effect, false, err
	}
	return "", false, fmt.Errorf("probe: no rule %q", b.rule)
}

// faults fail the first requests of each intent. They outlive a sink, so that a
// restart does not bring them back.
type faults struct {
	refuse int // first requests that get 503, before anything is paid
	drop   int // first requests that are paid and get no answer

	mu    sync.Mutex
	heard map[string]int
}

// next counts a request of an intent and says what is to become of it.
func (f *faults) next(intent string) (refuse, drop bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard == nil {
		f.heard = make(map[string]int)
	}
	f.heard[intent]++
	n := f.heard[intent]
	return n <= f.refuse, n <= f.drop
}

// crowdPatience is how long the first of a crowd waits for the others.
const crowdPatience = 10 * time.Second

// crowd makes requests of one identity wait for each other: nobody goes on
// before size of them have come. It makes a race of what would be a chance of one.
type crowd struct {
	size int

	mu    sync.Mutex
	rooms map[string]*room
}

type room struct {
	here int
	full chan struct{}
}

func (c *crowd) meet(ctx context.Context, identity string) error {
	c.mu.Lock()
	if c.rooms == nil {
		c.rooms = make(map[string]*room)
	}
	r := c.rooms[identity]
	if r == nil {
		r = &room{full: make(chan struct{})}
		c.rooms[identity] = r
	}
	r.here++
	if r.here == c.size {
		close(r.full)
	}
	c.mu.Unlock()

	late := time.NewTimer(crowdPatience)
	defer late.Stop()
	select {
	case <-r.full:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return errors.New("probe: the others of a race did not come")
	}
}

// maxOrder is the longest order that a sink reads, in bytes.
const maxOrder = 64 << 10

// sink is a small payment service on a real socket, with a ledger on a real
// disk. It lives until close.
type sink struct {
	book   *book
	faults *faults
	mu     sync.Mutex // the wrong rules write at the same time
	ledger *os.File
	lines  int

	url    string
	server *http.Server
	served chan error
}

// openSink starts a sink over a ledger, which is made where it is missing. crowd
// may be nil.
func openSink(r sinkRule, ledger string, f *faults, c *crowd) (*sink, error) {
	s := &sink{faults: f, served: make(chan error, 1)}
	s.book = newBook(r, s.append)
	if c != nil {
		s.book.meet = c.meet
	}
	before, err := readLines(ledger)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s.lines = len(before)
	if s.ledger, err = os.OpenFile(ledger, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("probe: the sink's ledger: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("probe: the sink's listener: %w", err), s.ledger.Close())
	}
	s.url = "http://" + l.Addr().String() + "/payments"
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", s.serve)
	s.server = &http.Server{Handler: mux, ReadTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { s.served <- s.server.Serve(l) }()
	return s, nil
}

// close ends the sink at once and with it all that it remembers; the ledger
// stays.
func (s *sink) close() error {
	err := s.server.Close()
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("probe: the sink's listener: %w", served))
	}
	return errors.Join(err, s.ledger.Close())
}

func (s *sink) serve(w http.ResponseWriter, r *http.Request) {
	var o order
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOrder))
	if err != nil || json.Unmarshal(raw, &o) != nil || o.Intent == "" {
		http.Error(w, "not an order", http.StatusBadRequest)
		return
	}
	refuse, drop := s.faults.next(o.Intent)
	if refuse {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	effect, replayed, err := s.book.pay(r.Context(), o, r.Header.Get(keyHeader))
	switch {
	case err != nil:
		http.Error(w, "the ledger cannot be written", http.StatusInternalServerError)
	case drop:
		panic(http.ErrAbortHandler) // the connection closes without a byte
	default:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(replayedHeader, fmt.Sprint(replayed))
		fmt.Fprintf(w, `{"effect_id":%q}`+"\n", effect)
	}
}

func (s *sink) append(p payment) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Effect = fmt.Sprintf("pay_%d", s.lines+1)
	line, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	if _, err := s.ledger.Write(append(line, '\n')); err != nil {
		return "", err
	}
	if err := s.ledger.Sync(); err != nil {
		return "", err
	}
	s.lines++
	return p.Effect, nil
}
