package tool

import "net/http"

// doubtful reports whether a status leaves open whether anything was done.
func doubtful(code int) bool {
	return code == http.StatusRequestTimeout || code == http.StatusConflict || code >= 500
}

// turnedAway reports whether a status is about who asks, how or when, so that it
// cannot mean that what is asked for is there.
func turnedAway(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return true
	}
	return false
}

// saysNothing reports whether a status is about the question, the asker or the server
// and not about what was asked for.
func saysNothing(code int) bool {
	switch code {
	case http.StatusBadRequest, http.StatusPaymentRequired, http.StatusConflict, http.StatusLocked:
		return true
	}
	return turnedAway(code) || code < 200 || code/100 == 3 || code >= 500
}
