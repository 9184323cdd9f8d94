package tool

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/idemd/idemd/idem"
)

// verifyTool asks downstream what it knows of an effect id. It cannot tell a
// downstream that does not know the id from something in between that does not
// know downstream: where a proxy answers with a status of the list Absent because
// what is behind it is down, a call is run again that was done. The status must be
// downstream's own.
type verifyTool struct {
	spec   *Verify
	url    *url.URL
	header http.Header
	host   string
	wire   *wire
}

// newVerify makes the question out of what was declared, which must be valid: it
// panics if the URL cannot be read.
func newVerify(v *Verify) *verifyTool {
	q := &verifyTool{spec: v, url: mustURL(v.URL), wire: newWire(false)}
	q.header, q.host = requestHeader(v.Headers)
	return q
}

// Close ends the making of connections; none is kept.
func (q *verifyTool) Close() { q.wire.close() }

// Verify puts the question once. Only a complete answer with a status of one of the
// lists is one; an error says that there was none. What was found may be cut at the
// cap; "not found" is believed only to its last byte, since it allows another run.
func (q *verifyTool) Verify(ctx context.Context, inv idem.Invocation) (idem.Verification, error) {
	a, err := q.wire.send(ctx, newRequest(q.spec.Method, q.url, q.host, q.header, inv))
	switch {
	case err != nil:
		return idem.Verification{}, err
	case slices.Contains(q.spec.Found, a.status):
		return idem.Verification{Found: true, Result: a.result()}, nil
	case slices.Contains(q.spec.Absent, a.status) && !a.truncated:
		return idem.Verification{}, nil
	}
	return idem.Verification{}, fmt.Errorf("tool: downstream answered %d to the question what was done", a.status)
}
