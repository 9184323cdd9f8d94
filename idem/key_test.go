package idem

import (
	"errors"
	"strings"
	"testing"
)

// TestParseKey: the borders; testdata/vectors.json has more. (R1)
func TestParseKey(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"bare", "demo-1", "demo-1"},
		{"quoted", `"demo-1"`, "demo-1"},
		{"quoted with escapes", `"a\"b\\c"`, `a"b\c`},
		{"bare with a quote and a backslash inside", `a"b\c`, `a"b\c`},
		{"1 byte", "k", "k"},
		{"255 bytes", strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"255 bytes quoted", `"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255)},
		{"255 bytes of escapes", `"` + strings.Repeat(`\\`, 255) + `"`, strings.Repeat(`\`, 255)},
		{"first and last byte allowed", "!~", "!~"},
		{"blank inside", "a b", "a b"},
	} {
		t.Run("accepted/"+tt.name, func(t *testing.T) {
			got, err := ParseKey("team", tt.value)
			if want := (Key{Namespace: "team", Name: tt.want}); err != nil || got != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
	for _, tt := range []struct {
		name, value string
		code        Code
	}{
		{"empty", "", CodeMissingKey},
		{"empty in quotes", `""`, CodeMissingKey},
		{"256 bytes", strings.Repeat("k", 256), CodeBadRequest},
		{"256 bytes quoted", `"` + strings.Repeat("k", 256) + `"`, CodeBadRequest},
		{"256 bytes of escapes", `"` + strings.Repeat(`\\`, 256) + `"`, CodeBadRequest},
		{"4096 bytes", strings.Repeat("k", 4096), CodeBadRequest},
		{"1000000 bytes", strings.Repeat("\xa5", 1_000_000), CodeBadRequest},
		{"1000000 bytes quoted", `"` + strings.Repeat(`\"`, 500_000), CodeBadRequest},
		{"blank", " ", CodeBadRequest},
		{"blank in front", " a", CodeBadRequest},
		{"blank behind, quoted", `"a "`, CodeBadRequest},
		{"blank before the quotes", ` "a"`, CodeBadRequest},
		{"NUL", "a\x00b", CodeBadRequest},
		{"tab", "a\tb", CodeBadRequest},
		{"CR LF", "a\r\nX-Forged: 1", CodeBadRequest},
		{"DEL", "\x7f", CodeBadRequest},
		{"emoji", "\U0001f511", CodeBadRequest},
		{"emoji quoted", "\"\U0001f511\"", CodeBadRequest},
		{"lone quote", `"`, CodeBadRequest},
		{"no closing quote", `"a`, CodeBadRequest},
		{"closing quote escaped", `"a\"`, CodeBadRequest},
		{"cut in an escape", `"a\`, CodeBadRequest},
		{"unknown escape", `"\n"`, CodeBadRequest},
		{"text after the closing quote", `"a"b`, CodeBadRequest},
		{"parameters after the closing quote", `"a";p=1`, CodeBadRequest},
		{"empty quotes and more", `"""`, CodeBadRequest},
	} {
		t.Run("refused/"+tt.name, func(t *testing.T) {
			got, err := ParseKey("team", tt.value)
			var e *Error
			if !errors.As(err, &e) || e.Code != tt.code || got != (Key{}) {
				t.Fatalf("got %q, %v; want %s", got, err, tt.code)
			}
			// A message goes into logs and answers: one line, whatever came.
			if s := e.Message; len(s) > 100 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("message %q", s)
			}
		})
	}
}

// TestParseKeyNamespace: one name in two namespaces is two keys. (R2)
func TestParseKeyNamespace(t *testing.T) {
	calls := map[Key]int{}
	for i, ns := range []Namespace{"a", "b", ""} {
		key, err := ParseKey(ns, "k")
		if err != nil {
			t.Fatal(err)
		}
		calls[key] = i
	}
	if len(calls) != 3 {
		t.Errorf("three namespaces made %d keys", len(calls))
	}
	if _, ok := calls[Key{DefaultNamespace, "k"}]; !ok {
		t.Error("no namespace is not the default namespace")
	}
}

// TestParseKeyErrorsAreFresh: an error can be given a call without changing
// what the sentinel, or another request, says.
func TestParseKeyErrorsAreFresh(t *testing.T) {
	_, err := ParseKey("", "")
	var fresh *Error
	if !errors.As(err, &fresh) || fresh.Code != CodeMissingKey || fresh == ErrMissingKey {
		t.Errorf("got %v", err)
	}
}

func TestKeyHeaderValue(t *testing.T) {
	for name, want := range map[string]string{
		`demo-1`: `demo-1`,
		`a"b\c`:  `a"b\c`,
		`"a\b"`:  `"\"a\\b\""`,
		`"`:      `"\""`,
	} {
		key := Key{Namespace: "team", Name: name}
		if got := key.HeaderValue(); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if again, err := ParseKey("team", key.HeaderValue()); err != nil || again != key {
			t.Errorf("%s: read back as %q, %v", name, again, err)
		}
	}
}

// TestKeyFor: what makes one key and what makes two. (R1)
func TestKeyFor(t *testing.T) {
	derive := func(t *testing.T, scope, tool, intent string, opts ...KeyOption) string {
		t.Helper()
		name, err := KeyFor(scope, tool, []byte(intent), opts...)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	const intent = `{"to":"a@example.org","lines":[{"sku":"x y","n":2}]}`
	base := derive(t, "user-7", "order", intent)
	if len(base) != 32 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("the name is %q", base)
	}
	if key, err := ParseKey("", base); err != nil || key.Name != base {
		t.Errorf("the name is read as %q, %v", key, err)
	}

	for _, tt := range []struct{ name, intent string }{
		{"order and spelling", `{"lines":[{"n":2.0,"sku":"x\u0020y"}], "to":"a@example.org"}`},
		{"blanks around strings", `{"to":" a@example.org\n","lines":[{"sku":"\t x y\r\n","n":2}]}`},
	} {
		t.Run("same/"+tt.name, func(t *testing.T) {
			if got := derive(t, "user-7", "order", tt.intent); got != base {
				t.Errorf("got %s, want %s", got, base)
			}
		})
	}
	for _, tt := range []struct{ name, scope, tool, intent string }{
		{"scope", "user-8", "order", intent},
		{"tool", "user-7", "cancel", intent},
		{"border of scope and tool", "user-7o", "rder", intent},
		{"blank inside a string", "user-7", "order", `{"to":"a@example.org","lines":[{"sku":"x  y","n":2}]}`},
		{"case", "user-7", "order", `{"to":"A@example.org","lines":[{"sku":"x y","n":2}]}`},
		{"blank around a name", "user-7", "order", `{"to ":"a@example.org","lines":[{"sku":"x y","n":2}]}`},
		{"white space that is not trimmed", "user-7", "order", `{"to":"a@example.org\u00a0","lines":[{"sku":"x y","n":2}]}`},
	} {
		t.Run("other/"+tt.name, func(t *testing.T) {
			if got := derive(t, tt.scope, tt.tool, tt.intent); got == base {
				t.Error("the same name")
			}
		})
	}

	t.Run("normalized", func(t *testing.T) {
		loud := `{"to":"A@Example.Org","lines":[{"sku":"X.Y.","n":2}]}`
		dots := func(s string) string { return strings.ReplaceAll(s, "x.y.", "x y ") }
		if got := derive(t, "user-7", "order", loud, Normalize(strings.ToLower), Normalize(dots)); got != base {
			t.Error("not applied in order, or not trimmed afterwards")
		}
		if got := derive(t, "user-7", "order", strings.ReplaceAll(intent, "sku", "SKU"), Normalize(strings.ToLower)); got == base {
			t.Error("applied to the name of a member")
		}
		if got := derive(t, "user-7", "order", loud); got == base {
			t.Error("applied without being asked for")
		}
	})

	for _, tt := range []struct {
		name, scope, tool, intent string
		opts                      []KeyOption
	}{
		{"no scope", "", "order", intent, nil},
		{"no tool", "user-7", "", intent, nil},
		{"no intent", "user-7", "order", "", nil},
		{"intent with a duplicate name", "user-7", "order", `{"a":1,"a":2}`, nil},
		{"normalized to invalid UTF-8", "user-7", "order", `["a"]`, []KeyOption{Normalize(func(string) string { return "\xff" })}},
	} {
		t.Run("refused/"+tt.name, func(t *testing.T) {
			name, err := KeyFor(tt.scope, tt.tool, []byte(tt.intent), tt.opts...)
			if !errors.Is(err, ErrBadRequest) || name != "" {
				t.Errorf("got %q, %v", name, err)
			}
		})
	}

	// What one key does to strings must not reach the next document.
	t.Run("leaves no edit behind", func(t *testing.T) {
		derive(t, "u", "t", `" a "`)
		if got, err := Canonical([]byte(`" a "`)); err != nil || string(got) != `" a "` {
			t.Errorf("got %s, %v", got, err)
		}
	})
}

func BenchmarkParseKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseKey("team", "8e03978e-40d5-43e8-bc93-6894a57f9324"); err != nil {
			b.Fatal(err)
		}
	}
}
