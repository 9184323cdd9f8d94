package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/idemd/idemd/client"
)

const (
	// IntentMark stands for the intent in a body.
	IntentMark = "{{intent}}"

	// AmountMark stands for an amount, a whole number.
	AmountMark = "{{amount}}"

	// DefaultBody is what is sent to a target by default.
	DefaultBody = `{"intent":"{{intent}}","amount":{{amount}}}`
)

// Target is a service that is not the probe's own. It is only known by an
// endpoint that takes a POST, a field that carries the key, and a ledger.
//
// Every intent of a run has a name of its own, made for the run; it is the key,
// and it must come out in the ledger. So other entries do not matter, old or
// new.
type Target struct {
	// URL is the endpoint: http or https.
	URL string

	// Ledger is where the target's ledger is read: a URL (idemd's own may be given
	// without a path), or the name of a file.
	Ledger string

	// Table says how intents are found in the ledger.
	Table Table

	// KeyHeader is the field with the key. Default Idempotency-Key.
	KeyHeader string

	// Header goes with every request, such as a credential; where the ledger is
	// at the same host and port, with those for it as well.
	Header http.Header

	// Body is what is sent, with IntentMark and perhaps AmountMark in it. Default
	// DefaultBody. IntentMark may be missing where the ledger has the key.
	Body string

	// Intents of a scenario. Default 3, at most 1000.
	Intents int

	// Timeout of a try. Default 5s, at most 1h. Too low: every answer is a lost one.
	// The scenario with a slow answer takes that long.
	Timeout time.Duration

	// Settle is how long after the last request the ledger may still grow. Default
	// 1s. Too low: an effect that comes later is taken for a lost one, and a
	// duplicate that comes later is not seen.
	Settle time.Duration

	// Remote allows a target that is not on this machine. Real effects are made at
	// the target, many of them on purpose in a dubious way: it must be a test
	// system.
	Remote bool
}

const (
	maxIntents = 1000
	maxTimeout = time.Hour
)

// fill sets what is zero to its default.
func (t *Target) fill() {
	if t.KeyHeader == "" {
		t.KeyHeader = keyHeader
	}
	if t.Body == "" {
		t.Body = DefaultBody
	}
	if t.Intents == 0 {
		t.Intents = 3
	}
	if t.Timeout == 0 {
		t.Timeout = 5 * time.Second
	}
	if t.Settle == 0 {
		t.Settle = time.Second
	}
	if t.Table.Name == "" {
		t.Table.Name = t.Ledger
	}
}

// Validate reports everything that is wrong with a target that can be known
// without asking it. What is zero has its default.
func (t Target) Validate() error {
	t.fill()
	var faults []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("probe: target: "+format, args...))
		}
	}
	u, err := url.Parse(t.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		want(false, "want a URL like http://HOST:PORT/PATH")
	} else {
		want(t.Remote || loopback(u.Hostname()),
			"%s is not on this machine, and real effects are made there: it must be a test system, and somebody has to say so", u.Hostname())
	}
	want(t.Ledger != "", "without a ledger nothing can be judged")
	// A request with a field that cannot be sent is not sent, and its intent would
	// look lost.
	want(isFieldName(t.KeyHeader), "%q is not the name of a field", t.KeyHeader)
	for name, values := range t.Header {
		want(isFieldName(name), "%q is not the name of a field", name)
		for _, v := range values {
			want(!strings.ContainsFunc(v, isControl), "the value of the field %s has a control character in it", name)
		}
	}
	want(t.Intents >= 1 && t.Intents <= maxIntents, "%d intents; want 1 to %d", t.Intents, maxIntents)
	want(t.Timeout > 0 && t.Timeout <= maxTimeout, "the time-out is %v; want more than 0, and at most %v", t.Timeout, maxTimeout)
	want(t.Settle > 0, "the time to settle is %v; want more than 0", t.Settle)
	return errors.Join(faults...)
}

// isFieldName reports whether a text is a token of RFC 9110, section 5.6.2.
func isFieldName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// isControl reports whether a character cannot be in a field's value.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }

// loopback reports whether a host is this machine, without asking anybody.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// target is a target during a run.
type target struct {
	Target
	base, path string
	run        string // what the names of this run's intents begin with
	before     int    // entries of others
	wire       *client.Transport
}

// openTarget checks that the target listens and its ledger can be read, before
// anything is sent.
func openTarget(ctx context.Context, t Target) (*target, error) {
	t.fill()
	if err := t.Validate(); err != nil {
		return nil, precondition("%w", err)
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, precondition("%w", err)
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	o := &target{
		Target: t, base: u.Scheme + "://" + u.Host, path: u.RequestURI(), run: "probe-" + hex.EncodeToString(random[:]),
		wire: client.NewTransport(),
	}
	if err := o.listens(ctx, u); err != nil {
		o.close()
		return nil, err
	}
	entries, _, err := o.read(ctx)
	if errors.Is(err, fs.ErrNotExist) { // made with the first entry
		err = nil
	}
	if err != nil {
		o.close()
		return nil, precondition("the ledger cannot be read, so nothing was sent: %w", err)
	}
	o.before = len(entries)
	return o, nil
}

func (t *target) listens(ctx context.Context, u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = u.Scheme // a service's name is a port
	}
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return precondition("the target cannot be reached: %w", err)
	}
	return c.Close()
}

func (t *target) close() { t.wire.CloseIdleConnections() }

// read reads the ledger: which intents its entries are about, and its text.
func (t *target) read(ctx context.Context) (entries []string, text []byte, err error) {
	if strings.HasPrefix(t.Ledger, "http://") || strings.HasPrefix(t.Ledger, "https://") {
		u, err := url.Parse(t.Ledger)
		if err != nil {
			return nil, nil, err
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = "/v1/effects"
		}
		var header http.Header
		if u.Scheme+"://"+u.Host == t.base {
			header = t.Header // a credential is for the target, and nobody else
		}
		ctx, cancel := context.WithTimeout(ctx, max(t.Timeout, time.Second))
		defer cancel()
		if text, err = fetch(ctx, t.wire, u.String(), "application/x-ndjson, text/csv;q=0.9", header); err != nil {
			return nil, nil, err
		}
	} else if text, err = os.ReadFile(t.Ledger); err != nil {
		return nil, nil, err
	}
	_, err = t.Table.Read(bytes.NewReader(text), func(id string) error { entries = append(entries, id); return nil })
	return entries, text, err
}

// judge reads the ledger and judges every scenario by what is new in it.
func (t *target) judge(ctx context.Context, results []*Result) error {
	if err := rest(ctx, t.Settle); err != nil {
		return err
	}
	entries, text, err := t.read(ctx)
	if err != nil {
		return precondition("the ledger cannot be read after the run: %w", err)
	}
	others := 0
	of := make(map[string]*Result)
	for _, r := range results {
		for _, id := range r.Intents {
			of[id] = r
		}
	}
	found := make(map[*Result][]string)
	for _, id := range entries {
		if r := of[id]; r != nil {
			found[r] = append(found[r], id)
		} else {
			others++
		}
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if i := strings.Index(line, t.run); i >= 0 {
			for id, r := range of {
				if has(line[i:], id) {
					r.Ledger = append(r.Ledger, line)
				}
			}
		}
	}
	for _, r := range results {
		if n := others - t.before; n != 0 {
			r.note("the ledger has %d entries more that are not of this run", n)
		}
		r.judge(found[r])
	}
	return nil
}

// has reports whether a text begins with an id that does not go on.
func has(text, id string) bool {
	rest, ok := strings.CutPrefix(text, id)
	return ok && (rest == "" || rest[0] < '0' || rest[0] > '9')
}

// intent names the intent number n, from 1, of a scenario.
func (t *target) intent(scenario string, n int) string {
	return fmt.Sprintf("%s-%s-%d", t.run, strings.TrimPrefix(scenario, "target_"), n)
}

func (t *target) body(intent string, amount int) []byte {
	return []byte(strings.NewReplacer(IntentMark, intent, AmountMark, fmt.Sprint(amount)).Replace(t.Body))
}
