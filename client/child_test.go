package client

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// child is an agent in a process of its own, to be killed.
func child(role string) int {
	j, err := OpenJournal(os.Getenv("CLIENT_TEST_JOURNAL"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	c, err := New(os.Getenv("CLIENT_TEST_URL"), Options{Policy: swift(), Journal: j})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if role == "stop before it sends" {
		next := c.http.Transport
		c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				fmt.Println("about to send")
				select {} // until it is killed
			}
			return next.RoundTrip(r)
		})
	}
	if role == "resume" {
		outs, err := c.Resume(context.Background())
		for _, o := range outs {
			fmt.Println("resumed", o.Call.Key, o.Call.Status)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	}
	out, err := c.Call(context.Background(), charge("intent-1", "1e2"))
	fmt.Println("called", out.Call, err)
	return 0
}

func startChild(t *testing.T, role, url, journal string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CLIENT_TEST_CHILD="+role, "CLIENT_TEST_URL="+url, "CLIENT_TEST_JOURNAL="+journal)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// R1: an agent that is killed goes on with the same key and the same bytes.
func TestKilledAndResumed(t *testing.T) {
	for _, tc := range []struct {
		name, role string
		fault      fault // of the killed agent's submission
		posts      int
	}{
		{"between the journal and the send", "stop before it sends", fine, 1},
		{"after the send, before the answer", "call", hang, 2},
		{"after the send, which the server never saw", "call", dropRequest, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			journal := filepath.Join(t.TempDir(), "journal")
			arrived, killed := make(chan struct{}, 10), make(chan struct{})
			d.failing(func(r *http.Request, n int) fault {
				if r.Method == http.MethodPost && n == 1 {
					arrived <- struct{}{}
					if tc.fault == dropRequest {
						<-killed // the client sees nothing either
					}
					return tc.fault
				}
				return fine
			})
			cmd, out := startChild(t, tc.role, d.url, journal)
			if tc.role == "call" {
				<-arrived
			} else if line, err := out.ReadString('\n'); line != "about to send\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			close(killed)

			d.failing(func(*http.Request, int) fault { return fine })
			cmd, out = startChild(t, "resume", d.url, journal)
			line, _ := out.ReadString('\n')
			if err := cmd.Wait(); err != nil || line != "resumed intent-1 succeeded\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if got := d.effects(t); !slices.Equal(got, []string{"intent-1"}) {
				t.Errorf("ledger %v", got)
			}
			posts := d.posts()
			if len(posts) != tc.posts {
				t.Errorf("submissions %+v", posts)
			}
			for _, p := range posts {
				if p.key != "intent-1" || p.body != `{"tool":"charge","args":{"amount":1e2}}` {
					t.Errorf("another request: %+v", p)
				}
			}
			j, err := OpenJournal(journal)
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			if open := j.Open(); len(open) != 0 {
				t.Errorf("still open: %v", open)
			}
		})
	}
}

// C29: three answers are lost, the client is killed and started again in the
// middle, and there is one key on the wire; the next intent has another one.
func TestThreeAnswersLost(t *testing.T) {
	d := newIdemd(t, time.Hour)
	journal := filepath.Join(t.TempDir(), "journal")
	lost := make(chan struct{}, 10)
	var dropped int
	d.failing(func(r *http.Request, _ int) fault {
		switch {
		case r.URL.Path == pathTools || dropped == 3:
			return fine
		case dropped == 1: // the client is killed over it
			dropped++
			lost <- struct{}{}
			return hang
		}
		dropped++
		return dropResponse
	})
	cmd, _ := startChild(t, "call", d.url, journal)
	<-lost
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	cmd, out := startChild(t, "resume", d.url, journal)
	line, _ := out.ReadString('\n')
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(line, "resumed intent-1 succeeded") {
		t.Fatalf("%q, %v", line, err)
	}
	j, err := OpenJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := newClient(t, d.url, Options{Journal: j}).Call(t.Context(), charge("intent-2", "1e2")); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	n, wire := dropped, slices.Clone(d.wire)
	d.mu.Unlock()
	if got := d.effects(t); n != 3 || !slices.Equal(got, []string{"intent-1", "intent-2"}) {
		t.Errorf("ledger %v, %d answers lost", got, n)
	}
	for _, r := range wire {
		if r.path != pathTools && r.key != "intent-1" && r.key != "intent-2" {
			t.Errorf("another key on the wire: %+v", r)
		}
	}
	if last := d.posts(); last[len(last)-1].key != "intent-2" {
		t.Errorf("%+v", last)
	}
}
