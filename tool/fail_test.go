package tool

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFail(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		attempt    int
		want       string // the result; empty: a failure
		message    string
		retryable  bool
	}{
		{name: "nothing said", args: `{}`, attempt: 1, message: "failed as asked"},
		{name: "always", args: `{"message":"no","retryable":true}`, attempt: 1 << 30, message: "no", retryable: true},
		{name: "message with escapes", args: `{"message":"caf\u00e9 \"x\""}`, attempt: 1, message: `café "x"`},
		{name: "times, first", args: `{"times":2,"retryable":true}`, attempt: 1, message: "failed as asked", retryable: true},
		{name: "times, last", args: `{"times":2,"retryable":true}`, attempt: 2, message: "failed as asked", retryable: true},
		{name: "times, over", args: `{"times":2,"retryable":true}`, attempt: 3, want: `{"failed":2}`},
		{name: "times, by value", args: `{"times":0.2e1,"panic":true}`, attempt: 3, want: `{"failed":2}`},
		{name: "times, none", args: `{"times":0}`, attempt: 1, want: `{"failed":0}`},
		{name: "times, most", args: `{"times":9223372036854775807}`, attempt: 5, message: "failed as asked"},
		{name: "no panic", args: `{"panic":false}`, attempt: 1, message: "failed as asked"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fail := sample(t, "fail")
			if err := fail.Check([]byte(tc.args)); err != nil {
				t.Fatal(err)
			}
			res, err := fail.Invoke(t.Context(), invocation(tc.attempt, tc.args))
			if tc.want != "" {
				if err != nil || string(res.Output) != tc.want {
					t.Errorf("got %s, %v; want %s", res.Output, err, tc.want)
				}
				return
			}
			if f := wantFailure(t, err); f.Message != tc.message || f.Retryable != tc.retryable {
				t.Errorf("got %+v", f)
			}
		})
	}
	for _, bad := range []string{`{"message":1}`, `{"retryable":"yes"}`, `{"times":-1}`, `{"times":1.5}`, `{"times":9223372036854775808}`, `{"panic":0}`} {
		wantInvalid(t, sample(t, "fail").Check([]byte(bad)))
	}
}

func TestFailPanics(t *testing.T) {
	for attempt, want := range map[int]bool{1: true, 2: false} {
		panicked := func() (p bool) {
			defer func() { p = recover() != nil }()
			_, _ = sample(t, "fail").Invoke(t.Context(), invocation(attempt, `{"panic":true,"times":1}`))
			return false
		}()
		if panicked != want {
			t.Errorf("attempt %d: panicked %v, want %v", attempt, panicked, want)
		}
	}
}

func TestFailCapsItsMessage(t *testing.T) {
	for _, unit := range []string{"x", "é", "€", "😀"} {
		for _, n := range []int{1, 255, 256, 341, 342, 512, 1023, 1024, 1025, 5000} {
			message := "." + strings.Repeat(unit, n)
			_, err := sample(t, "fail").Invoke(t.Context(), invocation(1, fmt.Sprintf(`{"message":%q}`, message)))
			f := wantFailure(t, err)
			if len(f.Message) > maxFailMessage || !utf8.ValidString(f.Message) {
				t.Errorf("%d × %s: %d bytes, valid %v", n, unit, len(f.Message), utf8.ValidString(f.Message))
			}
			if len(message) <= maxFailMessage && f.Message != message {
				t.Errorf("%d × %s: a short message was changed", n, unit)
			}
		}
	}
}
