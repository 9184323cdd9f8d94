package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// listing is a server that is asked for many documents of a kind. Whatever
// their number, one page of them is in memory.
type listing struct {
	server
	JSON bool `name:"json" help:"Write JSON to stdout, one object a line (NDJSON), with the members that the server gave it."`
}

// pageSize is the most that the server gives at once; it ends a page of large
// ones early.
const pageSize = 1000

// piece is how much of a stream is written at once where it comes fast.
const piece = 32 << 10

// errEnough means that whoever read the output has seen enough, as head has.
var errEnough = errors.New("enough")

// show writes items as lines, a page at a time. It ends well when the reader of
// the output has gone: the writer knows of nothing that was asked and not given.
func (l *listing) show(con *console, head string, row func(raw []byte) (string, error), source func(emit func(raw []byte) error, flush func() error) error) error {
	// Else a write to a pipe that nobody reads any more ends this process before
	// it can say with which exit code.
	signal.Ignore(syscall.SIGPIPE)
	var out bytes.Buffer
	rows := 0
	emit := func(raw []byte) error {
		rows++
		if l.JSON {
			// Stored results are as the tool wrote them, line feeds included.
			if err := json.Compact(&out, raw); err != nil {
				return errStranger
			}
			out.WriteByte('\n')
			return nil
		}
		line, err := row(raw)
		if err != nil {
			return errStranger
		}
		if rows == 1 {
			out.WriteString(head + "\n")
		}
		out.WriteString(line + "\n")
		return nil
	}
	flush := func() error {
		defer out.Reset()
		_, err := con.stdout.Write(out.Bytes())
		switch {
		case errors.Is(err, syscall.EPIPE):
			return errEnough
		case err != nil:
			return exit(exitOutput, "cannot write to stdout: %v", err)
		}
		return nil
	}
	err := source(emit, flush)
	if err == nil && out.Len() > 0 {
		err = flush()
	}
	switch {
	case errors.Is(err, errEnough):
		return nil
	case errors.Is(err, errStranger):
		return exit(exitUnavailable, "%s", err)
	case err == nil && rows == 0:
		con.say("idemd: there is nothing to show")
	}
	return err
}

var errStranger = errors.New("the answer is not idemd's; check --url")

// pages asks for page after page, until there are limit items (0: all), and
// says whether there are more.
func (l *listing) pages(ctx context.Context, path, member string, query url.Values, limit int, emit func(raw []byte) error, flush func() error) (more bool, err error) {
	for got := 0; ; {
		n := pageSize
		if limit > 0 {
			n = min(n, limit-got)
		}
		query.Set("limit", strconv.Itoa(n))
		items, next, err := l.page(ctx, path, member, query)
		if err != nil {
			return false, err
		}
		if len(items) > n || next != "" && next == query.Get("cursor") {
			return false, errStranger
		}
		for _, item := range items {
			if err := emit(item); err != nil {
				return false, err
			}
		}
		if len(items) > 0 {
			if err := flush(); err != nil {
				return false, err
			}
		}
		got += len(items)
		if next == "" || limit > 0 && got >= limit {
			return next != "", nil
		}
		query.Set("cursor", next)
	}
}

// page asks for one page.
func (l *listing) page(ctx context.Context, path, member string, query url.Values) (items []json.RawMessage, next string, err error) {
	a, err := l.send(ctx, question{method: http.MethodGet, path: path + "?" + query.Encode()})
	if err != nil {
		return nil, "", failed(err, exitUnavailable)
	}
	if a.status != http.StatusOK {
		return nil, "", a.refused(exitUnavailable)
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(a.body, &doc) != nil || doc[member] == nil || doc["next_cursor"] == nil {
		return nil, "", errStranger
	}
	var cursor *string
	if json.Unmarshal(doc[member], &items) != nil || json.Unmarshal(doc["next_cursor"], &cursor) != nil {
		return nil, "", errStranger
	}
	if cursor != nil {
		next = *cursor
	}
	return items, next, nil
}

// mediaLines is the media type of a stream of JSON, an object a line.
const mediaLines = "application/x-ndjson"

// stream asks for all items at once, however many they are. The time-out is how
// long the server may send nothing; a reader of the output may be as slow as it
// likes, for as long as the server bears with it.
func (l *listing) stream(ctx context.Context, path string, emit func(raw []byte) error, flush func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(max(l.Timeout, 1), func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	why := func(err error) error {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return cause(err)
	}

	resp, err := l.do(ctx, question{method: http.MethodGet, path: path, accept: mediaLines})
	if err != nil {
		return failed(err, exitUnavailable)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		a, err := readAnswer(resp)
		if err != nil {
			return failed(err, exitUnavailable)
		}
		return a.refused(exitUnavailable)
	}
	if resp.Header.Get("Content-Type") != mediaLines {
		return errStranger
	}
	if !tellsItsEnd(resp) {
		return exit(exitUnavailable, "%s", endUnknown)
	}
	patience.Stop()
	body := bufio.NewReaderSize(patientReader{resp.Body, patience, l.Timeout}, piece)
	for pending := 0; ; {
		line, err := body.ReadSlice('\n') // no item is longer than the buffer
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF):
			return errStranger
		case err != nil:
			return exit(exitUnavailable, "the stream broke off: %v\nWhat was written is not all there is.", why(err))
		}
		if err := emit(line); err != nil {
			return err
		}
		// What has arrived does not wait for what has not.
		rest, _ := body.Peek(body.Buffered())
		if pending += len(line); pending >= piece || bytes.IndexByte(rest, '\n') < 0 {
			if err := flush(); err != nil {
				return err
			}
			pending = 0
		}
	}
}

// patientReader lets a timer run while it waits for bytes.
type patientReader struct {
	r       io.Reader
	timer   *time.Timer
	timeout time.Duration
}

func (p patientReader) Read(b []byte) (int, error) {
	p.timer.Reset(p.timeout)
	defer p.timer.Stop()
	return p.r.Read(b)
}

// timeColumn is as wide as the times that the server writes.
const timeColumn = len("2006-01-02T15:04:05.000Z")

// cells makes a line of a table; the last cell may be of any length.
func cells(widths []int, values ...string) string {
	var b bytes.Buffer
	for i, v := range values {
		if i == len(values)-1 {
			b.WriteString(plain(v))
			break
		}
		fmt.Fprintf(&b, "%-*s  ", widths[i], plain(v))
	}
	return string(bytes.TrimRight(b.Bytes(), " "))
}
