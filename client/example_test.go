package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/httpapi"
	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
	"github.com/idemd/idemd/tool"
)

// idemd is a server for the examples.
func idemd() (url string, stop func()) {
	run, err := runner.New(storetest.NewModel(storetest.ModelOptions{}), runner.Options{Tools: tool.Samples()})
	if err != nil {
		panic(err)
	}
	if err := run.Start(context.Background()); err != nil {
		panic(err)
	}
	api := httpapi.New(run, httpapi.Options{Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	served := make(chan error, 1)
	go func() { served <- api.Serve(l) }()
	return "http://" + l.Addr().String(), func() {
		run.Stop(context.Background())
		_ = api.Close()
		if err := <-served; err != nil {
			panic(err)
		}
	}
}

// The key comes from the intent, so that asking twice charges once.
func ExampleClient_Call() {
	url, stop := idemd()
	defer stop()
	c, err := client.New(url, client.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	key, err := idem.KeyFor("user-7/order-1234", "charge", []byte(`{"amount":100}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		out, err := c.Call(context.Background(), client.Request{Tool: "charge", Args: []byte(`{"amount":100}`), Key: key})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(out.Call.Status, "replayed:", out.Replayed, "requests:", len(out.Tries))
	}
	// Output:
	// succeeded replayed: false requests: 1
	// succeeded replayed: true requests: 1
}

// An error says whether it may have been done, and has the key to go on with.
func ExampleError() {
	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // every answer is lost
	}))
	defer broken.Close()
	p := client.DefaultPolicy()
	p.Tries, p.Backoff, p.BackoffCap = 2, time.Millisecond, time.Millisecond
	c, err := client.New(broken.URL, client.Options{Policy: p})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	_, err = c.Call(context.Background(), client.Request{Tool: "charge", Args: []byte(`{"amount":100}`), Key: "order-1234"})
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Code, "effect:", e.Effect, "key:", e.Key)
		for _, t := range e.Tries {
			fmt.Println(t.Number, t.Kind, "->", t.Verdict.Action)
		}
	}
	fmt.Println(errors.Is(err, client.ErrRetryExhausted))
	// Output:
	// retry_exhausted effect: unknown key: order-1234
	// 1 submit -> ask
	// 2 find -> ask
	// 3 submit -> ask
	// 4 find -> ask
	// true
}

// What was begun before a crash is finished after it, with the same key.
func ExampleClient_Resume() {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	journal := filepath.Join(dir, "journal")
	url, stop := idemd()
	defer stop()

	// agent is one life of a process.
	agent := func(ctx context.Context, work func(context.Context, *client.Client)) {
		j, err := client.OpenJournal(journal)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer j.Close()
		p := client.DefaultPolicy()
		p.Wait = 0 // the first life does not wait for the end
		c, err := client.New(url, client.Options{Policy: p, Journal: j})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer c.Close()
		work(ctx, c)
		fmt.Println("not known:", j.Open())
	}
	agent(context.Background(), func(ctx context.Context, c *client.Client) {
		// Handed in is not done: the journal keeps it.
		_, err := c.Call(ctx, client.Request{Tool: "sleep", Args: []byte(`{"seconds":0.1}`), Key: "nap-1", HandIn: true})
		if err != nil {
			fmt.Println(err)
		}
	})
	agent(context.Background(), func(ctx context.Context, c *client.Client) {
		outs, err := c.Resume(ctx)
		for _, o := range outs {
			fmt.Println("resumed:", o.Call.Key, o.Call.Status)
		}
		if err != nil {
			fmt.Println(err)
		}
	})
	// Output:
	// not known: [nap-1]
	// resumed: nap-1 succeeded
	// not known: []
}

func ExampleClassify() {
	for _, r := range []client.Reading{
		{NotSent: true},
		{Status: 503, Code: idem.CodeUnavailable},
		{Status: 503}, // somebody else's
		{},            // no answer
		{Status: 202},
		{Status: 409, Code: idem.CodeConflict},
	} {
		v := client.Classify(r)
		fmt.Printf("%-7s %-5s %s\n", v.Effect, v.Action, v.Why)
	}
	// Output:
	// none    again there never was a connection
	// none    again not accepted now; nothing was recorded
	// unknown again not idemd's answer: whoever gave it may have passed the request on
	// unknown ask   no answer: it may have been carried out
	// unknown poll  accepted: it will be carried out
	// none    stop  refused as it is
}

// The window of a tool has to be at least this long.
func ExamplePolicy_Span() {
	p := client.DefaultPolicy()
	p.Tries = 2
	fmt.Println(p.Span())
	// Output:
	// 1m45s
}
