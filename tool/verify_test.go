package tool

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/idemd/idemd/idem"
)

func TestVerify(t *testing.T) {
	const (
		found  = "found"
		absent = "absent"
		none   = "no answer"
	)
	big := strings.Repeat("a", idem.MaxOutput+1)
	for name, c := range map[string]struct {
		method string
		reply  string
		want   string
		output string
	}{
		"found":                  {reply: "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"n\":1 }", want: found, output: `{"n":1 }`},
		"found, text":            {reply: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", want: found, output: `{"status":200,"body":"ok"}`},
		"found, HEAD":            {method: "HEAD", reply: "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n", want: found},
		"found, more than fits":  {reply: "HTTP/1.1 200 OK\r\n\r\n" + big, want: found, output: `{"status":200,"truncated":true,"body":"` + big[:idem.MaxOutput-41] + `"}`},
		"absent":                 {reply: "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", want: absent},
		"absent, HEAD":           {method: "HEAD", reply: "HTTP/1.1 404 Not Found\r\n\r\n", want: absent},
		"absent, more than fits": {reply: "HTTP/1.1 404 Not Found\r\n\r\n" + big, want: none},
		"found, half of it":      {reply: "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{", want: none},
		"absent, half of it":     {reply: "HTTP/1.1 404 Not Found\r\nContent-Length: 8\r\n\r\n{", want: none},
		"another status":         {reply: "HTTP/1.1 503 Oops\r\nContent-Length: 0\r\n\r\n", want: none},
		"success, but not found": {reply: "HTTP/1.1 204 No Content\r\n\r\n", want: none},
		"a redirect":             {reply: "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", want: none},
		"nothing":                {reply: "", want: none},
		"no HTTP":                {reply: canary, want: none},
	} {
		t.Run(name, func(t *testing.T) {
			inv := invocation(1, `{"a":"`+canary+`"}`)
			inv.Trace = traceparent
			s := serveRaw(t, func(conn *net.TCPConn, r *bufio.Reader) {
				req, err := http.ReadRequest(r)
				if err != nil {
					t.Error(err)
					return
				}
				got := fmt.Sprint(req.Method, req.RequestURI, req.ContentLength, req.Close, req.Header)
				want := fmt.Sprint(req.Method, "/refunds/"+inv.EffectID+"?ref="+inv.EffectID, 0, true, http.Header{
					"Accept-Encoding": {"identity"}, "Authorization": {canary}, "Connection": {"close"}, "Traceparent": {traceparent}, "User-Agent": {"idemd"},
				})
				if got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				_, _ = io.WriteString(conn, c.reply)
			})
			method := c.method
			if method == "" {
				method = "GET"
			}
			q := newVerify(&Verify{
				Method: method, URL: s.url + "/refunds/{effect_id}?ref={effect_id}", Headers: http.Header{"Authorization": {canary}},
				Found: []int{200}, Absent: []int{404},
			})
			v, err := q.Verify(t.Context(), inv)
			q.Close()
			s.wait()
			got := none
			if err == nil {
				if got = absent; v.Found {
					got = found
				}
			}
			if got != c.want || string(v.Result.Output) != c.output {
				t.Errorf("%s, %.60s of %d bytes, %v; want %s", got, v.Result.Output, len(v.Result.Output), err, c.want)
			}
			if err != nil && (v.Found || strings.Contains(err.Error(), canary)) {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		q := newVerify(&Verify{Method: "GET", URL: "http://" + ln.Addr().String(), Found: []int{200}, Absent: []int{404}})
		defer q.Close()
		if v, err := q.Verify(t.Context(), invocation(1, `{}`)); err == nil || v.Found {
			t.Errorf("got %+v, %v, want no answer", v, err)
		}
	})
}
