package idem

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// vectors mirrors testdata/vectors.json, which is there for implementations in
// other languages. Its values do not come from this package: they were
// computed by another program, from the description at the head of the file.
type vectors struct {
	About        []string
	Fingerprints []struct {
		Name, Tool, Input, Canonical, Fingerprint, Refused string

		InputHex string `json:"input_hex"`
	}
	Keys []struct {
		Name, Value, Key, Refused string

		ValueHex string `json:"value_hex"`
	}
	DerivedKeys []struct {
		Name, Scope, Tool, Intent, Key, Refused string
	} `json:"derived_keys"`
	Rules []struct {
		Name, Text, ID, Refused string
		Rules                   Rules
	}
	FingerprintsUnder []struct {
		Name, Tool, Input, Canonical, Fingerprint, Refused string
		Rules                                              Rules
	} `json:"fingerprints_under"`
}

// refusals are the words of the file and what our messages say.
var refusals = map[string]string{
	"empty":     wordEmpty,
	"cut":       wordCut,
	"syntax":    wordSyntax,
	"trailing":  wordTrailing,
	"duplicate": wordDuplicate,
	"utf8":      wordUTF8,
	"surrogate": wordSurrogate,
	"deep":      wordDeep,
	"digits":    wordDigits,
	"exponent":  wordExponent,
	"missing":   string(CodeMissingKey),
	"bad":       string(CodeBadRequest),
	"scope":     "needs a scope",
	"tool":      "needs a tool",
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// either is the text, or the bytes where they are given in hexadecimal.
func either(t *testing.T, text, inHex string) string {
	t.Helper()
	if inHex == "" {
		return text
	}
	b, err := hex.DecodeString(inHex)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wantRefusal(t *testing.T, err error, word string) {
	t.Helper()
	text, known := refusals[word]
	if !known {
		t.Fatalf("the file says %q", word)
	}
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want: %s", err, text)
	}
}

// TestVectors: canonical text and fingerprints (R3), keys and derived keys (R1).
func TestVectors(t *testing.T) {
	v := readVectors(t)
	good, refused := 0, 0
	for _, tt := range v.Fingerprints {
		t.Run("fingerprint/"+tt.Name, func(t *testing.T) {
			doc := []byte(either(t, tt.Input, tt.InputHex))
			text, err := Canonical(doc)
			f, err2 := FingerprintOf(tt.Tool, doc)
			if tt.Refused != "" {
				refused++
				wantRefusal(t, err, tt.Refused)
				wantRefusal(t, err2, tt.Refused)
				return
			}
			good++
			if err != nil || string(text) != tt.Canonical {
				t.Errorf("canonical text is %s, %v; want %s", text, err, tt.Canonical)
			}
			if err2 != nil || f.String() != tt.Fingerprint {
				t.Errorf("fingerprint is %v, %v; want %s", f, err2, tt.Fingerprint)
			}
			// The oracle of the fuzz tests is held to the vectors too.
			if tree, ok := readSlowly(doc); !ok {
				t.Error("the oracle refuses it")
			} else if again, ok := readSlowly(text); !ok || !sameTree(tree, again) {
				t.Error("the oracle reads the canonical text otherwise")
			}
		})
	}
	if good < 60 || refused < 25 {
		t.Errorf("%d documents and %d refusals: is the file whole?", good, refused)
	}
	for _, tt := range v.Keys {
		t.Run("key/"+tt.Name, func(t *testing.T) {
			key, err := ParseKey(DefaultNamespace, either(t, tt.Value, tt.ValueHex))
			if tt.Refused != "" {
				wantRefusal(t, err, tt.Refused)
			} else if want := (Key{DefaultNamespace, tt.Key}); err != nil || key != want {
				t.Errorf("got %q, %v; want %q", key, err, want)
			}
		})
	}
	for _, tt := range v.DerivedKeys {
		t.Run("derived key/"+tt.Name, func(t *testing.T) {
			name, err := KeyFor(tt.Scope, tt.Tool, []byte(tt.Intent))
			if tt.Refused != "" {
				wantRefusal(t, err, tt.Refused)
			} else if err != nil || name != tt.Key {
				t.Errorf("got %q, %v; want %q", name, err, tt.Key)
			}
		})
	}
	for _, tt := range v.Rules {
		t.Run("rules/"+tt.Name, func(t *testing.T) {
			err := tt.Rules.Validate()
			if tt.Refused != "" {
				if err == nil {
					t.Errorf("%+v is valid", tt.Rules)
				}
				return
			}
			if id, text := tt.Rules.ID(), tt.Rules.Text(); err != nil || id.String() != tt.ID || string(text) != tt.Text {
				t.Errorf("got %v, %v of %s; want %s of %s", err, id, text, tt.ID, tt.Text)
			}
		})
	}
	for _, tt := range v.FingerprintsUnder {
		t.Run("fingerprint under rules/"+tt.Name, func(t *testing.T) {
			f, err := FingerprintUnder(&tt.Rules, tt.Tool, []byte(tt.Input))
			if tt.Refused != "" {
				wantRefusal(t, err, tt.Refused)
				return
			}
			if err != nil || f.String() != tt.Fingerprint {
				t.Errorf("got %v, %v; want %s", f, err, tt.Fingerprint)
			}
			text, err := canonicalUnder(&tt.Rules, tt.Input)
			if err != nil || text != tt.Canonical {
				t.Errorf("canonical text is %s, %v; want %s", text, err, tt.Canonical)
			}
		})
	}
	if len(v.About) == 0 || len(v.Keys) == 0 || len(v.DerivedKeys) == 0 || len(v.Rules) == 0 || len(v.FingerprintsUnder) == 0 {
		t.Error("a part of the file is missing")
	}
}
