// Command shop is a small payment service of another make, for tests: it knows
// nothing of idemd, has a contract and a ledger of its own, and can be told to
// be wrong.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
)

func main() {
	ledger := flag.String("ledger", "ledger.csv", "file of the ledger; CSV")
	wrong := flag.Bool("wrong", false, "do not look at the key")
	flag.Parse()
	if err := run(*ledger, *wrong); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

func run(name string, wrong bool) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	s := &shop{ledger: f, wrong: wrong, paid: make(map[string]int)}
	if _, err := f.WriteString("receipt,purchase,cents\n"); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/pay\n", l.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /pay", s.pay)
	mux.HandleFunc("GET /books", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) })
	return http.Serve(l, mux)
}

type shop struct {
	wrong bool

	mu     sync.Mutex
	ledger *os.File
	paid   map[string]int // cents, by token
	n      int
}

func (s *shop) pay(w http.ResponseWriter, r *http.Request) {
	var purchase struct {
		Purchase string `json:"purchase"`
		Cents    int    `json:"cents"`
	}
	token := r.Header.Get("X-Payment-Token")
	if json.NewDecoder(r.Body).Decode(&purchase) != nil || purchase.Purchase == "" || token == "" {
		http.Error(w, "no purchase, or no token", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cents, known := s.paid[token]; known && !s.wrong {
		if cents != purchase.Cents {
			http.Error(w, "this token is another purchase's", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	s.n++
	if _, err := fmt.Fprintf(s.ledger, "r%d,%s,%d\n", s.n, purchase.Purchase, purchase.Cents); err != nil {
		http.Error(w, "the ledger is full", http.StatusInternalServerError)
		return
	}
	if err := s.ledger.Sync(); err != nil {
		http.Error(w, "the ledger is full", http.StatusInternalServerError)
		return
	}
	s.paid[token] = purchase.Cents
	w.WriteHeader(http.StatusCreated)
}
