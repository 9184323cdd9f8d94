package httpapi

import (
	"net/http"
	"strings"
)

// traceparent returns the W3C traceparent of a request (Trace Context, version
// 00), or nothing: one that is not valid, or not the only one, is dropped, as the
// specification wants, and refuses no request.
func traceparent(h http.Header) string {
	lines := h["Traceparent"]
	if len(lines) != 1 {
		return ""
	}
	parts := strings.Split(lines[0], "-")
	if len(parts) != 4 || parts[0] != "00" || !isID(parts[1], 32) || !isID(parts[2], 16) || !isLowerHex(parts[3], 2) {
		return ""
	}
	return lines[0]
}

// isID reports whether s is an id of so many digits, which are not all zero.
func isID(s string, digits int) bool { return isLowerHex(s, digits) && strings.Trim(s, "0") != "" }

func isLowerHex(s string, digits int) bool {
	return len(s) == digits && strings.Trim(s, "0123456789abcdef") == ""
}
