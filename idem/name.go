package idem

// NamePattern is what [ValidName] wants, for messages.
const NamePattern = "[a-z][a-z0-9_]{0,63}"

// ValidName reports whether s can name a tool, or be the code of a failure.
func ValidName(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
