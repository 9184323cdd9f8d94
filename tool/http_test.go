package tool

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/idem"
)

// received is a request as it arrived.
type received struct {
	method, uri, host, body string
	header                  http.Header
	length                  int64
}

// recording answers everything with 200 and no body, and keeps what came.
func recording(t testing.TB) (url string, came *[]received) {
	came = new([]received)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*came = append(*came, received{r.Method, r.RequestURI, r.Host, string(body), r.Header, r.ContentLength})
	}))
	t.Cleanup(s.Close)
	return s.URL, came
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestHTTPRequest(t *testing.T) {
	const args = " {\"n\":1.10 ,\"big\":9007199254740993,\"e\":1E+2}\n"
	eff := invocation(1, "").EffectID
	plain := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {"idemd"}}
	with := func(pairs ...string) http.Header {
		h := plain.Clone()
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = append([]string(nil), pairs[i+1])
		}
		return h
	}
	json := func(length int, pairs ...string) http.Header {
		return with(append(pairs, "Content-Type", "application/json", "Content-Length", fmt.Sprint(length))...)
	}
	for name, c := range map[string]struct {
		http        HTTP // its URL is what comes after the host
		args, trace string
		want        received
	}{
		"the very bytes": {
			http: HTTP{Method: "POST", URL: "/refunds"}, args: args,
			want: received{method: "POST", uri: "/refunds", body: args, header: json(len(args))},
		},
		"the effect id in a header": {
			http: HTTP{Method: "PUT", EffectKey: EffectKey{Header: "idempotency-key"}}, args: `{}`,
			want: received{method: "PUT", uri: "/", body: `{}`, header: json(2, "Idempotency-Key", eff)},
		},
		"the effect id, and not what is configured": {
			http: HTTP{Method: "POST", EffectKey: EffectKey{Header: "Idempotency-Key"}, Headers: http.Header{"idempotency-key": {"mine"}}}, args: `{}`,
			want: received{method: "POST", uri: "/", body: `{}`, header: json(2, "Idempotency-Key", eff)},
		},
		"the effect id in the body": {
			http: HTTP{Method: "PATCH", EffectKey: EffectKey{Pointer: "/meta/key"}}, args: `{"meta":{"a":1e0} }`,
			want: received{method: "PATCH", uri: "/", body: `{"meta":{"a":1e0,"key":"` + eff + `"} }`, header: json(19 + len(eff) + 9)},
		},
		"the effect id in the URL": {
			http: HTTP{Method: "POST", URL: "/a%2Fb/{effect_id}/c?ref={effect_id}&x=%7B", EffectKey: EffectKey{Header: "K"}}, args: `{}`,
			want: received{method: "POST", uri: "/a%2Fb/" + eff + "/c?ref=" + eff + "&x=%7B", body: `{}`, header: json(2, "K", eff)},
		},
		"DELETE has a body": {
			http: HTTP{Method: "DELETE", URL: "/x"}, args: `{"id":1}`,
			want: received{method: "DELETE", uri: "/x", body: `{"id":1}`, header: json(8)},
		},
		"configured headers": {
			http: HTTP{Method: "POST", Headers: http.Header{
				"authorization": {"Bearer t"}, "Content-Type": {"application/vnd.x+json"}, "User-Agent": {"shop"}, "Accept": {"application/json"}, "X-Two": {"1", "2"}, "Host": {"pay.example"},
			}}, args: `{}`,
			want: received{method: "POST", uri: "/", host: "pay.example", body: `{}`, header: http.Header{
				"Authorization": {"Bearer t"}, "Content-Type": {"application/vnd.x+json"}, "User-Agent": {"shop"}, "Accept": {"application/json"}, "X-Two": {"1", "2"},
				"Accept-Encoding": {"identity"}, "Content-Length": {"2"},
			}},
		},
		"a trace": {
			http: HTTP{Method: "POST", Headers: http.Header{"Traceparent": {"x"}}}, args: `{}`, trace: traceparent,
			want: received{method: "POST", uri: "/", body: `{}`, header: json(2, "Traceparent", traceparent)},
		},
		"a trace that is none": {
			http: HTTP{Method: "POST"}, args: `{}`, trace: traceparent + "\r\nX: y",
			want: received{method: "POST", uri: "/", body: `{}`, header: json(2)},
		},
		"GET has a query": {
			http: HTTP{Method: "GET", URL: "/find"}, args: ` {"q":"a b&c=ü","n":1.10,"e":1E+2,"t":true,"f":false,"\u0078":""} `,
			want: received{method: "GET", uri: "/find?q=a+b%26c%3D%C3%BC&n=1.10&e=1E%2B2&t=true&f=false&x=", header: with("Connection", "close")},
		},
		"GET adds to the URL's query": {
			http: HTTP{Method: "GET", URL: "/find?v=2"}, args: `{"v":3}`,
			want: received{method: "GET", uri: "/find?v=2&v=3", header: with("Connection", "close")},
		},
		"GET without args": {
			http: HTTP{Method: "GET", URL: "/find?v=2"}, args: `{}`,
			want: received{method: "GET", uri: "/find?v=2", header: with("Connection", "close")},
		},
		"HEAD": {
			http: HTTP{Method: "HEAD"}, args: `{"a":1}`,
			want: received{method: "HEAD", uri: "/?a=1", header: with("Connection", "close")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			base, came := recording(t)
			h := c.http
			h.URL, h.Success = base+h.URL, []int{200}
			tool := newHTTP(&h)
			defer tool.Close()
			inv := invocation(1, c.args)
			inv.Trace = c.trace
			for range 2 { // the second request is as the first
				if err := tool.CheckArgs(inv.Args); err != nil {
					t.Fatal(err)
				}
				res, err := tool.Invoke(t.Context(), inv)
				if err != nil || res.Output != nil {
					t.Fatalf("got %s, %v", res.Output, err)
				}
			}
			if string(inv.Args) != c.args {
				t.Error("args were modified")
			}
			if len(*came) != 2 {
				t.Fatalf("%d requests", len(*came))
			}
			want := c.want
			want.length = int64(len(want.body))
			if want.host == "" {
				want.host = strings.TrimPrefix(base, "http://")
			}
			for _, got := range *came {
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got\n%v, want\n%v", got, want)
				}
			}
		})
	}
}

// Calls that run beside each other share nothing but connections.
func TestHTTPBesideEachOther(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%q", r.Header.Get("K")+r.Header.Get("Traceparent")+r.RequestURI+string(body))
	}))
	defer s.Close()
	tool := newHTTP(&HTTP{Method: "POST", URL: s.URL + "/{effect_id}", Success: []int{200}, EffectKey: EffectKey{Header: "K"}})
	defer tool.Close()
	var all sync.WaitGroup
	for n := range byte(8) {
		all.Go(func() {
			for i := range 10 {
				inv := idem.Invocation{EffectID: idem.EffectID(idem.CallID{n, byte(i)}), Args: fmt.Append(nil, n)}
				if i%2 == 0 {
					inv.Trace = traceparent
				}
				res, err := tool.Invoke(t.Context(), inv)
				want := fmt.Sprintf("%q", inv.EffectID+inv.Trace+"/"+inv.EffectID+string(inv.Args))
				if err != nil || string(res.Output) != want {
					t.Errorf("got %s, %v; want %s", res.Output, err, want)
				}
			}
		})
	}
	all.Wait()
}

// Args that no request can be made of are refused, and where they were accepted
// before the tool was configured like this, nothing is sent.
func TestHTTPArgs(t *testing.T) {
	base, came := recording(t)
	for name, c := range map[string]struct {
		http HTTP
		args string
	}{
		"the member is there":        {HTTP{Method: "POST", EffectKey: EffectKey{Pointer: "/key"}}, `{"key":"` + canary + `"}`},
		"the member's parent is not": {HTTP{Method: "POST", EffectKey: EffectKey{Pointer: "/a/key"}}, `{"` + canary + `":{}}`},
		"no object":                  {HTTP{Method: "POST", EffectKey: EffectKey{Pointer: "/key"}}, `["` + canary + `"]`},
		"nothing":                    {HTTP{Method: "POST"}, ``},
		"GET, an object in it":       {HTTP{Method: "GET"}, `{"a":{"` + canary + `":1}}`},
		"GET, a list in it":          {HTTP{Method: "GET"}, `{"` + canary + `":[]}`},
		"GET, null in it":            {HTTP{Method: "GET"}, `{"` + canary + `":null}`},
		"GET, a list":                {HTTP{Method: "GET"}, `["` + canary + `"]`},
		"GET, half of it":            {HTTP{Method: "GET"}, `{"` + canary + `":1`},
		"GET, two of them":           {HTTP{Method: "GET"}, `{} {}`},
		"GET, no name":               {HTTP{Method: "GET"}, `{"a":1,2:3}`},
		"HEAD, nothing":              {HTTP{Method: "HEAD"}, ``},
	} {
		t.Run(name, func(t *testing.T) {
			h := c.http
			h.URL, h.Success = base, []int{200}
			tool := newHTTP(&h)
			defer tool.Close()
			wantInvalid(t, tool.CheckArgs([]byte(c.args)), canary)
			_, err := tool.Invoke(t.Context(), invocation(1, c.args))
			if f := wantFailure(t, err); f.Retryable || strings.Contains(f.Message, canary) {
				t.Errorf("got %+v", f)
			}
		})
	}
	if len(*came) != 0 {
		t.Errorf("%d requests were sent", len(*came))
	}
}

func TestHTTPFailure(t *testing.T) {
	const secret, spelt = "sk_live_abcdef", `ab/cd&e+"f==`
	long := strings.Repeat("ü", 300) // 600 bytes
	for name, c := range map[string]struct {
		status  int
		header  http.Header
		body    string
		want    string
		again   bool
		waiting time.Duration
	}{
		"final":                        {status: 422, body: "no", want: "downstream answered 422: no"},
		"final, without a word":        {status: 404, want: "downstream answered 404"},
		"final, and a time":            {status: 422, header: http.Header{"Retry-After": {"3"}}, want: "downstream answered 422"},
		"retryable":                    {status: 429, body: `{"e":1}` + "\n", want: `downstream answered 429: {"e":1}`, again: true},
		"retryable, and a time":        {status: 429, header: http.Header{"Retry-After": {"3"}}, want: "downstream answered 429", again: true, waiting: 3 * time.Second},
		"no UTF-8":                     {status: 422, body: "\xff", want: "downstream answered 422"},
		"more than is shown":           {status: 422, body: long, want: "downstream answered 422: " + long[:508] + "…"},
		"1 KiB":                        {status: 422, body: strings.Repeat("a", 1<<10), want: "downstream answered 422: " + strings.Repeat("a", 509) + "…"},
		"more than 1 KiB":              {status: 422, body: strings.Repeat("a", 1<<10+1), want: "downstream answered 422"},
		"more than the cap":            {status: 422, body: strings.Repeat("a", idem.MaxOutput+1), want: "downstream answered 422"},
		"a secret":                     {status: 422, body: "bad token " + secret + "!", want: "downstream answered 422: bad token [hidden]!"},
		"a header that is a secret":    {status: 422, body: "Bearer " + secret, want: "downstream answered 422: [hidden]"},
		"a secret of the query":        {status: 422, body: "key q_secret_1", want: "downstream answered 422: key [hidden]"},
		"a secret of the path":         {status: 422, body: "no POST /hooks/path_secret_12345", want: "downstream answered 422: no POST /hooks/[hidden]"},
		"a secret as it is":            {status: 422, body: `<` + spelt + `>`, want: "downstream answered 422: <[hidden]>"},
		"a secret in JSON":             {status: 422, body: `{"k":"ab/cd&e+\"f=="}`, want: `downstream answered 422: {"k":"[hidden]"}`},
		"a secret in JSON, / escaped":  {status: 422, body: `{"k":"ab\/cd&e+\"f=="}`, want: `downstream answered 422: {"k":"[hidden]"}`},
		"a secret in JSON, & escaped":  {status: 422, body: `{"k":"ab/cd\u0026e+\"f=="}`, want: `downstream answered 422: {"k":"[hidden]"}`},
		"a secret in JSON, both":       {status: 422, body: `{"k":"ab\/cd\u0026e+\"f=="}`, want: `downstream answered 422: {"k":"[hidden]"}`},
		"a secret in a query":          {status: 422, body: "?k=ab%2Fcd%26e%2B%22f%3D%3D", want: "downstream answered 422: ?k=[hidden]"},
		"a secret in HTML":             {status: 422, body: "<p>ab/cd&amp;e+&#34;f==</p>", want: "downstream answered 422: <p>[hidden]</p>"},
		"a word that is in each of it": {status: 422, body: "application/json hooks", want: "downstream answered 422: application/json hooks"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for n, v := range c.header {
					w.Header()[n] = v
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer s.Close()
			tool := newHTTP(&HTTP{
				Method: "POST", URL: s.URL + "/hooks/path_secret_12345?key=q_secret_1&ref=a-{effect_id}", Success: []int{200}, Final: []int{404, 422}, Retryable: []int{429},
				Headers: http.Header{"Authorization": {"Bearer " + secret}, "Accept": {"application/json"}, "X-Key": {spelt}},
			})
			defer tool.Close()
			_, err := tool.Invoke(t.Context(), invocation(1, `{}`))
			f := wantFailure(t, err)
			if f.Message != c.want || f.Retryable != c.again || f.RetryAfter != c.waiting {
				t.Errorf("got %+v", f)
			}
			if err := f.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNewHTTPPanics(t *testing.T) {
	defer func() {
		if p := recover(); p == nil || strings.Contains(fmt.Sprint(p), canary) {
			t.Errorf("got %v, want a panic that does not repeat the URL", p)
		}
	}()
	newHTTP(&HTTP{Method: "POST", URL: "http://" + canary + "%zz/"})
}

// What a call costs through the tool, with a downstream that does nothing.
func BenchmarkHTTPTool(b *testing.B) {
	for name, h := range map[string]HTTP{
		"body":         {Method: "POST", EffectKey: EffectKey{Header: "Idempotency-Key"}},
		"body pointer": {Method: "POST", EffectKey: EffectKey{Pointer: "/key"}},
		"query":        {Method: "GET"},
	} {
		b.Run(name, func(b *testing.B) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, `{"id":"re_1"}`)
			}))
			defer s.Close()
			h.URL, h.Success, h.Headers = s.URL+"/refunds", []int{200}, http.Header{"Authorization": {"Bearer token"}}
			tool := newHTTP(&h)
			defer tool.Close()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				inv := invocation(1, `{"order_id":"o-1","amount":1250}`)
				for pb.Next() {
					if _, err := tool.Invoke(b.Context(), inv); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
