package tool

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/idemd/idemd/idem"
)

// answerResult makes a result of what a tool outside answered. It is stored with
// the call and given again with every replay, so it always is a JSON document of
// at most [idem.MaxOutput] bytes, whatever came. Truncated says that raw is only
// the beginning of the answer. Member is what text is called: "body" for HTTP,
// "stdout" for commands. Status is that of HTTP, zero where there is none.
//
//	what came                                      the result
//	one JSON document that idem accepts            it, byte for byte
//	nothing                                        null
//	text                                           {"status":200,"body":"…"}
//	bytes that are no UTF-8                        {"status":200,"body_base64":"…"}
//	more than was read, or than fits               {"status":200,"truncated":true,"body":"…"}
//	more than was read or fits, and no UTF-8       {"status":200,"truncated":true,"body_base64":"…"}
//
// "status" is there only where status is not zero. Text is cut between two
// characters. Escaped text is longer than it was, and base64 by a third, so that
// both can be cut though all was read. JSON beyond the limits of [idem.Canonical]
// (too deep, a number too long, a name twice) is text; so is white space alone.
//
// The result may lie in raw, which is not to be changed after.
func answerResult(raw []byte, truncated bool, member string, status int) idem.Result {
	if !truncated {
		if len(raw) == 0 {
			return idem.Result{}
		}
		if r := (idem.Result{Output: raw}); r.Validate() == nil {
			return r
		}
	}
	text, encode := raw, jsonText
	if truncated {
		text = wholeCharacters(raw)
	}
	if !utf8.Valid(text) {
		text, encode, member = raw, base64Text, member+"_base64"
	}
	if !truncated {
		if out, ok := wrapped(status, false, member, text, encode); ok {
			return idem.Result{Output: out}
		}
	}
	out, _ := wrapped(status, true, member, text, encode)
	return idem.Result{Output: out}
}

// encoding appends to dst as much of the beginning of text, as a JSON string
// without its quotes, as has room in n bytes, and reports whether that was all.
type encoding func(dst, text []byte, n int) ([]byte, bool)

// wrapped puts text into an object, and reports whether all of it is in there.
func wrapped(status int, truncated bool, member string, text []byte, encode encoding) ([]byte, bool) {
	out := make([]byte, 0, min(len(text)+len(text)/2+64, idem.MaxOutput))
	out = append(out, '{')
	if status != 0 {
		out = append(out, `"status":`...)
		out = strconv.AppendInt(out, int64(status), 10)
		out = append(out, ',')
	}
	if truncated {
		out = append(out, `"truncated":true,`...)
	}
	out = append(out, '"')
	out = append(out, member...)
	out = append(out, `":"`...)
	const end = `"}`
	out, all := encode(out, text, idem.MaxOutput-len(out)-len(end))
	return append(out, end...), all
}

// jsonText is the encoding of valid UTF-8.
func jsonText(dst, text []byte, n int) ([]byte, bool) {
	fits, room := 0, n
	for fits < len(text) {
		size, length := 1, escapedLength(text[fits])
		if text[fits] >= utf8.RuneSelf {
			_, size = utf8.DecodeRune(text[fits:])
			length = size
		}
		if room -= length; room < 0 {
			break
		}
		fits += size
	}
	// The quotes that AppendQuote puts around it are there already.
	at := len(dst) - 1
	quoted, _ := jsontext.AppendQuote(dst[:at], text[:fits]) // fails only for what is no UTF-8
	return quoted[:len(quoted)-1], fits == len(text)
}

// escapedLength is how long an ASCII character is in a JSON string with the
// shortest escapes.
func escapedLength(c byte) int {
	switch c {
	case '"', '\\', '\b', '\f', '\n', '\r', '\t':
		return len(`\n`)
	}
	if c < ' ' {
		return len(`\u0000`)
	}
	return 1
}

// base64Text is the encoding of any bytes.
func base64Text(dst, raw []byte, n int) ([]byte, bool) {
	fits := min(len(raw), n/4*3)
	return base64.StdEncoding.AppendEncode(dst, raw[:fits]), fits == len(raw)
}

// wholeCharacters drops a character at the end that was cut in two.
func wholeCharacters(raw []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(raw); n++ {
		if tail := raw[len(raw)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return raw[:len(raw)-n]
			}
			break
		}
	}
	return raw
}
