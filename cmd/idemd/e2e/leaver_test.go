//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// TestClientLeaves sends whole requests and leaves without the answer: by an
// orderly end of the connection, and by a reset, which may throw the request
// away before it is read. What was accepted runs to its end, once (R15).
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	prefer := "Prefer: wait=20\r\n"
	// A large request is still being understood when its client has gone.
	large := `{"amount":9,"note":"` + strings.Repeat("é", 150_000) + `"}`
	tools := []struct{ name, args, extra string }{
		{"charge", large, prefer},
		{"charge", large, ""},
		{"charge", `{"amount":9}`, prefer},
		{"charge", `{"amount":9}`, ""},
		{"sleep", `{"seconds":0.05}`, prefer},
		{"ext_rerun", `{}`, prefer},
		{"ext_rerun", `{}`, ""},
	}
	leave := map[string]func(*net.TCPConn) error{
		"end":   endOrderly,
		"reset": reset,
	}
	var clients sync.WaitGroup
	keys := make(map[string]string) // to the way of leaving
	tool := make(map[string]string)
	for round := range size(2, 20) {
		for how, left := range leave {
			for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
				for i, what := range tools {
					key := fmt.Sprintf("%s-%v-%d-%d", how, after, i, round)
					keys[key], tool[key] = how, what.name
					conn := d.dial(t)
					clients.Go(func() {
						_, err := io.WriteString(conn, plain(key, `{"tool":"`+what.name+`","args":`+what.args+`}`, what.extra))
						time.Sleep(after) // how long the client stays
						if err == nil {
							err = left(conn)
						}
						if err != nil {
							t.Errorf("%s: %v", key, err)
						}
					})
				}
			}
		}
	}
	clients.Wait()

	gone := 0
	var intents []string
	for key, how := range keys {
		if how == "end" { // all of it arrived
			eventually(t, key+" is there", func() bool { return d.find(key).status == http.StatusOK })
		} else if d.find(key).status == http.StatusNotFound {
			gone++
			continue
		}
		c := d.find(key, wait(20)).wantEnd(t, idem.StatusSucceeded)
		if c.Attempt != 1 {
			t.Errorf("%s: attempt %d", key, c.Attempt)
		}
		if tool[key] != "sleep" {
			intents = append(intents, key)
		}
	}
	t.Logf("%d requests, %d of them thrown away by their reset", len(keys), gone)
	reconcile(t, d, intents...)
}

// endOrderly closes the client's half of the connection and takes what the server
// still says. A connection that is closed with something unread is reset.
func endOrderly(conn *net.TCPConn) error {
	defer conn.Close()
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
}

func reset(conn *net.TCPConn) error {
	defer conn.Close()
	return conn.SetLinger(0)
}

// TestClientLeavesHalfway sends half a request. It is none.
func TestClientLeavesHalfway(t *testing.T) {
	t.Parallel()
	d := startChaos(t)
	for i, left := range []func(*net.TCPConn) error{endOrderly, reset} {
		key := fmt.Sprint("half-", i)
		request := plain(key, `{"tool":"charge","args":{"amount":9}}`, "")
		conn := d.dial(t)
		if _, err := io.WriteString(conn, request[:len(request)-5]); err != nil {
			t.Fatal(err)
		}
		if err := left(conn); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are refused", func() bool { return d.stats(t).Refused == 2 })
	for i := range 2 {
		d.find(fmt.Sprint("half-", i)).wantRefusal(t, http.StatusNotFound, idem.CodeNotFound)
	}
	reconcile(t, d)
}
