package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/idemd/idemd/idem"
)

func TestParseEnvelope(t *testing.T) {
	long := strings.Repeat("é", maxClientID/2) // 254 bytes
	for _, c := range []struct {
		name, body string
		tool, args string // tool empty: refused
		client     string // "-": absent
		seq        string // "-": absent
	}{
		{"least", `{"tool":"charge","args":{}}`, "charge", `{}`, "-", "-"},
		{"everything", `{"tool":"charge","args":{"amount":100},"client_id":"demo","seq":1}`, "charge", `{"amount":100}`, "demo", "1"},
		{"other order, white space", " \r\n\t{ \"seq\" : -0 , \"args\" : { \"a\" : [ 1 ] } , \"tool\" : \"t\" } \n", "t", `{ "a" : [ 1 ] }`, "-", "0"},
		{"names with escapes", `{"to\u006fl":"t","\u0061rgs":{}}`, "t", `{}`, "-", "-"},
		{"values with escapes", `{"tool":"\u0074\n","args":{"\u0061":"\u00e9"}}`, "t\n", `{"\u0061":"\u00e9"}`, "-", "-"},
		{"numbers as they came", `{"tool":"t","args":{"a":1.10e+2,"b":9007199254740993}}`, "t", `{"a":1.10e+2,"b":9007199254740993}`, "-", "-"},
		{"empty client", `{"tool":"t","args":{},"client_id":""}`, "t", `{}`, "", "-"},
		{"longest client", `{"tool":"t","args":{},"client_id":"x` + long + `"}`, "t", `{}`, "x" + long, "-"},
		{"client too long", `{"tool":"t","args":{},"client_id":"xx` + long + `"}`, "", "", "", ""},
		{"client with a control character", `{"tool":"t","args":{},"client_id":"a\u0007"}`, "", "", "", ""},
		{"client with a C1 control character", `{"tool":"t","args":{},"client_id":"a\u0085"}`, "", "", "", ""},
		{"seq 1.0", `{"tool":"t","args":{},"seq":1.0}`, "t", `{}`, "-", "1"},
		{"seq 1e0", `{"tool":"t","args":{},"seq":1e0}`, "t", `{}`, "-", "1"},
		{"seq 10e-1", `{"tool":"t","args":{},"seq":10e-1}`, "t", `{}`, "-", "1"},
		{"seq max", `{"tool":"t","args":{},"seq":9223372036854775807}`, "t", `{}`, "-", "9223372036854775807"},
		{"seq min", `{"tool":"t","args":{},"seq":-9223372036854775808.0}`, "t", `{}`, "-", "-9223372036854775808"},
		{"seq over max", `{"tool":"t","args":{},"seq":9223372036854775808}`, "", "", "", ""},
		{"seq under min", `{"tool":"t","args":{},"seq":-9223372036854775809}`, "", "", "", ""},
		{"seq fraction", `{"tool":"t","args":{},"seq":1.5}`, "", "", "", ""},
		{"seq text", `{"tool":"t","args":{},"seq":"1"}`, "", "", "", ""},
		{"seq null", `{"tool":"t","args":{},"seq":null}`, "", "", "", ""},
		{"seq huge exponent", `{"tool":"t","args":{},"seq":1e999999999}`, "", "", "", ""},
		{"seq zero with huge exponent", `{"tool":"t","args":{},"seq":0E99999999999}`, "", "", "", ""},
		{"seq many digits", `{"tool":"t","args":{},"seq":` + strings.Repeat("0.", 1) + strings.Repeat("0", 1000) + `}`, "", "", "", ""},
		{"client null", `{"tool":"t","args":{},"client_id":null}`, "", "", "", ""},
		{"client number", `{"tool":"t","args":{},"client_id":5}`, "", "", "", ""},
		{"tool missing", `{"args":{}}`, "", "", "", ""},
		{"tool null", `{"tool":null,"args":{}}`, "", "", "", ""},
		{"tool number", `{"tool":1,"args":{}}`, "", "", "", ""},
		{"args missing", `{"tool":"t"}`, "", "", "", ""},
		{"args null", `{"tool":"t","args":null}`, "", "", "", ""},
		{"args array", `{"tool":"t","args":[]}`, "", "", "", ""},
		{"args text", `{"tool":"t","args":"{}"}`, "", "", "", ""},
		{"unknown member", `{"tool":"t","args":{},"x":1}`, "", "", "", ""},
		{"other case", `{"Tool":"t","args":{}}`, "", "", "", ""},
		{"empty name", `{"tool":"t","args":{},"":1}`, "", "", "", ""},
		{"twice", `{"tool":"t","args":{},"tool":"t"}`, "", "", "", ""},
		{"twice, with escapes", `{"tool":"t","args":{},"t\u006fol":"t"}`, "", "", "", ""},
		{"empty", ``, "", "", "", ""},
		{"white space", ` `, "", "", "", ""},
		{"null", `null`, "", "", "", ""},
		{"array", `[]`, "", "", "", ""},
		{"number", `1`, "", "", "", ""},
		{"cut", `{"tool":"t","args":{}`, "", "", "", ""},
		{"cut in a name", `{"too`, "", "", "", ""},
		{"something after", `{"tool":"t","args":{}}{}`, "", "", "", ""},
		{"garbage after", `{"tool":"t","args":{}}x`, "", "", "", ""},
		{"a comma too many", `{"tool":"t","args":{},}`, "", "", "", ""},
		{"a comma at the start", `{,"tool":"t","args":{}}`, "", "", "", ""},
		{"name is no text", `{1:"t"}`, "", "", "", ""},
		{"byte order mark", "\ufeff" + `{"tool":"t","args":{}}`, "", "", "", ""},
		{"invalid UTF-8", "{\"tool\":\"\xff\",\"args\":{}}", "", "", "", ""},
		{"invalid UTF-8 in a name", "{\"tool\xff\":\"t\",\"args\":{}}", "", "", "", ""},
		{"half a surrogate pair", `{"tool":"\ud800","args":{}}`, "", "", "", ""},
		{"comment", `{/**/"tool":"t","args":{}}`, "", "", "", ""},
		{"control character", "{\"tool\":\"\x01\",\"args\":{}}", "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseEnvelope([]byte(c.body))
			if c.tool == "" {
				if !errors.Is(err, idem.ErrBadRequest) {
					t.Fatalf("got %+v, %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			client, seq := "-", "-"
			if got.clientID != nil {
				client = *got.clientID
			}
			if got.seq != nil {
				seq = strconv.FormatInt(*got.seq, 10)
			}
			if got.tool != c.tool || string(got.args) != c.args || client != c.client || seq != c.seq {
				t.Errorf("got %q %s %q %s", got.tool, got.args, client, seq)
			}
		})
	}
}

// The body and what is in args are held to the limits of the canonical form in
// little time, whatever is asked.
func TestParseEnvelopeHostile(t *testing.T) {
	for name, args := range map[string]string{
		"exponent":      `{"a":1e999999999}`,
		"zero exponent": `{"a":0E99999999999}`,
		"digits":        `{"a":` + strings.Repeat("9", 1_000_000) + `}`,
		"depth":         `{"a":` + strings.Repeat("[", 100_000),
		"closed depth":  `{"a":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"duplicate":     `{"a":{"b":1,"\u0062":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(`{"tool":"t","args":` + args + `}`)
			start := time.Now()
			env, err := parseEnvelope(body)
			if err == nil {
				_, err = idem.FingerprintOf(env.tool, env.args)
			}
			if !errors.Is(err, idem.ErrBadRequest) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(start); took > 20*time.Second { // milliseconds; it does not hang, and that is all that is held here
				t.Errorf("took %v", took)
			}
		})
	}
}

func FuzzParseEnvelope(f *testing.F) {
	for _, s := range []string{
		`{"tool":"charge","args":{"amount":100},"client_id":"demo","seq":1}`,
		`{"to\u006fl":"t","args":{"a":[1,{"b":null}]},"seq":-10e-1}`,
		`{"tool":"t","args":{},"seq":9223372036854775807.0}`,
		`{"tool":"t","tool":"t","args":{}}`, `{"tool":"t","args":{}} x`, `{}`, ``, `[`, `{"a`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		env, err := parseEnvelope(body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			var e *idem.Error
			if !errors.As(err, &e) || e.Code != idem.CodeBadRequest {
				t.Fatalf("got %v", err)
			}
			return
		}
		// What is accepted, another parser reads the same way.
		var other struct {
			Tool     *string         `json:"tool"`
			Args     json.RawMessage `json:"args"`
			ClientID *string         `json:"client_id"`
			Seq      json.Number     `json:"seq"`
		}
		if err := json.Unmarshal(body, &other); err != nil {
			t.Fatalf("accepted what is no JSON: %v", err)
		}
		if other.Tool == nil || *other.Tool != env.tool || !bytes.Equal(other.Args, env.args) {
			t.Fatalf("got %q %s", env.tool, env.args)
		}
		if (other.ClientID == nil) != (env.clientID == nil) || env.clientID != nil && *env.clientID != *other.ClientID {
			t.Fatal("client_id differs")
		}
		if (other.Seq == "") != (env.seq == nil) {
			t.Fatal("seq differs")
		}
		if env.seq != nil {
			r, ok := new(big.Rat).SetString(other.Seq.String())
			if !ok || !r.IsInt() || r.Num().String() != strconv.FormatInt(*env.seq, 10) {
				t.Fatalf("seq %s is not %d", other.Seq, *env.seq)
			}
		}
		if !utf8.ValidString(env.tool) || env.args[0] != '{' {
			t.Fatal("invalid")
		}
	})
}

func TestParseResolution(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       idem.Resolution // no outcome: refused
	}{
		{"succeeded", `{"outcome":"succeeded","by":"ada"}`, idem.Resolution{Outcome: idem.OutcomeSucceeded, By: "ada"}},
		{"succeeded, result", `{"result": {"a" : 1.0} ,"outcome":"succeeded","by":"ada","note":"seen\nit"}`,
			idem.Resolution{Outcome: idem.OutcomeSucceeded, By: "ada", Note: "seen\nit", Result: idem.Result{Output: []byte(`{"a" : 1.0}`)}}},
		{"succeeded, result null", `{"result":null,"outcome":"succeeded","by":"ada"}`,
			idem.Resolution{Outcome: idem.OutcomeSucceeded, By: "ada", Result: idem.Result{Output: []byte(`null`)}}},
		{"failed", `{"outcome":"failed","by":"ada"}`,
			idem.Resolution{Outcome: idem.OutcomeFailed, By: "ada", Failure: idem.Failure{Code: "tool_failed", Message: "decided to have failed"}}},
		{"failed, error", `{"outcome":"failed","attempt":1,"by":"ada","error":{"code":"card_declined","message":"no","retryable":true}}`,
			idem.Resolution{Outcome: idem.OutcomeFailed, Attempt: 1, By: "ada", Failure: idem.Failure{Code: "card_declined", Message: "no", Retryable: true}}},
		{"retry", `{"outcome":"retry","attempt":2.0,"by":"Ада Λ"}`, idem.Resolution{Outcome: idem.OutcomeRetry, Attempt: 2, By: "Ада Λ"}},
		{"retry of whichever", `{"outcome":"retry","by":"a"}`, idem.Resolution{}},
		{"retryable of whichever", `{"outcome":"failed","by":"a","error":{"retryable":true}}`, idem.Resolution{}},
		{"attempt 0", `{"outcome":"retry","attempt":0,"by":"a"}`, idem.Resolution{}},
		{"attempt beyond", `{"outcome":"retry","attempt":4294967297,"by":"a"}`, idem.Resolution{}},
		{"attempt as text", `{"outcome":"retry","attempt":"1","by":"a"}`, idem.Resolution{}},
		{"no outcome", `{"by":"ada"}`, idem.Resolution{}},
		{"other outcome", `{"outcome":"Succeeded","by":"ada"}`, idem.Resolution{}},
		{"nobody", `{"outcome":"retry","attempt":1}`, idem.Resolution{}},
		{"empty by", `{"outcome":"retry","attempt":1,"by":""}`, idem.Resolution{}},
		{"blank by", `{"outcome":"retry","attempt":1,"by":" "}`, idem.Resolution{}},
		{"long by", `{"outcome":"retry","attempt":1,"by":"` + strings.Repeat("x", 256) + `"}`, idem.Resolution{}},
		{"line feed in by", `{"outcome":"retry","attempt":1,"by":"a\nb"}`, idem.Resolution{}},
		{"long note", `{"outcome":"retry","attempt":1,"by":"a","note":"` + strings.Repeat("x", 4097) + `"}`, idem.Resolution{}},
		{"result of a failure", `{"outcome":"failed","by":"a","result":{}}`, idem.Resolution{}},
		{"result of a retry", `{"outcome":"retry","attempt":1,"by":"a","result":null}`, idem.Resolution{}},
		{"error of a success", `{"outcome":"succeeded","by":"a","error":{}}`, idem.Resolution{}},
		{"error null", `{"outcome":"failed","by":"a","error":null}`, idem.Resolution{}},
		{"error with an unknown member", `{"outcome":"failed","by":"a","error":{"status":1}}`, idem.Resolution{}},
		{"error with a bad code", `{"outcome":"failed","by":"a","error":{"code":"Bad"}}`, idem.Resolution{}},
		{"error with a bad flag", `{"outcome":"failed","by":"a","error":{"retryable":"true"}}`, idem.Resolution{}},
		{"result with duplicates", `{"outcome":"succeeded","by":"a","result":{"a":1,"a":1}}`, idem.Resolution{}},
		{"result with too many digits", `{"outcome":"succeeded","by":"a","result":1e9999}`, idem.Resolution{}},
		{"large result", `{"outcome":"succeeded","by":"a","result":"` + strings.Repeat("x", idem.MaxOutput) + `"}`, idem.Resolution{}},
		{"long message", `{"outcome":"failed","by":"a","error":{"message":"` + strings.Repeat("x", idem.MaxMessage+1) + `"}}`, idem.Resolution{}},
		{"unknown member", `{"outcome":"retry","attempt":1,"by":"a","who":"b"}`, idem.Resolution{}},
		{"empty", ``, idem.Resolution{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseResolution([]byte(c.body))
			if c.want.Outcome == "" {
				if !errors.Is(err, idem.ErrBadRequest) {
					t.Fatalf("got %+v, %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Outcome != c.want.Outcome || got.By != c.want.By || got.Note != c.want.Note || got.Attempt != c.want.Attempt ||
				got.Failure != c.want.Failure || string(got.Result.Output) != string(c.want.Result.Output) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// What is kept of a body must not lie in memory that the next request gets.
func TestNothingKeptFromPooledMemory(t *testing.T) {
	type kept struct {
		tool, client string
		args         []byte
	}
	var all []kept
	svc := &fakeService{}
	svc.submit = func(_ context.Context, s idem.Submission) (idem.Answer, error) {
		all = append(all, kept{s.Request.Tool, *s.Request.ClientID, s.Request.Args})
		return idem.Answer{Call: exampleCall(s.Request.Key), Verdict: idem.VerdictCreated}, nil
	}
	h := serve(t, svc, Options{})
	for i := range 50 {
		n := strconv.Itoa(i)
		h.post("k"+n, `{"tool":"tool`+n+`","args":{"n":"`+n+`"},"client_id":"client`+n+`"}`).want(202)
	}
	for i, k := range all {
		n := strconv.Itoa(i)
		if k.tool != "tool"+n || k.client != "client"+n || string(k.args) != `{"n":"`+n+`"}` {
			t.Errorf("%d: %q %q %s", i, k.tool, k.client, k.args)
		}
	}
}
