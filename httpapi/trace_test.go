package httpapi

import (
	"context"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

// What is valid reaches the service as it came; what is not refuses nothing.
func TestTraceparent(t *testing.T) {
	const (
		trace  = "4bf92f3577b34da6a3ce929d0e0e4736"
		parent = "00f067aa0ba902b7"
		valid  = "00-" + trace + "-" + parent + "-01"
	)
	got := make(chan string, 1)
	h := serve(t, &fakeService{submit: func(_ context.Context, s idem.Submission) (idem.Answer, error) {
		got <- s.Trace
		return idem.Answer{Call: exampleCall(s.Request.Key), Verdict: idem.VerdictCreated}, nil
	}}, Options{})
	for _, tc := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"none", nil, ""},
		{"valid", []string{valid}, valid},
		{"other flags", []string{"00-" + trace + "-" + parent + "-ff"}, "00-" + trace + "-" + parent + "-ff"},
		{"two", []string{valid, valid}, ""},
		{"empty", []string{""}, ""},
		{"upper case", []string{strings.ToUpper(valid)}, ""},
		{"other version", []string{"01-" + trace + "-" + parent + "-01"}, ""},
		{"version ff", []string{"ff-" + trace + "-" + parent + "-01"}, ""},
		{"more members", []string{valid + "-00"}, ""},
		{"fewer members", []string{"00-" + trace + "-" + parent}, ""},
		{"no trace", []string{"00-" + strings.Repeat("0", 32) + "-" + parent + "-01"}, ""},
		{"no parent", []string{"00-" + trace + "-" + strings.Repeat("0", 16) + "-01"}, ""},
		{"trace too short", []string{"00-" + trace[1:] + "-" + parent + "-01"}, ""},
		{"parent too long", []string{"00-" + trace + "-" + parent + "0-01"}, ""},
		{"flags too long", []string{"00-" + trace + "-" + parent + "-001"}, ""},
		{"not hex", []string{"00-" + trace[:31] + "g-" + parent + "-01"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.do(fits, "POST", "/v1/tool-calls", chargeBody, headers{"Idempotency-Key": {"k"}, "Traceparent": tc.lines}).want(202)
			if trace := <-got; trace != tc.want {
				t.Errorf("got %q, want %q", trace, tc.want)
			}
		})
	}
}
