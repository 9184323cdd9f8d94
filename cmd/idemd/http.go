package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/idemd/idemd/idem"
)

const (
	pathCalls = "/v1/tool-calls"

	maxWait   = 60 * time.Second // what the server honours
	maxAnswer = 64 << 20
)

// server is whom to ask: flags of every client command.
type server struct {
	URL     string        `default:"http://127.0.0.1:8081" placeholder:"URL" help:"The server (${default})."`
	Timeout time.Duration `default:"5s" placeholder:"5s" help:"How long one try may take, on top of a wait. Too low turns slow answers into unknown outcomes."`
}

// remote is a server that is asked for one document.
type remote struct {
	server
	JSON bool `name:"json" help:"Write the server's JSON document to stdout, as it is."`
}

// question is one request.
type question struct {
	method, path string
	key          string // Idempotency-Key, where it is not empty
	accept       string // Accept, where it is not empty
	wait         time.Duration
	body         []byte // JSON; nil for none
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// errNotSent means that there never was a connection, so that nothing can have
// happened.
var errNotSent = errors.New("no connection")

// send makes one request on the wire and reads its answer. The error is
// errNotSent where it never got there; after any other error nobody knows what
// the server did.
func (s *server) send(ctx context.Context, q question) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout+q.wait)
	defer cancel()
	resp, err := s.do(ctx, q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return readAnswer(resp)
}

func readAnswer(resp *http.Response) (*answer, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("half an answer: %w", cause(err))
	}
	if len(text) > maxAnswer {
		return nil, errors.New("the answer is too long")
	}
	return &answer{status: resp.StatusCode, header: resp.Header, body: text}, nil
}

// do makes one request on the wire, until the head of its answer is there. The
// caller closes the body, and ends the context when it has read it.
func (s *server) do(ctx context.Context, q question) (*http.Response, error) {
	base, err := s.base()
	if err != nil {
		return nil, err
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})

	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, base+q.path, body)
	if err != nil {
		return nil, exit(exitUsage, "--url: %v", err)
	}
	// Go sends a request again by itself when a reused connection turns out to
	// be dead: one with a body if it can get the body again, one without a body
	// always. A try that nobody counted would make our answers lies, so there is
	// no second body and no reused connection.
	req.GetBody = nil
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.key != "" {
		req.Header.Set("Idempotency-Key", q.key)
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	if q.wait > 0 {
		seconds := int64((q.wait + time.Second - 1) / time.Second)
		req.Header.Set("Prefer", "wait="+strconv.FormatInt(seconds, 10))
	}

	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	client := http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, Protocols: http1},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		if !sent.Load() {
			return nil, fmt.Errorf("%w: %w", errNotSent, cause(err))
		}
		return nil, fmt.Errorf("no answer: %w", cause(err))
	}
	return resp, nil
}

// base checks the server's URL and gives it without a slash at its end.
func (s *server) base() (string, error) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return "", exit(exitUsage, "--url: not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
		return "", exit(exitUsage, "--url: want http://HOST:PORT")
	case s.Timeout <= 0:
		return "", exit(exitUsage, "--timeout: must be more than 0")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// cause says what stopped a request, without the method and the URL, which the
// caller knows.
func cause(err error) error {
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the time is up (--timeout, and --wait on top)")
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.As(err, &u):
		return u.Err
	}
	return err
}

// checkWait refuses a wait that the server would cut short.
func checkWait(d time.Duration) error {
	if d < 0 || d > maxWait {
		return exit(exitUsage, "--wait: must be between 0 and %v", maxWait)
	}
	return nil
}

// checkKey refuses a key that the server would refuse, or take for another: a
// header loses blanks at its ends on the way.
func checkKey(flag, key string) error {
	if _, err := idem.ParseKey(idem.DefaultNamespace, key); err != nil {
		return exit(exitUsage, "%s: %s", flag, message(err))
	}
	return nil
}

// message is what an error of idem says to people.
func message(err error) string {
	var e *idem.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// callDoc is a call as the server shows it.
type callDoc struct {
	CallID     string          `json:"call_id"`
	Key        string          `json:"idem_key"`
	Tool       string          `json:"tool"`
	Status     idem.Status     `json:"status"`
	Attempt    int             `json:"attempt"`
	Result     json.RawMessage `json:"result"`
	Error      *failureDoc     `json:"error"`
	EffectID   string          `json:"effect_id"`
	Deliveries int64           `json:"deliveries"`
	Crashes    int             `json:"crashes"`
	CreatedAt  string          `json:"created_at"`
	UpdatedAt  string          `json:"updated_at"`
	ExpiresAt  *string         `json:"expires_at"`
}

type failureDoc struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

func (f *failureDoc) String() string {
	s := plain(f.Code) + ": " + plain(f.Message)
	if f.Retryable {
		s += " (the same key may ask again)"
	}
	return s
}

// call reads a call out of an answer; nil where there is none.
func (a *answer) call() *callDoc {
	if a.status != http.StatusOK && a.status != http.StatusAccepted {
		return nil
	}
	var c callDoc
	if json.Unmarshal(a.body, &c) != nil || c.CallID == "" || !c.Status.Valid() {
		return nil
	}
	return &c
}

// exitCode is the exit code of a call's state.
func (c *callDoc) exitCode() int {
	switch c.Status {
	case idem.StatusSucceeded:
		return exitSucceeded
	case idem.StatusFailed:
		return exitFailed
	case idem.StatusHeld:
		return exitUnknown
	default:
		return exitPending
	}
}

// refusal is an error document of the server.
type refusal struct {
	Code    idem.Code `json:"code"`
	Message string    `json:"message"`
	CallID  string    `json:"call_id"`
}

func (r *refusal) String() string {
	s := plain(string(r.Code)) + ": " + plain(r.Message)
	if r.CallID != "" {
		s += " (call " + plain(r.CallID) + ")"
	}
	return s
}

// refusal reads an error document out of an answer; nil where there is none.
func (a *answer) refusal() *refusal {
	var doc struct {
		Error *refusal `json:"error"`
	}
	if a.status < http.StatusBadRequest || json.Unmarshal(a.body, &doc) != nil || doc.Error == nil || doc.Error.Code == "" {
		return nil
	}
	return doc.Error
}

// refused turns an answer that is not what was asked for into an error. doubt is
// the exit code where it does not tell whether anything was done.
func (a *answer) refused(doubt int) *exitError {
	r := a.refusal()
	if r == nil {
		message := fmt.Sprintf("the answer is not idemd's (status %d); check --url", a.status)
		if a.status >= 300 && a.status < 500 && a.status != http.StatusRequestTimeout {
			return &exitError{code: exitUsage, message: message}
		}
		return &exitError{code: doubt, message: message}
	}
	code := doubt
	switch r.Code {
	case idem.CodeConflict, idem.CodeNotHeld:
		code = exitConflict
	case idem.CodeNotFound, idem.CodeKeyExpired:
		code = exitNotFound
	case idem.CodeOutcomeUnknown:
		code = exitUnknown
	case idem.CodeUnavailable, idem.CodeInsufficientStorage:
		code = exitUnavailable
	default:
		if a.status < http.StatusInternalServerError {
			code = exitUsage
		}
	}
	return &exitError{code: code, message: r.String()}
}

// held reports whether the answer is that the call is held: asking again gives
// the same.
func (a *answer) held() bool {
	if a == nil {
		return false
	}
	r := a.refusal()
	return r != nil && r.Code == idem.CodeOutcomeUnknown
}

// retryAfter is what the server asks for; 0 where it says nothing.
func (a *answer) retryAfter() time.Duration {
	if a == nil {
		return 0
	}
	s, err := strconv.ParseUint(a.header.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(s) * time.Second
}

// failed turns a request that brought nothing into an error. doubt is the exit
// code where it was sent and its answer lost.
func failed(err error, doubt int) *exitError {
	var e *exitError
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, errNotSent) {
		doubt = exitUnavailable
	}
	return &exitError{code: doubt, message: err.Error()}
}

// writeJSON writes the document of an answer, if it is one, as it came.
func (c *console) writeJSON(a *answer) error {
	if a == nil || !json.Valid(a.body) {
		return nil
	}
	return c.print("%s\n", bytes.TrimRight(a.body, "\n"))
}

// plain makes text from a server fit for a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
