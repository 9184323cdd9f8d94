package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// deliver answers, as well as the fault lets it.
func (v *visit) deliver(answer string, again bool) {
	head := func(length string) string {
		return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n" + length + "\r\n\r\n"
	}
	switch v.fault.Kind {
	case CommitThen500:
		v.fail(http.StatusInternalServerError, "internal")
	case CommitThenClose:
		v.hangUp("")
	case CommitThenReset:
		v.settle(0, "")
		conn, hangUp := v.takeOver()
		defer hangUp()
		if c, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = c.SetLinger(0) // the other side gets a RST in place of a FIN
		}
	case HalfAnswer:
		v.settle(http.StatusOK, "")
		v.raw(head(fmt.Sprintf("Content-Length: %d", len(answer))) + answer[:len(answer)/2])
	case Garbage:
		v.settle(0, "")
		v.raw("\x16\x03\x01 this is no HTTP\r\n\r\n")
	case AnswerLate:
		if err := v.waitFor(v.fault.Wait); err != nil {
			v.hangUp("not answered: the client left, or a stop came")
			return
		}
		v.give(answer, again)
	case Redirect:
		v.w.Header().Set("Location", "/redirected"+v.r.URL.EscapedPath())
		v.answer(http.StatusTemporaryRedirect, failure("redirected"), "")
	case Endless:
		v.settle(http.StatusOK, "")
		v.stream(head("Transfer-Encoding: chunked"), func(write func(string) bool) {
			pad := strings.Repeat("x", 32<<10)
			chunk := fmt.Sprintf("%x\r\n%s\r\n", len(pad), pad)
			for write(chunk) {
			}
		})
	case Big:
		v.settle(http.StatusOK, "")
		v.stream(head(fmt.Sprintf("Content-Length: %d", v.fault.Size))+bigHead, func(write func(string) bool) {
			pad := strings.Repeat("x", 32<<10)
			left := v.fault.Size - MinBig
			for ; left > 0 && write(pad[:min(left, int64(len(pad)))]); left -= int64(len(pad)) {
			}
			write(bigTail)
		})
	default:
		v.give(answer, again)
	}
}

// give answers as a service does with which nothing is wrong.
func (v *visit) give(answer string, again bool) {
	v.w.Header().Set(replayedHeader, strconv.FormatBool(again))
	v.answer(http.StatusOK, []byte(answer), "")
}

func (v *visit) answer(status int, body []byte, note string) {
	v.settle(status, note)
	reply(v.w, status, body)
}

func (v *visit) fail(status int, code string) { v.answer(status, failure(code), code) }

func (v *visit) retryLater() { v.w.Header().Set("Retry-After", "1") }

// settle writes what was answered to the log of requests: before the answer itself
// goes out, so that whoever has the answer finds it there.
func (v *visit) settle(status int, note string) {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	v.log.Note = note
	if v.log.Status = StatusNone; status > 0 {
		v.log.Status = strconv.Itoa(status)
	}
}

// raw sends bytes and closes.
func (v *visit) raw(s string) { v.stream(s, func(func(string) bool) {}) }

// stream sends bytes, then what rest writes until a write fails, and closes.
func (v *visit) stream(s string, rest func(write func(string) bool)) {
	conn, hangUp := v.takeOver()
	defer hangUp()
	write := func(s string) bool {
		_, err := io.WriteString(conn, s)
		return err == nil
	}
	if write(s) {
		rest(write)
	}
}

// takeOver gives the connection, which ends with the service at the latest, and a
// function that closes it.
func (v *visit) takeOver() (net.Conn, func()) {
	conn, _, err := v.rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the server closes it
	}
	_ = conn.SetDeadline(time.Time{}) // of a body that was read; what fails here fails in the next write
	stop := context.AfterFunc(v.d.ctx, func() { _ = conn.Close() })
	return conn, func() {
		stop()
		_ = conn.Close()
	}
}

// hangUp closes the connection without a byte.
func (v *visit) hangUp(note string) {
	v.settle(0, note)
	_, hangUp := v.takeOver()
	hangUp()
}
