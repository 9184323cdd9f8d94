package tool

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// rawServer is a server of which every byte is the test's.
type rawServer struct {
	url   string
	ln    net.Listener
	conns sync.WaitGroup
}

// serveRaw gives each connection to serve, which ends with it.
func serveRaw(t testing.TB, serve func(conn *net.TCPConn, r *bufio.Reader)) *rawServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{url: "http://" + ln.Addr().String(), ln: ln}
	s.conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			s.conns.Go(func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn), bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(s.wait)
	return s
}

// wait takes no more connections, and waits until the last one is served. Whoever
// asked must have closed its own.
func (s *rawServer) wait() {
	s.ln.Close()
	s.conns.Wait()
}

// readRequest reads a whole request and reports whether there was one.
func readRequest(r *bufio.Reader) (method string, ok bool) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return req.Method, err == nil
}
