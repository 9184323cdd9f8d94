package httpapi

import (
	"sync"
)

// handlers counts the handlers that run. net/http waits for connections, not for
// handlers, and cutting a connection does not end the handler behind it.
type handlers struct {
	mu      sync.Mutex
	running int
	closed  bool
	idle    chan struct{} // closed when nothing runs and nothing begins any more
}

// begin reports whether a handler may run.
func (h *handlers) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.running++
	return true
}

func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.closed && h.running == 0 {
		close(h.idle)
	}
}

// close lets no handler begin and waits for those that run. It may be called
// again.
func (h *handlers) close() {
	h.mu.Lock()
	if !h.closed {
		h.closed, h.idle = true, make(chan struct{})
		if h.running == 0 {
			close(h.idle)
		}
	}
	h.mu.Unlock()
	<-h.idle
}
