package idem

import "strings"

// ValidTraceparent reports whether s is a traceparent as W3C Trace Context, version
// 00, has it: version-trace-parent-flags in small hexadecimal digits, neither of the
// two ids all zero.
func ValidTraceparent(s string) bool {
	parts := strings.Split(s, "-")
	return len(parts) == 4 && parts[0] == "00" && isTraceID(parts[1], 32) && isTraceID(parts[2], 16) && isLowerHex(parts[3], 2)
}

// isTraceID reports whether s is an id of so many digits, which are not all zero.
func isTraceID(s string, digits int) bool { return isLowerHex(s, digits) && strings.Trim(s, "0") != "" }

func isLowerHex(s string, digits int) bool {
	return len(s) == digits && strings.Trim(s, "0123456789abcdef") == ""
}
