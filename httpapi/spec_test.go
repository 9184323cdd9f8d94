package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/go-chi/chi/v5"

	"github.com/idemd/idemd/idem"
)

// spec is openapi.yaml, ready to hold requests and answers against.
type spec struct {
	doc    *openapi3.T
	router routers.Router
}

var loadSpec = sync.OnceValues(func() (*spec, error) {
	openapi3filter.RegisterBodyDecoder(mediaStream, openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder(mediaProblem, openapi3filter.JSONBodyDecoder)
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil // tests listen elsewhere
	router, err := gorillamux.NewRouter(doc)
	return &spec{doc, router}, err
})

func theSpec(t testing.TB) *spec {
	t.Helper()
	s, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wants says how a request stands to the description.
type wants int

const (
	fits    wants = iota // it must be as described
	refused              // the description must refuse it, as the server does
	beyond               // the server refuses it for what a schema cannot say
)

// check holds an exchange against the description.
func (s *spec) check(t testing.TB, w wants, req *http.Request, reqBody []byte, resp *http.Response, body []byte) {
	t.Helper()
	head := req.Method == http.MethodHead
	if head { // described in words: GET without the body
		req = req.Clone(context.Background())
		req.Method = http.MethodGet
	}
	route, params, err := s.find(req)
	if err != nil {
		// No operation. That is right for these answers only, whose shape is
		// described in words.
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s %s is not described, and answered with %d", req.Method, req.URL, resp.StatusCode)
			return
		}
		if head {
			return
		}
		if resp.Header.Get("Content-Type") == mediaProblem {
			s.checkSchema(t, "Problem", body)
		} else {
			s.checkSchema(t, "Error", body)
		}
		return
	}
	in := &openapi3filter.RequestValidationInput{
		Request: req.Clone(context.Background()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: head},
	}
	in.Request.Body = io.NopCloser(bytes.NewReader(reqBody))
	err = openapi3filter.ValidateRequest(context.Background(), in)
	switch {
	case w == fits && err != nil:
		t.Errorf("the request is not as described: %v", err)
	case w == refused && err == nil:
		t.Errorf("the description allows a request that was answered with %d", resp.StatusCode)
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header,
		Body: io.NopCloser(bytes.NewReader(body)), Options: in.Options,
	})
	if err != nil {
		t.Errorf("%s %s: the answer is not as described: %v\n%d %v\n%s", req.Method, route.Path, err, resp.StatusCode, resp.Header, body)
	}
	if resp.Header.Get("Content-Type") == mediaStream && !head {
		for line := range strings.Lines(string(body)) {
			s.checkSchema(t, "Effect", []byte(line))
		}
	}
}

// find finds the operation. A key in a path may look like another operation
// (by-key/audit), which the description settles in words.
func (s *spec) find(req *http.Request) (*routers.Route, map[string]string, error) {
	const prefix = "/v1/tool-calls/by-key/"
	escaped, ok := strings.CutPrefix(req.URL.EscapedPath(), prefix)
	if !ok {
		return s.router.FindRoute(req)
	}
	key, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, nil, err
	}
	plain := req.Clone(context.Background())
	plain.URL.Path, plain.URL.RawPath = prefix+"key", ""
	route, _, err := s.router.FindRoute(plain)
	return route, map[string]string{"key": key}, err
}

func (s *spec) checkSchema(t testing.TB, name string, doc []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(doc, &v); err != nil {
		t.Errorf("%s: %v in %s", name, err, doc)
		return
	}
	if err := s.doc.Components.Schemas[name].Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
		t.Errorf("%s is not as described: %v in %s", name, err, doc)
	}
}

// The description is valid, its examples are true, and it describes what the
// router routes, no more and no less.
func TestDescription(t *testing.T) {
	s := theSpec(t)
	if err := s.doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.IsOpenAPI31OrLater()); err != nil {
		t.Fatal(err)
	}

	t.Run("routes", func(t *testing.T) {
		var described, routed []string
		for path, item := range s.doc.Paths.Map() {
			for method := range item.Operations() {
				described = append(described, method+" "+path)
			}
		}
		srv := New(&fakeService{}, Options{})
		err := chi.Walk(srv.routes.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
			if method != http.MethodHead { // described in words
				routed = append(routed, method+" "+strings.Replace(route, "/*", "/{key}", 1))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(described)
		slices.Sort(routed)
		if !slices.Equal(described, routed) {
			t.Errorf("described %q\nrouted %q", described, routed)
		}
	})

	t.Run("examples of calls", func(t *testing.T) {
		for name, ex := range s.doc.Components.Examples {
			b, err := json.Marshal(ex.Value.Value)
			if err != nil {
				t.Fatal(err)
			}
			s.checkSchema(t, "Call", b)
			var c struct {
				CallID   string `json:"call_id"`
				EffectID string `json:"effect_id"`
				QueryURL string `json:"query_url"`
			}
			if err := json.Unmarshal(b, &c); err != nil {
				t.Fatal(err)
			}
			id, err := idem.ParseCallID(c.CallID)
			if err != nil || c.EffectID != idem.EffectID(id) || c.QueryURL != string(appendPath(nil, id)) {
				t.Errorf("%s: %+v does not belong together (%v)", name, c, err)
			}
		}
	})

	t.Run("codes", func(t *testing.T) {
		enum := s.doc.Components.Schemas["Error"].Value.Properties["error"].Value.Properties["code"].Value.Enum
		described := make(map[string]bool)
		for _, v := range enum {
			described[v.(string)] = true
		}
		known := make(map[string]bool)
		for _, code := range codesOf(t) {
			known[code] = true
			if p := problems[idem.Code(code)]; p.status == 0 || p.title == "" {
				t.Errorf("no status or no title for %s", code)
			}
		}
		if !maps.Equal(described, known) || len(problems) != len(known) {
			t.Errorf("described %v\nknown %v\nproblems %v", described, known, problems)
		}
	})

	t.Run("both forms of errors", func(t *testing.T) {
		for path, item := range s.doc.Paths.Map() {
			for method, op := range item.Operations() {
				for status, r := range op.Responses.Map() {
					plain, problem := r.Value.Content[mediaJSON], r.Value.Content[mediaProblem]
					if isError := status >= "400"; (problem != nil) != isError || isError && plain == nil {
						t.Errorf("%s %s %s: has a problem document: %v", method, path, status, problem != nil)
					}
				}
			}
		}
	})

	t.Run("statuses", func(t *testing.T) {
		// Whatever status a code has, some operation must describe it, except
		// for what is described in words and what comes with credentials.
		described := map[int]bool{405: true, 401: true, 403: true}
		for _, item := range s.doc.Paths.Map() {
			for _, op := range item.Operations() {
				for status := range op.Responses.Map() {
					n, err := strconv.Atoi(status)
					if err != nil {
						t.Fatal(err)
					}
					described[n] = true
				}
			}
		}
		for code, p := range problems {
			if !described[p.status] {
				t.Errorf("%s: %d is not described", code, p.status)
			}
		}
	})
}

// codesOf reads the codes out of the source, so that a new one cannot be forgotten.
func codesOf(t testing.TB) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../idem/error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Code" {
			return true
		}
		code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		codes = append(codes, code)
		return true
	})
	if len(codes) < 10 {
		t.Fatalf("found only %q", codes)
	}
	return codes
}
