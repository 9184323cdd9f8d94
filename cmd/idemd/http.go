package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/idemd/idemd/client"
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
	accept       string // Accept, where it is not empty
	body         []byte // JSON; nil for none
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send makes one request on the wire and reads its answer. The error matches
// client.ErrNotSent where it never got there; after any other error nobody knows what
// the server did.
func (s *server) send(ctx context.Context, q question) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
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

// tellsItsEnd reports whether an answer's body can be told from a part of it:
// only a length, the end of the transfer coding, or the sum at the end of a
// compressed body does that.
func tellsItsEnd(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.Uncompressed || slices.Contains(resp.TransferEncoding, "chunked")
}

const endUnknown = "the answer does not tell where the ledger ends, so a part of it could not be told from all of it; ask the server directly"

// do makes one request on the wire, until the head of its answer is there. The
// caller closes the body, and ends the context when it has read it.
func (s *server) do(ctx context.Context, q question) (*http.Response, error) {
	base, err := s.base()
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, base+q.path, body)
	if err != nil {
		return nil, exit(exitUsage, "--url: %v", err)
	}
	req.Close = true // there is no second request
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	once := http.Client{
		Transport:     client.NewTransport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := once.Do(req)
	switch {
	case errors.Is(err, client.ErrNotSent):
		return nil, cause(err)
	case err != nil:
		return nil, fmt.Errorf("no answer: %w", cause(err))
	}
	return resp, nil
}

// client makes a client of the server. What it has to warn of goes to stderr.
func (s *server) client(con *console, o client.Options) (*client.Client, error) {
	base, err := s.base()
	if err != nil {
		return nil, err
	}
	o.Logger = slog.New(slog.NewTextHandler(con.stderr, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	o.Policy.Timeout = s.Timeout
	c, err := client.New(base, o)
	if err != nil {
		return nil, exit(exitUsage, "%v", err)
	}
	return c, nil
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

const timeIsUp = "the time is up (--timeout, and --wait on top)"

// cause says what stopped a request, without the method and the URL, which the
// caller knows.
func cause(err error) error {
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New(timeIsUp)
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
type callDoc = client.Call

// failureText is why a call failed, or is held, for people.
func failureText(c *callDoc) string {
	f := c.Error
	s := plain(f.Code) + ": " + plain(f.Message)
	var more []string
	if f.Retryable {
		again := "the same key may ask again"
		if c.Unrecorded {
			again = "it may be asked for again"
		}
		if f.RetryAfter > 0 {
			again += fmt.Sprintf(", after %v", time.Duration(f.RetryAfter)*time.Second)
		}
		more = append(more, again)
	}
	if f.InDoubt() {
		more = append(more, "it may have been done all the same")
	}
	if len(more) > 0 {
		s += " (" + strings.Join(more, "; ") + ")"
	}
	return s
}

// call reads a call out of an answer; nil where there is none.
func (a *answer) call() *callDoc {
	if a.status != http.StatusOK && a.status != http.StatusAccepted {
		return nil
	}
	return client.ParseCall(a.body)
}

// exitCodeOf is the exit code of a call's state.
func exitCodeOf(c *callDoc) int {
	switch c.Status {
	case idem.StatusSucceeded:
		return exitSucceeded
	case idem.StatusFailed:
		if c.Error != nil && c.Error.InDoubt() {
			return exitUnknown
		}
		return exitFailed
	case idem.StatusHeld:
		return exitUnknown
	default:
		return exitPending
	}
}

// refused turns an answer that is not what was asked for into an error. doubt is
// the exit code where it does not tell whether anything was done.
func (a *answer) refused(doubt int) *exitError {
	e := &client.Error{Code: client.CodeNotIdemd, Status: a.status, Message: fmt.Sprintf("the answer is not idemd's (status %d)", a.status)}
	if r := client.ParseRefusal(a.body); r != nil && a.status >= http.StatusBadRequest {
		e.Code, e.Message, e.CallID = r.Code, r.Message, r.CallID
	}
	return exitOf(e, doubt)
}

// exitOf is the one table of what a request's error means for the exit code, and
// for people. doubt is the exit code where it does not tell whether anything was
// done.
func exitOf(e *client.Error, doubt int) *exitError {
	message := plain(e.Message)
	code := doubt
	switch e.Code {
	case client.CodeNotSent:
		return &exitError{code: exitUnavailable, message: message}
	case client.CodeNoAnswer, client.CodeInterrupted:
		if errors.Is(e, context.DeadlineExceeded) {
			message = timeIsUp
		}
		return &exitError{code: doubt, message: message}
	case client.CodeNotIdemd:
		if e.Status >= 300 && e.Status < 500 && e.Status != http.StatusRequestTimeout {
			code = exitUsage
		}
		return &exitError{code: code, message: message + "; check --url"}
	case idem.CodeConflict, idem.CodeNotHeld:
		code = exitConflict
	case idem.CodeNotFound, idem.CodeKeyExpired:
		code = exitNotFound
	case idem.CodeOutcomeUnknown:
		code = exitUnknown
	case idem.CodeUnavailable, idem.CodeInsufficientStorage:
		code = exitUnavailable
	default:
		if e.Status < http.StatusInternalServerError {
			code = exitUsage
		}
	}
	if e.Status == 0 { // not the server's word, but the client's
		return &exitError{code: code, message: message}
	}
	message = plain(string(e.Code)) + ": " + message
	if e.CallID != "" {
		message += " (call " + plain(e.CallID) + ")"
	}
	return &exitError{code: code, message: message}
}

// failed turns a request that brought nothing into an error. doubt is the exit
// code where it was sent and its answer lost.
func failed(err error, doubt int) *exitError {
	var e *exitError
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, client.ErrNotSent) {
		doubt = exitUnavailable
	}
	return &exitError{code: doubt, message: err.Error()}
}

// writeJSON writes the document of an answer, if it is one, as it came.
func (c *console) writeJSON(a *answer) error { return c.writeDocument(a.body) }

func (c *console) writeDocument(body []byte) error {
	if !json.Valid(body) {
		return nil
	}
	return c.print("%s\n", bytes.TrimRight(body, "\n"))
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
