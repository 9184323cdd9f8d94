package client

import (
	"errors"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

func TestTool(t *testing.T) {
	d := newIdemd(t, time.Hour)
	c := newClient(t, d.url, Options{})
	for _, want := range []Tool{
		{Name: "charge", Window: time.Hour, Intent: []string{}, told: true},
		{Name: "look", Window: time.Hour, Intent: []string{"/n"}, Unrecorded: true, told: true},
	} {
		if got, err := c.Tool(t.Context(), want.Name); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if n := d.gets(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if _, err := c.Tool(t.Context(), "nope"); !errors.Is(err, idem.ErrNotFound) {
		t.Error(err)
	}
	for code, transport := range map[idem.Code]roundTripper{
		CodeNotSent:  func(*http.Request) (*http.Response, error) { return nil, ErrNotSent },
		CodeNoAnswer: func(*http.Request) (*http.Response, error) { return respond(200, `{"status":"ok"}`), nil },
	} {
		c := newClient(t, "http://idemd.test", Options{})
		c.http.Transport = transport
		var e *Error
		if _, err := c.Tool(t.Context(), "charge"); !errors.As(err, &e) || e.Code != code || e.Effect != idem.DoubtNone {
			t.Errorf("%s: %+v", code, err)
		}
	}
	c.Close()
	if _, err := c.Tool(t.Context(), "charge"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// An older server does not say that a tool keeps a record, and every one does.
func TestParseTools(t *testing.T) {
	got := parseTools([]byte(`{"tools":[{"name":"a","window":"1s"},{"name":"b","window":"soon","recorded":true},{"name":"c","recorded":false}]}`))
	want := map[string]Tool{"a": {Name: "a", Window: time.Second, told: true}, "b": {Name: "b"}, "c": {Name: "c", Unrecorded: true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	for _, body := range []string{``, `[]`, `{}`, `{"tools":null}`, `{"tools":[{"name":7}]}`} {
		if got := parseTools([]byte(body)); got != nil {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := parseTools([]byte(`{"tools":[]}`)); got == nil || len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func looks(key string) Request {
	return Request{Tool: "look", Args: []byte(`{"n": 1.0}`), Key: key, NoKey: key == ""}
}

// A tool that keeps no record is called without a key, and with one.
func TestUnrecorded(t *testing.T) {
	d := newIdemd(t, time.Second) // too short for a policy with retries, were there anything to be remembered
	c := newClient(t, d.url, Options{})
	for _, key := range []string{"", "k"} {
		out, err := c.Call(t.Context(), looks(key))
		if err != nil || !out.Call.Unrecorded || out.Call.CallID != "" || out.Call.Status != idem.StatusSucceeded || string(out.Call.Result) != `{"n": 1.0}` {
			t.Errorf("%q: %+v, %v", key, out.Call, err)
		}
		a, err := c.Submit(t.Context(), looks(key))
		if err != nil || !a.Call.Unrecorded || a.Replayed {
			t.Errorf("%q: %+v, %v", key, a.Call, err)
		}
	}
	// The server says that another tool needs one.
	_, err := c.Submit(t.Context(), Request{Tool: "charge", Args: []byte(`{"amount":1}`), NoKey: true})
	var e *Error
	if !errors.As(err, &e) || e.Code != idem.CodeMissingKey || e.Effect != idem.DoubtNone || e.Key != "" {
		t.Errorf("%+v", err)
	}
	for _, p := range d.posts() {
		if p.key != "" && p.key != "k" {
			t.Errorf("sent the key %q", p.key)
		}
	}
}

// A request without a key is sent again after a lost answer only where the tool is
// known to keep no record.
func TestUnrecordedAnswerLost(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tools fault // of the question what tools there are
		post  fault // of the first submission
		posts int
	}{
		{"known", fine, dropResponse, 2},
		{"known, half an answer", fine, halfBody, 2},
		{"not known", dropResponse, dropResponse, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newIdemd(t, time.Hour)
			d.failing(func(r *http.Request, n int) fault {
				switch {
				case r.Method == http.MethodGet:
					return tc.tools
				case n == 1:
					return tc.post
				}
				return fine
			})
			out, err := newClient(t, d.url, Options{}).Call(t.Context(), looks(""))
			if n := len(d.posts()); n != tc.posts || d.gets() != 1 {
				t.Errorf("%d submissions, %d questions", n, d.gets())
			}
			var e *Error
			if tc.posts == 2 && (err != nil || !out.Call.Unrecorded) ||
				tc.posts == 1 && (!errors.As(err, &e) || e.Code != CodeRetryExhausted || e.Effect != idem.DoubtUnknown) {
				t.Errorf("%+v, %v", out.Call, err)
			}
		})
	}

	t.Run("with a key it asks first, as ever", func(t *testing.T) {
		d := newIdemd(t, time.Hour)
		d.failing(func(r *http.Request, n int) fault {
			if r.Method == http.MethodPost && n == 1 {
				return dropResponse
			}
			return fine
		})
		out, err := newClient(t, d.url, Options{}).Call(t.Context(), looks("k"))
		if err != nil || !out.Call.Unrecorded || len(d.posts()) != 2 || d.gets() != 2 {
			t.Errorf("%+v, %v", out.Call, err)
		}
	})

	t.Run("busy does no harm", func(t *testing.T) {
		posts := 0
		c := newClient(t, "http://idemd.test", Options{})
		c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return nil, ErrNotSent
			}
			if posts++; posts < 3 {
				return respond(503, refusalDoc("unavailable")), nil
			}
			return respond(200, `{"recorded":false,"tool":"look","status":"succeeded","result":1,"error":null}`), nil
		})
		if out, err := c.Call(t.Context(), looks("")); err != nil || posts != 3 || !out.Call.Unrecorded {
			t.Errorf("%+v, %v, %d submissions", out.Call, err, posts)
		}
	})
}

func TestUnrecordedAndJournal(t *testing.T) {
	d := newIdemd(t, time.Hour)
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"))
	c := newClient(t, d.url, Options{Journal: j})
	if _, err := c.Call(t.Context(), looks("")); !errors.Is(err, idem.ErrBadRequest) {
		t.Error(err)
	}
	if len(d.posts()) != 0 {
		t.Error("it was sent")
	}
	if _, err := c.Call(t.Context(), looks("k")); err != nil || len(j.Open()) != 0 {
		t.Errorf("%v, open %v", err, j.Open())
	}
}

// In doubt for good is an end: asking again would not tell. Held is none.
func TestJournalEndsWhatIsInDoubtForGood(t *testing.T) {
	for _, tc := range []struct {
		name string
		step step
		open []string
	}{
		{"failed", step{status: 200, body: failedDoc(false, idem.DoubtUnknown)}, nil},
		{"held", step{status: 409, body: refusalDoc("outcome_unknown")}, []string{"k"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			j := openJournal(t, path)
			c := newClient(t, newScript(t, tc.step).url, Options{Journal: j})
			if _, err := c.Call(t.Context(), charge("k", "1")); !errors.Is(err, idem.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			if open := j.Open(); !slices.Equal(open, tc.open) {
				t.Errorf("open: %v", open)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if open := openJournal(t, path).Open(); !slices.Equal(open, tc.open) {
				t.Errorf("open afterwards: %v", open)
			}
		})
	}
}

func TestParseCallUnrecorded(t *testing.T) {
	for body, ok := range map[string]bool{
		`{"recorded":false,"tool":"look","status":"succeeded","result":1,"error":null}`:                                          true,
		`{"recorded":false,"tool":"look","status":"failed","result":null,"error":{"code":"x","message":"","retryable":false}}`:   true,
		`{"recorded":false,"tool":"look","status":"running","result":1,"error":null}`:                                            false,
		`{"recorded":true,"tool":"look","status":"succeeded","result":1,"error":null}`:                                           false,
		`{"recorded":null,"tool":"look","status":"succeeded","result":1,"error":null}`:                                           false,
		`{"tool":"look","status":"succeeded","result":1,"error":null}`:                                                           false,
		`{"recorded":false,"call_id":"` + someID + `","tool":"look","status":"succeeded","result":1,"error":null}`:               false,
		`{"recorded":true,"call_id":"` + someID + `","idem_key":"k","tool":"look","status":"succeeded","result":1,"error":null}`: true,
	} {
		c := ParseCall([]byte(body))
		if (c != nil) != ok || c != nil && c.Unrecorded != (c.CallID == "") {
			t.Errorf("%s: %+v", body, c)
		}
	}
	// What another tool did, or a call that was asked for, is not that.
	const doc = `{"recorded":false,"tool":"other","status":"succeeded","result":1,"error":null}`
	c := newClient(t, newScript(t, step{status: 200, body: doc}).url, Options{})
	for _, err := range []error{second(c.Submit(t.Context(), looks("k"))), second(c.Find(t.Context(), "k")), second(c.Get(t.Context(), someID))} {
		if !errors.Is(err, &Error{Code: CodeNoAnswer}) {
			t.Errorf("%+v", err)
		}
	}
}
