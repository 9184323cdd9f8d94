package runner

import "github.com/idemd/idemd/idem"

// Hooks are points at which tests look into the runner. Every one may be nil.
type Hooks struct {
	// At is called when a call passes a point, on the goroutine that works on
	// it, after faults of that point.
	At func(p idem.Point, id idem.CallID)
}

func (h Hooks) at(p idem.Point, id idem.CallID) {
	if h.At != nil {
		h.At(p, id)
	}
}
