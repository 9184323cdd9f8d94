package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// Options are what a client may be given. The zero value is good.
type Options struct {
	Policy  Policy       // the zero value is DefaultPolicy
	Journal *Journal     // nil for none; it stays the caller's to close
	Logger  *slog.Logger // a line for every try; nil for none

	// Header goes with every request, such as a credential. What the client
	// sets itself cannot be given here.
	Header http.Header

	// Observe is told what every try brought, when it is over, in order within one call, by
	// the goroutine that makes it. Nil for nobody.
	Observe func(Answer)

	// Chance draws from [0, 1) for the pauses; nil for chance. It is used by many
	// goroutines.
	Chance func() float64

	// Pause waits between two tries, and returns early with the context's error
	// when that is over; nil to wait.
	Pause func(context.Context, time.Duration) error
}

// Client talks to one idemd. It may be used by many goroutines.
type Client struct {
	base  string
	o     Options
	http  *http.Client
	via   *Transport
	log   *slog.Logger
	tools tools

	life context.Context // over when the client is closed
	end  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

const (
	pathCalls = "/v1/tool-calls"
	pathByKey = pathCalls + "/by-key"
	pathTools = "/v1/tools"

	maxAnswer = 64 << 20 // bytes of a body
)

// New returns a client for the server at a URL: http or https, a host, perhaps a
// path before the routes. The error says everything that is wrong with the URL
// and the options. Nothing is sent yet.
func New(server string, o Options) (*Client, error) {
	if o.Policy == (Policy{}) {
		o.Policy = DefaultPolicy()
	}
	base, err := baseURL(server)
	err = errors.Join(err, o.Policy.Validate())
	// A copy, which is nobody else's to change, in the one spelling of names that
	// cannot become a second line of the same header.
	header := http.Header{}
	for name, values := range o.Header {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	o.Header = header
	for _, name := range []string{"Idempotency-Key", "Content-Type", "Prefer"} {
		if _, given := o.Header[name]; given {
			err = errors.Join(err, fmt.Errorf("client: options: the header %s is the client's own", name))
		}
	}
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observe == nil {
		o.Observe = func(Answer) {}
	}
	if o.Chance == nil {
		o.Chance = rand.Float64
	}
	if o.Pause == nil {
		o.Pause = pause
	}
	via := NewTransport()
	c := &Client{
		base: base, o: o, via: via, log: o.Logger, tools: newTools(),
		http: &http.Client{
			Transport:     via,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

func baseURL(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New("client: not a URL") // the error quotes it, and a URL may hold a password
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", errors.New("client: want a URL like http://HOST:PORT")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// Close lets nothing begin any more, interrupts what is going on, waits until it
// has returned, and closes the connections. It may be called again.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.running.Wait()
	c.via.CloseIdleConnections()
}

// enter begins a method that sends. The context is over, too, when the client is
// closed; leave must be called.
func (c *Client) enter(ctx context.Context, key string) (_ context.Context, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, &Error{Code: CodeClosed, Message: ErrClosed.Message, Key: key, Effect: idem.DoubtNone}
	}
	c.running.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.life, cancel)
	return ctx, func() {
		stop()
		cancel()
		c.running.Done()
	}, nil
}

// Submit sends a request once, without a retry, a question or the journal, and
// returns what that one request on the wire brought. The error is nil where the
// answer is a call that is not held, whether it has its end or not; else it is an
// *Error, and the answer says what was read.
func (c *Client) Submit(ctx context.Context, r Request) (Answer, error) {
	f, err := r.freeze()
	if err != nil {
		return Answer{}, err
	}
	return c.once(ctx, query{kind: KindSubmit, path: pathCalls, key: f.key, tool: f.tool, body: f.body})
}

// Get asks once for a call by its id, and waits for its end as long as the policy's
// Wait. The error is as for Submit; a malformed id is not_found, and is not sent.
func (c *Client) Get(ctx context.Context, callID string) (Answer, error) {
	path, err := callPath(callID)
	if err != nil {
		return Answer{}, err
	}
	return c.once(ctx, query{kind: KindGet, path: path, callID: callID})
}

// Find asks once for a call by its key, and waits for its end as long as the
// policy's Wait. The error is as for Submit. A question that brings no call does not
// tell what became of the intent, so its error's Effect is unknown, as Get's is.
func (c *Client) Find(ctx context.Context, key string) (Answer, error) {
	k, err := idem.ParseKey(idem.DefaultNamespace, key)
	if err != nil {
		return Answer{}, refused(key, err, "")
	}
	return c.once(ctx, query{kind: KindFind, path: pathByKey, key: k})
}

func (c *Client) once(ctx context.Context, q query) (Answer, error) {
	ctx, leave, err := c.enter(ctx, q.key.HeaderValue())
	if err != nil {
		return Answer{}, err
	}
	defer leave()
	a := c.send(ctx, q, 1)
	if v := a.Try.Verdict.Action; v == ActionDone || v == ActionPoll {
		return a, nil
	}
	e := a.failure()
	e.Tries = []Try{a.Try}
	if q.kind != KindSubmit {
		// That a question is refused or lost says nothing of what it is about.
		e.Effect = idem.DoubtUnknown
	}
	return a, e
}

// callPath is where a call is found. An id that cannot be one is not sent: the
// path that it would make may mean something else.
func callPath(callID string) (string, error) {
	if _, err := idem.ParseCallID(callID); err != nil {
		return "", &Error{Code: idem.CodeNotFound, Message: "no such call: an id is c_ and 32 hex digits", Effect: idem.DoubtNone, Err: err}
	}
	return pathCalls + "/" + callID, nil
}

// query is one request to be sent.
type query struct {
	kind   Kind
	path   string
	key    idem.Key // zero for none
	tool   string   // of a submission
	callID string   // where it is asked for by id
	body   []byte   // nil for a GET
}

// send makes one request on the wire, judges what came of it, and tells the log
// and the observer.
func (c *Client) send(ctx context.Context, q query, number int) Answer {
	began := time.Now()
	a := Answer{Try: Try{Number: number, Kind: q.kind, Key: q.key.Name, CallID: q.callID, Began: began.UTC()}}
	got, err := c.exchange(ctx, q, c.o.Policy.Wait)
	if a.err = err; err != nil {
		a.Try.Error = err.Error()
	}
	a.read(q, got, err)
	a.Try.Duration = time.Since(began)
	c.note(ctx, a.Try)
	c.o.Observe(a)
	return a
}

// received is what came back; the zero value where nothing did.
type received struct {
	status int
	header http.Header
	body   []byte
}

// exchange makes one request on the wire. What came back is whole where the error
// is nil; else there may be a status without a whole body.
func (c *Client) exchange(ctx context.Context, q query, wait time.Duration) (received, error) {
	// The wait is rounded up as the header is, or the client would leave before
	// the server answers.
	seconds := (wait + time.Second - 1) / time.Second
	ctx, cancel := context.WithTimeout(ctx, add(c.o.Policy.Timeout, seconds*time.Second))
	defer cancel()
	method := http.MethodGet
	var body io.Reader
	if q.body != nil {
		method, body = http.MethodPost, bytes.NewReader(q.body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+q.path, body)
	if err != nil {
		return received{}, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	maps.Copy(req.Header, c.o.Header)
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.key.Name != "" {
		req.Header.Set("Idempotency-Key", q.key.HeaderValue())
	}
	if seconds > 0 {
		req.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(seconds), 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return received{}, cause(err)
	}
	defer resp.Body.Close()
	got := received{status: resp.StatusCode, header: resp.Header}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return got, fmt.Errorf("half an answer: %w", cause(err))
	case len(text) > maxAnswer:
		return got, errors.New("the answer is too long")
	case !tellsItsEnd(resp) && mayBeHalf(text):
		return got, errors.New("half an answer: it ends in the middle")
	}
	got.body = text
	return got, nil
}

// tellsItsEnd reports whether an answer's body can be told from a part of it.
func tellsItsEnd(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.Uncompressed || slices.Contains(resp.TransferEncoding, "chunked")
}

// mayBeHalf reports whether a body may be the beginning of one of idemd's
// documents. Half the refusal of a held call must not be taken for another's.
func mayBeHalf(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) == 0 || text[0] == '{' && !json.Valid(text)
}

// cause says what stopped a request, without the method and the URL, which the
// caller knows.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, ErrNotSent):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("no answer: interrupted: %w", err)
	}
	return fmt.Errorf("no answer: %w", err)
}

// of reports whether a call is what was asked for. It may be another's: a cache or a
// proxy may mix answers up, and a connection may hold one that is left over.
func (q query) of(c *Call) bool {
	switch q.kind {
	case KindSubmit:
		return (c.Unrecorded || c.Key == q.key.Name) && c.Tool == q.tool
	case KindFind: // of which tool is for whoever asks
		return c.Key == q.key.Name
	default:
		return c.CallID == q.callID
	}
}

// read fills in what an answer says, and the verdict on it.
func (a *Answer) read(q query, got received, err error) {
	r := Reading{Status: got.status, NotSent: errors.Is(err, ErrNotSent)}
	if got.header != nil {
		r.RetryAfter = retryAfter(got.header)
		a.Replayed = got.header.Get("Idempotent-Replayed") == "true"
		a.Try.Replayed = a.Replayed
	}
	switch {
	case got.status == http.StatusOK || got.status == http.StatusAccepted:
		if err == nil {
			a.Body = got.body
			if a.Call = ParseCall(got.body); a.Call != nil && !q.of(a.Call) {
				a.Call, a.Body = nil, nil
				a.err = errors.New("the answer is about another call")
				a.Try.Error = a.err.Error()
			}
		}
		if r.Broken = a.Call == nil; !r.Broken {
			r.Call = a.Call.Status
			if f := a.Call.Error; f != nil {
				r.Failure, r.Retryable = clip(f.Code, maxCode), f.Retryable
				if f.Effect == idem.DoubtNone || rank(f.Effect) > 0 {
					r.Effect = f.Effect
				}
				r.RetryAfter = max(r.RetryAfter, f.wait())
			}
			a.Try.CallID = a.Call.CallID
		}
	case err != nil:
		// Half a refusal could be any refusal, that of a held call too.
		r = Reading{NotSent: r.NotSent}
	default:
		a.Body = got.body
		if doc := ParseRefusal(got.body); doc != nil && got.status >= http.StatusBadRequest {
			r.Code, r.Effect = doc.Code, doc.Effect
			a.Try.Error = doc.Message
			if doc.CallID != "" {
				a.Try.CallID = doc.CallID
			}
		}
	}
	a.Try.Reading = r
	a.Try.Verdict = Classify(r)
	if a.Try.Kind == KindFind && r.Status == http.StatusNotFound && r.Code == idem.CodeNotFound {
		// A request that was lost may still be on its way.
		a.Try.Verdict = Verdict{idem.DoubtUnknown, ActionAgain, "no such call by now: send it again"}
	}
}

// retryAfter is what the answer asks for; 0 where it says nothing that can be
// read. idemd sends seconds; a date, which others may send, is left to the
// back-off, since it would need their clock.
func retryAfter(h http.Header) time.Duration {
	s, err := strconv.ParseUint(h.Get("Retry-After"), 10, retryAfterBits)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return time.Duration(s) * time.Second // of too much: the most that there is
}

const (
	retryAfterBits = 31
	maxRetryAfter  = 1<<retryAfterBits - 1 // seconds
)

// failure is an answer that is no call with an end or on its way, as an error.
func (a *Answer) failure() *Error {
	t := a.Try
	e := &Error{
		Status: t.Reading.Status, CallID: t.CallID, Key: idem.Key{Name: t.Key}.HeaderValue(), Effect: t.Verdict.Effect,
		Message: t.Error, Body: a.Body, Err: a.err,
	}
	switch r := t.Reading; {
	case r.NotSent:
		e.Code = CodeNotSent
	case r.Code != "":
		e.Code = r.Code
	case r.Call == idem.StatusHeld:
		e.Code, e.Message, e.Call = idem.CodeOutcomeUnknown, idem.ErrOutcomeUnknown.Message, a.Call
	case a.doubtful():
		e.Code, e.Call = idem.CodeOutcomeUnknown, a.Call
		e.Message = fmt.Sprintf("the call has failed for good with %s, and may have been done all the same", r.Failure)
	case t.Error != "":
		e.Code = CodeNoAnswer
	default:
		e.Code, e.Message = CodeNotIdemd, fmt.Sprintf("the answer is not idemd's (status %d)", r.Status)
	}
	return e
}

// note writes the line of a try to the log. Keys are not written whole: whoever
// reads the log must not be able to use them.
func (c *Client) note(ctx context.Context, t Try) {
	c.log.LogAttrs(ctx, slog.LevelInfo, "try",
		slog.Int("try", t.Number),
		slog.String("kind", string(t.Kind)),
		slog.String("key", keyPrefix(t.Key)),
		slog.String("call", t.CallID),
		slog.Int("status", t.Reading.Status),
		slog.String("code", string(t.Reading.Code)),
		slog.String("effect", string(t.Verdict.Effect)),
		slog.String("action", string(t.Verdict.Action)),
		slog.Bool("replayed", t.Replayed),
		slog.Duration("took", t.Duration),
		slog.String("why", t.Verdict.Why),
	)
}

// keyPrefix is what a log may show of a key: eight bytes, and of a short one half.
func keyPrefix(key string) string {
	if key == "" {
		return ""
	}
	return key[:min(8, len(key)/2)] + "…"
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
