package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// emptyBody is a body with nothing in it.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }

// bare sends over sockets of its own, each as soon as it has its answer.
func (a *attack) bare(ctx context.Context, w *workload, rec *recorder) (time.Time, error) {
	sockets, err := dial(ctx, a.base, a.connections)
	if err != nil {
		return time.Now(), err
	}
	defer sockets.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, sockets.close)()
	var (
		taken atomic.Int64
		all   = a.all()
		began = time.Now()
		wg    sync.WaitGroup
	)
	for range a.connections {
		wg.Go(func() {
			c := exchanger{sockets: sockets, timeout: a.timeout}
			defer c.drop()
			for ctx.Err() == nil {
				n := taken.Add(1) - 1
				if all > 0 && n >= all || all == 0 && time.Since(began) >= a.duration {
					return
				}
				r := w.next()
				o := outcome{sent: time.Since(began)}
				o.due = o.sent
				o.status, o.again, o.err = c.exchange(ctx, r)
				o.done = time.Since(began)
				if ctx.Err() != nil && o.status == 0 {
					return
				}
				if err := rec.add(o); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return began, context.Cause(ctx)
}

// exchanger sends one request after the other over one connection, and opens a
// new one after a failure.
type exchanger struct {
	sockets *sockets
	timeout time.Duration

	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

func (c *exchanger) drop() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// exchange sends a request once. Status 0 goes with an error.
func (c *exchanger) exchange(ctx context.Context, r request) (status int, again bool, err error) {
	if c.conn == nil {
		dialing, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		if c.conn, err = c.sockets.get(dialing); err != nil {
			c.conn = nil // not an interface around nothing
			return 0, false, err
		}
		c.in = bufio.NewReaderSize(c.conn, 8<<10)
	}
	c.out = r.appendTo(c.out[:0], c.sockets.addr)
	if err = c.conn.SetDeadline(time.Now().Add(c.timeout)); err == nil {
		if _, err = c.conn.Write(c.out); err == nil {
			var last bool
			if status, again, last, err = readAnswer(c.in); err == nil && !last {
				return status, again, nil
			}
		}
	}
	c.drop()
	if err != nil {
		return 0, false, err
	}
	return status, again, nil
}

func (r request) appendTo(b []byte, host string) []byte {
	b = append(b, r.method...)
	b = append(b, ' ')
	b = append(b, r.path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	if r.key != "" {
		b = append(b, "\r\nIdempotency-Key: "...)
		b = append(b, r.key...)
	}
	if r.wait {
		b = append(b, "\r\nPrefer: wait=10"...)
	}
	if r.body != "" {
		b = append(b, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
	}
	b = append(b, "\r\n\r\n"...)
	return append(b, r.body...)
}

var errLength = errors.New("bench: the answer does not say how long it is")

// readAnswer reads one whole answer. last says that the server closes the
// connection after it.
func readAnswer(in *bufio.Reader) (status int, again, last bool, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, false, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
				return 0, false, false, fmt.Errorf("bench: not an answer: %.40q", line)
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return 0, false, false, fmt.Errorf("bench: not an answer: %.40q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return 0, false, false, errLength
			}
		case bytes.EqualFold(name, []byte("Idempotent-Replayed")):
			again = string(value) == "true"
		case bytes.EqualFold(name, []byte("Connection")):
			last = bytes.EqualFold(value, []byte("close"))
		}
	}
	if length < 0 {
		return 0, false, false, errLength
	}
	if _, err := in.Discard(length); err != nil {
		return 0, false, false, err
	}
	return status, again, last, nil
}
