package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Namespace keeps the keys of one group of callers apart from those of all
// others: the same name in two namespaces is two keys that never meet. It comes
// from the caller's credential, never from the request.
type Namespace string

// DefaultNamespace is where the keys of callers without a credential live.
const DefaultNamespace Namespace = "default"

// Key names an intent: what a caller wants done once. The caller makes it, and
// sends the same one on every attempt (R1); there is one call for a key (R2).
//
// Name is the text without quotes or escapes, 1 to 255 bytes of printable ASCII.
// Make keys with [ParseKey], which is what holds names to that.
type Key struct {
	Namespace Namespace
	Name      string
}

// maxKeyBytes is the longest name. It counts the text, not its quoted form.
const maxKeyBytes = 255

// ParseKey reads a key as the Idempotency-Key header carries it. All doors read
// keys with it, so that one text is one key whichever way it came. An empty
// namespace is [DefaultNamespace].
//
// A value that begins with a quote is a string of RFC 8941: it ends with a quote,
// nothing follows, and inside it \" and \\ are the only escapes. Any other
// value is the name itself, and a quote further on is an ordinary byte. So
// demo-1 and "demo-1" are the same key.
//
// A name has 1 to 255 bytes from 0x20 to 0x7E and no blank at either end. Nothing
// is trimmed: a door whose protocol allows blanks around the value takes them off
// before it asks.
//
// An empty name, quoted or not, is refused with [CodeMissingKey] and all else
// with [CodeBadRequest]. Messages never quote the value, so that what was not a key
// reaches no log.
func ParseKey(ns Namespace, value string) (Key, error) {
	name := value
	if strings.HasPrefix(value, `"`) {
		var err error
		if name, err = unquoteKey(value); err != nil {
			return Key{}, err
		}
	}
	if name == "" {
		return Key{}, Errorf(CodeMissingKey, "%s", ErrMissingKey.Message)
	}
	if len(name) > maxKeyBytes {
		return Key{}, Errorf(CodeBadRequest, "Idempotency-Key: longer than %d bytes", maxKeyBytes)
	}
	for i := range len(name) {
		if b := name[i]; b < 0x20 || b > 0x7E {
			return Key{}, Errorf(CodeBadRequest, "Idempotency-Key: byte 0x%02X at position %d; printable ASCII is allowed", b, i)
		}
	}
	if name[0] == ' ' || name[len(name)-1] == ' ' {
		return Key{}, Errorf(CodeBadRequest, "Idempotency-Key: a blank at the beginning or the end")
	}
	if ns == "" {
		ns = DefaultNamespace
	}
	return Key{Namespace: ns, Name: name}, nil
}

// unquoteKey returns the text of a value that begins with a quote. Which bytes
// the text may have is left to the caller.
func unquoteKey(value string) (string, error) {
	// A value too long to be a key is not worth reading, even if all of
	// it were escapes.
	if len(value) > 2+2*maxKeyBytes {
		return "", Errorf(CodeBadRequest, "Idempotency-Key: longer than %d bytes", maxKeyBytes)
	}
	var text strings.Builder
	text.Grow(len(value))
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '"':
			if i != len(value)-1 {
				return "", Errorf(CodeBadRequest, "Idempotency-Key: something follows the closing quote")
			}
			return text.String(), nil
		case '\\':
			i++
			if i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", Errorf(CodeBadRequest, `Idempotency-Key: a backslash in quotes stands before " or \ only`)
			}
		}
		text.WriteByte(value[i])
	}
	return "", Errorf(CodeBadRequest, "Idempotency-Key: the closing quote is missing")
}

// HeaderValue returns the key's name as a header carries it: as it is, or quoted
// where it begins with a quote and would not be read back otherwise. [ParseKey]
// of it gives the name again.
func (k Key) HeaderValue() string {
	if !strings.HasPrefix(k.Name, `"`) {
		return k.Name
	}
	return `"` + keyQuoter.Replace(k.Name) + `"`
}

var keyQuoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// KeyOption changes how [KeyFor] reads the strings of an intent.
type KeyOption func(*keyRules)

type keyRules struct {
	normalize []func(string) string
}

// Normalize has every string of the intent replaced by f of it, before blanks are
// trimmed. Names of members are left alone. Several are applied in the order
// given.
//
// It is for differences in spelling that the caller knows to mean nothing: pass
// a Unicode normalisation form, a width folding or a case folding. None is
// applied unless asked for, since each of them makes one key out of intents
// that may be two. F must be the same function for as long as a key may be used
// again, and must return valid UTF-8.
func Normalize(f func(string) string) KeyOption {
	return func(r *keyRules) { r.normalize = append(r.normalize, f) }
}

// keyTag begins what KeyFor hashes; see fingerprintTag.
const keyTag = "idemd-key-1"

// KeyFor derives a key's name from what the caller wants done, for callers that
// have no better name for it, such as an order's number. The same intent gives
// the same name, on every attempt and on every machine (R1).
//
// Scope says whose intent it is and which occasion it belongs to: a user, an
// order, a month. It is mandatory, because without it two users' equal charges
// would be one, and so would one user's two.
//
// Strings of the intent, at any depth, lose the blanks, tabs, carriage returns and
// line feeds at either end; names of members do not. See [Normalize] for more.
// Then the intent is brought into the form of [Canonical], and the name is
// the first 32 hexadecimal digits of the SHA-256 over
//
//	"idemd-key-1" | len(scope) | scope | len(tool) | tool | len(intent) | intent
//
// where a length is an unsigned integer of 64 bits, most significant byte first.
//
// An empty scope, an empty tool and an intent that Canonical refuses are refused
// with [CodeBadRequest]. The intent is neither kept nor modified.
func KeyFor(scope, tool string, intent []byte, opts ...KeyOption) (string, error) {
	if scope == "" {
		return "", Errorf(CodeBadRequest, "a key needs a scope: whose intent it is")
	}
	if tool == "" {
		return "", Errorf(CodeBadRequest, "a key needs a tool")
	}
	var rules keyRules
	for _, opt := range opts {
		opt(&rules)
	}

	c := getCanonizer()
	c.edit = func(s string) string {
		for _, f := range rules.normalize {
			s = f(s)
		}
		return strings.Trim(s, " \t\r\n")
	}
	c.out = append(c.out[:0], keyTag...)
	b := appendPart(c.out, scope)
	b = appendPart(b, tool)
	b = binary.BigEndian.AppendUint64(b, 0) // the length, when it is known
	start := len(b)
	b, err := c.document(b, intent)
	if err != nil {
		putCanonizer(c)
		return "", err
	}
	binary.BigEndian.PutUint64(b[start-8:], uint64(len(b)-start))
	sum := sha256.Sum256(b)
	c.out = b
	putCanonizer(c)
	return hex.EncodeToString(sum[:16]), nil
}
