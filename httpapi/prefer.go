package httpapi

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// wait returns how long to wait for the client, and promises it in the answer:
// not at all where it did not ask, or while too many others are served.
func (x *exchange) wait() time.Duration {
	lines := x.r.Header["Prefer"]
	if len(lines) == 0 || x.crowded {
		return 0
	}
	seconds, ok := preferWait(lines)
	if !ok || seconds == 0 {
		return 0
	}
	seconds = min(seconds, int64(x.s.o.MaxWait/time.Second))
	x.w.Header()["Preference-Applied"] = waitApplied(seconds)
	return time.Duration(seconds) * time.Second
}

// waitApplied is the value that promises a wait. Those of the first minute are
// shared: nearly every request has one.
func waitApplied(seconds int64) []string {
	if seconds < int64(len(waitsApplied)) {
		return waitsApplied[seconds]
	}
	return []string{"wait=" + strconv.FormatInt(seconds, 10)}
}

var waitsApplied = func() (all [61][]string) {
	for i := range all {
		all[i] = []string{"wait=" + strconv.Itoa(i)}
	}
	return all
}()

// preferWait reads the seconds of the preference "wait" (RFC 7240). Preferences
// that are unknown or cannot be read are ignored; of several instances the
// first one counts, even where it is invalid.
func preferWait(lines []string) (seconds int64, ok bool) {
	for _, line := range lines {
		for line != "" {
			var item string
			item, line = cutUnquoted(line, ',')
			preference, _ := cutUnquoted(item, ';') // what follows are parameters; wait has none
			name, value, _ := strings.Cut(preference, "=")
			if strings.EqualFold(strings.Trim(name, " \t"), "wait") {
				return deltaSeconds(unquote(strings.Trim(value, " \t")))
			}
		}
	}
	return 0, false
}

// cutUnquoted cuts at the first separator outside of quoted strings. A quoted
// string that does not end takes everything that is left.
func cutUnquoted(s string, sep byte) (before, after string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && s[i] == sep:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// unquote takes the quotes off. No number of seconds needs escapes, so a value
// that has some stays as it is, and is no number.
func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

func deltaSeconds(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	const enough = 1 << 40 // more is the same, and never overflows
	var n int64
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), enough)
	}
	return n, true
}

// accepts reports whether the client asks for a media type instead of plain
// JSON: it is named, not refused, and not behind JSON where that is named too.
func accepts(h http.Header, media string) bool {
	m, plain := matchOf(h, media), matchOf(h, mediaJSON)
	return m.named == namedExactly && m.quality > 0 && (plain.named != namedExactly || m.quality >= plain.quality)
}

// prefers reports whether the client would rather have a media type than plain
// JSON: by quality; where that is equal, by what it names more exactly; where
// that is equal too, by what it names first. JSON is what everybody gets who
// does not care.
func prefers(h http.Header, media string) bool {
	if len(h["Accept"]) == 0 {
		return false
	}
	m, plain := matchOf(h, media), matchOf(h, mediaJSON)
	order := cmp.Or(cmp.Compare(m.quality, plain.quality), cmp.Compare(m.named, plain.named), cmp.Compare(plain.at, m.at))
	return m.quality > 0 && order > 0
}

const mediaJSON = "application/json"

// match is what an Accept header says about a media type.
type match struct {
	quality float64 // 0: not acceptable
	named   int     // how exactly the type is named: only the most exact range counts
	at      int     // where, counted from the left
}

const (
	namedNot     = iota
	namedAny     // */*
	namedGroup   // application/*
	namedExactly // parameters other than q make no difference here
)

// matchOf finds what the header says about a media type (RFC 9110, 12.5.1).
func matchOf(h http.Header, media string) match {
	var best match
	at := 0
	for _, line := range h["Accept"] {
		for line != "" {
			var item string
			item, line = cutUnquoted(line, ',')
			at++
			name, params := cutUnquoted(item, ';')
			m := match{quality(params), nameOf(strings.ToLower(strings.Trim(name, " \t")), media), at}
			if m.named > best.named || m.named == best.named && m.named != namedNot && m.quality > best.quality {
				best = m
			}
		}
	}
	return best
}

func nameOf(mediaRange, media string) int {
	group, _, _ := strings.Cut(media, "/")
	switch mediaRange {
	case media:
		return namedExactly
	case group + "/*":
		return namedGroup
	case "*/*":
		return namedAny
	default:
		return namedNot
	}
}

func quality(params string) float64 {
	for params != "" {
		var p string
		p, params = cutUnquoted(params, ';')
		name, value, _ := strings.Cut(p, "=")
		if strings.EqualFold(strings.Trim(name, " \t"), "q") {
			q, err := strconv.ParseFloat(strings.Trim(value, " \t"), 64)
			if err != nil || !(q >= 0 && q <= 1) {
				return 0
			}
			return q
		}
	}
	return 1
}
