package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/idemd/idemd/idem"
)

func TestAnswerResult(t *testing.T) {
	tooDeep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	for name, c := range map[string]struct {
		raw       string
		truncated bool
		member    string
		status    int
		want      string // empty: null
	}{
		"JSON is kept byte for byte":               {raw: " {\"n\": 1.10e2,\"big\":9007199254740993}\n", member: "body", status: 200, want: " {\"n\": 1.10e2,\"big\":9007199254740993}\n"},
		"a JSON string is JSON":                    {raw: `"ok"`, member: "body", status: 200, want: `"ok"`},
		"null is null":                             {raw: `null`, member: "body", status: 200, want: `null`},
		"nothing is null":                          {raw: ``, member: "body", status: 204},
		"white space alone is text":                {raw: "\n", member: "stdout", want: `{"stdout":"\n"}`},
		"text of HTTP":                             {raw: `a "b" \ ü`, member: "body", status: 201, want: `{"status":201,"body":"a \"b\" \\ ü"}`},
		"text of a command":                        {raw: "done\n", member: "stdout", want: `{"stdout":"done\n"}`},
		"control characters":                       {raw: "\x00\x1f\x7f\b\f\r\t", member: "stdout", want: `{"stdout":"\u0000\u001f` + "\x7f" + `\b\f\r\t"}`},
		"no UTF-8":                                 {raw: "\xff\x00", member: "body", status: 200, want: `{"status":200,"body_base64":"/wA="}`},
		"UTF-8 that ends within a character":       {raw: "a\xc3", member: "stdout", want: `{"stdout_base64":"YcM="}`},
		"two documents are text":                   {raw: `{} {}`, member: "body", want: `{"body":"{} {}"}`},
		"half a document is text":                  {raw: `{"a":`, member: "body", want: `{"body":"{\"a\":"}`},
		"a name twice is text":                     {raw: `{"a":1,"a":2}`, member: "body", want: `{"body":"{\"a\":1,\"a\":2}"}`},
		"a number beyond the limits is text":       {raw: `1e1001`, member: "body", want: `{"body":"1e1001"}`},
		"a document beyond the limits is text":     {raw: tooDeep, member: "body", want: `{"body":"` + tooDeep + `"}`},
		"half a surrogate pair is text":            {raw: `"\ud800"`, member: "body", want: `{"body":"\"\\ud800\""}`},
		"truncated text":                           {raw: "abc", truncated: true, member: "body", status: 200, want: `{"status":200,"truncated":true,"body":"abc"}`},
		"truncated, and still JSON by chance":      {raw: "123", truncated: true, member: "stdout", want: `{"truncated":true,"stdout":"123"}`},
		"truncated within a character":             {raw: "aü€"[:5], truncated: true, member: "stdout", want: `{"truncated":true,"stdout":"aü"}`},
		"truncated within a character of four":     {raw: "a\xf0\x9f\x98", truncated: true, member: "stdout", want: `{"truncated":true,"stdout":"a"}`},
		"truncated after a character of four":      {raw: "a😀", truncated: true, member: "stdout", want: `{"truncated":true,"stdout":"a😀"}`},
		"truncated, no UTF-8":                      {raw: "\xff\xc3", truncated: true, member: "stdout", want: `{"truncated":true,"stdout_base64":"/8M="}`},
		"truncated before the first byte was read": {raw: "", truncated: true, member: "stdout", want: `{"truncated":true,"stdout":""}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := answerResult([]byte(c.raw), c.truncated, c.member, c.status)
			if string(r.Output) != c.want {
				t.Errorf("got %s, want %s", r.Output, c.want)
			}
			if err := r.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Around the cap: what fits is whole, what does not is cut as late as possible,
// and the result always fits.
func TestAnswerResultAtTheCap(t *testing.T) {
	const plain = len(`{"status":200,"body":""}`)
	for _, size := range []int{idem.MaxOutput / 10 * 9, idem.MaxOutput - plain, idem.MaxOutput - plain + 1, idem.MaxOutput, idem.MaxOutput + 1, idem.MaxOutput / 10 * 11, idem.MaxOutput * 100} {
		for _, unit := range []string{"a", "\x01", "\b\f\n\r\t\"\\", "a\x01ü\"€😀", "\xff"} {
			for _, truncated := range []bool{false, true} {
				if size > 2*idem.MaxOutput && (unit != "\x01" || truncated) {
					continue // takes long, and says nothing new
				}
				raw := strings.Repeat(unit, size/len(unit)+1)[:size]
				t.Run(fmt.Sprintf("%d of %q, truncated %v", size, unit, truncated), func(t *testing.T) {
					r := answerResult([]byte(raw), truncated, "body", 200)
					if err := r.Validate(); err != nil {
						t.Fatal(err)
					}
					var got struct {
						Status     int
						Truncated  bool
						Body       *string
						BodyBase64 []byte `json:"body_base64"`
					}
					d := json.NewDecoder(bytes.NewReader(r.Output))
					d.DisallowUnknownFields()
					if err := d.Decode(&got); err != nil {
						t.Fatal(err)
					}
					const longest = 6 // of one character, escaped
					var kept string
					if got.Body != nil {
						kept = *got.Body
						if !utf8.ValidString(kept) || strings.ContainsRune(kept, utf8.RuneError) {
							t.Error("cut within a character")
						}
					} else {
						kept = string(got.BodyBase64)
					}
					if !strings.HasPrefix(raw, kept) {
						t.Fatal("what is kept is not the beginning")
					}
					if wantText := utf8.Valid([]byte(raw)) || truncated && unit != "\xff"; wantText != (got.Body != nil) {
						t.Errorf("text: %v, want %v", got.Body != nil, wantText)
					}
					whole := len(kept) == len(raw)
					if cut := len(raw) - len(kept); truncated && cut < utf8.UTFMax {
						whole = true
					}
					if got.Truncated != (truncated || !whole) || got.Status != 200 {
						t.Errorf("truncated %v, status %d, %d of %d bytes kept", got.Truncated, got.Status, len(kept), len(raw))
					}
					if !whole && len(r.Output) < idem.MaxOutput-longest {
						t.Errorf("cut to %d bytes, though more would have fitted", len(r.Output))
					}
				})
			}
		}
	}
	t.Run("JSON of exactly the cap", func(t *testing.T) {
		raw := []byte(`"` + strings.Repeat("a", idem.MaxOutput-2) + `"`)
		if r := answerResult(raw, false, "body", 200); !bytes.Equal(r.Output, raw) {
			t.Error("it fits, and is not kept")
		}
	})
	t.Run("JSON of one byte more", func(t *testing.T) {
		raw := []byte(`"` + strings.Repeat("a", idem.MaxOutput-1) + `"`)
		if r := answerResult(raw, false, "body", 200); !bytes.HasPrefix(r.Output, []byte(`{"status":200,"truncated":true,"body":"\"aaa`)) || len(r.Output) != idem.MaxOutput {
			t.Errorf("got %.50s of %d bytes", r.Output, len(r.Output))
		}
	})
}

func FuzzAnswerResult(f *testing.F) {
	f.Add([]byte("a\xc3"), true)
	f.Add([]byte(`{"a":1}`), false)
	f.Add([]byte("\x00\"\\\xff"), false)
	f.Fuzz(func(t *testing.T, raw []byte, truncated bool) {
		r := answerResult(raw, truncated, "stdout", 0)
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		if !truncated && len(raw) > 0 && (idem.Result{Output: raw}).Validate() != nil {
			var got map[string]any
			if err := json.Unmarshal(r.Output, &got); err != nil {
				t.Fatal(err)
			}
			text, _ := got["stdout"].(string)
			if b, ok := got["stdout_base64"].(string); ok {
				decoded, err := base64.StdEncoding.DecodeString(b)
				if err != nil {
					t.Fatal(err)
				}
				text = string(decoded)
			}
			if got["truncated"] == nil && text != string(raw) {
				t.Fatalf("%q became %q", raw, text)
			}
		}
	})
}
