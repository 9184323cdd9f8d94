package httpapi

import (
	"net/http"

	"github.com/idemd/idemd/idem"
)

// traceparent returns the W3C traceparent of a request, or nothing: one that is not
// valid, or not the only one, is dropped, as the specification wants, and refuses no
// request.
func traceparent(h http.Header) string {
	lines := h["Traceparent"]
	if len(lines) != 1 || !idem.ValidTraceparent(lines[0]) {
		return ""
	}
	return lines[0]
}
