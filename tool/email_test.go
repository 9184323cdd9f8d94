package tool

import (
	"strings"
	"testing"
)

func TestSendEmail(t *testing.T) {
	email := sample(t, "send_email")
	const good = `{"to":"a@example.org","subject":"","body":"secret","cc":["b"]}`
	if err := email.Check([]byte(good)); err != nil {
		t.Fatal(err)
	}
	res, err := email.Invoke(t.Context(), invocation(1, good))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(res.Output), `{"message_id":"msg_`) || res.Amount != nil {
		t.Errorf("got %s, amount %v", res.Output, res.Amount)
	}
	for _, bad := range []string{
		`{"subject":"s","body":"secret"}`,
		`{"to":"secret","body":"secret"}`,
		`{"to":"secret","subject":"secret"}`,
		`{"to":["secret"],"subject":"s","body":"b"}`,
		`{"to":"secret","subject":null,"body":"b"}`,
		`{"to":"secret","subject":"s","body":{"secret":1}}`,
	} {
		wantInvalid(t, email.Check([]byte(bad)), "secret")
	}
}
