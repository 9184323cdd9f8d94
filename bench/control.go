package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idemd/idemd/client"
)

// Answer is one of idemd's answers, for the control to give it to everybody.
type Answer struct {
	Status int           `json:"status"`
	Header http.Header   `json:"header"`
	Body   []byte        `json:"body"`
	Delay  time.Duration `json:"delay_ns"` // before it, where the tool takes its time as well
}

// maxAnswer bounds what the control takes for its answer, in bytes.
const maxAnswer = 4 << 20

// ReadAnswer reads the answer that a control is to give.
func ReadAnswer(r io.Reader) (Answer, error) {
	var a Answer
	if err := json.NewDecoder(io.LimitReader(r, maxAnswer)).Decode(&a); err != nil {
		return a, fmt.Errorf("bench: the answer to give: %w", err)
	}
	if a.Status < 200 || a.Status > 599 || a.Delay < 0 {
		return a, errors.New("bench: the answer to give has no status, or no delay that can be")
	}
	return a, nil
}

// SayControl says where a control listens, as the suite waits for it.
func SayControl(w io.Writer, addr string) error {
	_, err := fmt.Fprintf(w, "%shttp://%s\n", controlListening, addr)
	return err
}

// asker asks idemd for single things, each over a connection of its own or one
// on which nothing is sent again.
type asker struct {
	base string
	wire *client.Transport
}

func newAsker(base string) *asker { return &asker{base, client.NewTransport()} }

func (a *asker) close() { a.wire.CloseIdleConnections() }

// send sends one request and reads the whole answer.
func (a *asker) send(ctx context.Context, r request) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, a.base+r.path, body)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	req.Header = r.header()
	resp, err := a.wire.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("bench: %s %s: %w", r.method, a.base+r.path, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer/2))
	if err != nil {
		return nil, fmt.Errorf("bench: %s %s: %w", r.method, a.base+r.path, err)
	}
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: got}, nil
}

// askTime is how long one question may take.
const askTime = 30 * time.Second

// want is send where only one status will do.
func (a *asker) want(ctx context.Context, r request, status int) (*Answer, error) {
	got, err := a.send(ctx, r)
	if err == nil && got.Status != status {
		err = fmt.Errorf("bench: %s %s: status %d, not %d: %.300q", r.method, a.base+r.path, got.Status, status, got.Body)
	}
	return got, err
}

// callID is the header field with the id of the call that an answer is about.
const callID = "Idemd-Call-Id"

// settle makes calls with an end, for those to find who ask for known keys.
func (a *asker) settle(ctx context.Context, n int) ([]known, error) {
	w := newWorkload(declarations[0], nil)
	pool := make([]known, n)
	for i := range pool {
		r := w.next()
		got, err := a.want(ctx, r, http.StatusOK)
		if err != nil {
			return nil, err
		}
		pool[i] = known{r.key, got.Header.Get(callID)}
		if pool[i].id == "" {
			return nil, fmt.Errorf("bench: %s: an answer without %s: this is not idemd", a.base, callID)
		}
	}
	return pool, nil
}

// sample gets an answer as most requests of a profile do.
func (a *asker) sample(ctx context.Context, d declaration, pool []known) (*Answer, error) {
	w := newWorkload(d, pool)
	got, err := a.want(ctx, w.next(), d.right)
	if err == nil && d.keys == oneKey {
		got, err = a.want(ctx, w.next(), d.right) // all but the first are replays
	}
	if err != nil {
		return nil, err
	}
	got.Delay = d.delay
	// What net/http writes by itself.
	got.Header.Del("Date")
	got.Header.Del("Content-Length")
	return got, nil
}
