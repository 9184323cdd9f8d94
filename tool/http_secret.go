package tool

import (
	"html"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// hideSecrets replaces what a request may be authorised with, since downstream may
// repeat it in what it answers ("invalid token abc"), and a failure's message is
// stored and shown. Which of the headers are secret is not known, so that all count
// but those that never are, and so do values of the URL's query and long parts of its
// path; short words do not, they would be found everywhere.
func hideSecrets(rawURL string, headers http.Header) *strings.Replacer {
	const word, segment, instead = 8, 16, "[hidden]"
	var values []string
	for name, vs := range headers {
		switch http.CanonicalHeaderKey(name) {
		case "Accept", "Content-Type", "User-Agent":
			continue
		}
		values = append(values, vs...)
	}
	u := mustURL(rawURL)
	for _, vs := range u.Query() {
		values = append(values, vs...)
	}
	for s := range strings.SplitSeq(u.Path, "/") {
		if len(s) >= segment {
			values = append(values, s)
		}
	}
	var pairs []string
	for _, v := range values {
		for _, s := range append(strings.Fields(v), v) {
			if len(s) < word || strings.Contains(s, effectIDMark) {
				continue
			}
			for _, spelt := range spellings(s) {
				pairs = append(pairs, spelt, instead)
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// spellings are how an answer may write what it repeats: as it is, in JSON with the
// escapes that are common (some write / as \/, some & as \u0026), in HTML, and in a
// URL.
func spellings(s string) []string {
	all := []string{s, html.EscapeString(s), url.QueryEscape(s), url.PathEscape(s)}
	if quoted, err := jsontext.AppendQuote(nil, s); err == nil {
		inner := string(quoted[1 : len(quoted)-1])
		for _, slash := range []string{"/", `\/`} {
			t := strings.ReplaceAll(inner, "/", slash)
			all = append(all, t, jsonInHTML.Replace(t))
		}
	}
	return all
}

// jsonInHTML is what writers of JSON do to what means something in HTML.
var jsonInHTML = strings.NewReplacer("&", `\u0026`, "<", `\u003c`, ">", `\u003e`)
