package httpapi

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// params reads the query, in which every parameter is known and there is one of
// each. An empty one is as good as absent.
func (x *exchange) params(known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query cannot be read")
	}
	params := make(map[string]string, len(values))
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badRequest("unknown query parameter; known are %s", strings.Join(known, ", "))
		case len(v) > 1:
			return nil, badRequest("query parameter %s is there twice", name)
		}
		params[name] = v[0]
	}
	return params, nil
}

var errQuery = badRequest("there are no query parameters here")

// noQuery is params where none is known.
func (x *exchange) noQuery() error {
	if x.r.URL.RawQuery != "" {
		return errQuery
	}
	return nil
}

// How many items a page has.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// pageParams is params for a page, which has a limit and a cursor besides.
func (x *exchange) pageParams(known ...string) (params map[string]string, limit int, err error) {
	if params, err = x.params(append(known, "limit", "cursor")...); err != nil {
		return nil, 0, err
	}
	v := params["limit"]
	if v == "" {
		return params, defaultLimit, nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n < 1 || n > maxLimit {
		return nil, 0, badRequest("limit must be a number from 1 to %d", maxLimit)
	}
	return params, int(n), nil
}
