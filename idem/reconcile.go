package idem

import "slices"

// Report is what Reconcile found. Acceptance is judged on it, never on answers
// that somebody got (R18).
type Report struct {
	Committed  int // effects in the ledger
	Distinct   int // intents with at least one effect
	Duplicates int // effects beyond the first of an intent, summed
	Lost       int // intents without an effect
	Unexpected int // effects of no known intent

	// The offending intents, sorted.
	DuplicateIDs, LostIDs, UnexpectedIDs []string
}

// Clean reports whether every intent has exactly one effect and nothing else
// happened.
func (r Report) Clean() bool {
	return r.Duplicates == 0 && r.Lost == 0 && r.Unexpected == 0 && r.Committed == r.Distinct
}

// Reconcile counts a ledger, one entry an effect naming its intent, against
// the intents that were to happen once each.
func Reconcile(ledger, intents []string) Report {
	effects := make(map[string]int, len(intents))
	for _, id := range intents {
		effects[id] = 0
	}
	r := Report{Committed: len(ledger)}
	unexpected := make(map[string]bool)
	for _, id := range ledger {
		if n, known := effects[id]; known {
			effects[id] = n + 1
			continue
		}
		r.Unexpected++
		unexpected[id] = true
	}
	for id, n := range effects {
		switch n {
		case 0:
			r.Lost++
			r.LostIDs = append(r.LostIDs, id)
		default:
			r.Distinct++
			r.Duplicates += n - 1
			if n > 1 {
				r.DuplicateIDs = append(r.DuplicateIDs, id)
			}
		}
	}
	for id := range unexpected {
		r.UnexpectedIDs = append(r.UnexpectedIDs, id)
	}
	slices.Sort(r.DuplicateIDs)
	slices.Sort(r.LostIDs)
	slices.Sort(r.UnexpectedIDs)
	return r
}
