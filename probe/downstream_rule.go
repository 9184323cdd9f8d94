package probe

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// DownstreamRule says which requests of an id a fault hits. Requests are counted
// for each id by itself, from 1. Exactly one of First, Every, Rate and All is set.
type DownstreamRule struct {
	Fault DownstreamFault

	First int     // the first so many requests of each id
	Every int     // each so-manieth request of each id
	Rate  float64 // so large a part of the requests, over 0, below 1, drawn from the seed
	All   bool    // every request
}

// ParseDownstreamRule reads a fault, an @, and first=N, every=N, rate=P or all:
// commit-then-close@first=1, delay:2s@rate=0.1.
func ParseDownstreamRule(s string) (DownstreamRule, error) {
	text, which, ok := strings.Cut(s, "@")
	if !ok {
		return DownstreamRule{}, fmt.Errorf("probe: %q does not say which requests: add @first=N, @every=N, @rate=P or @all", s)
	}
	f, err := ParseDownstreamFault(text)
	if err != nil {
		return DownstreamRule{}, err
	}
	r := DownstreamRule{Fault: f}
	name, value, valued := strings.Cut(which, "=")
	switch {
	case name == "first" && valued:
		r.First, err = strconv.Atoi(value)
	case name == "every" && valued:
		r.Every, err = strconv.Atoi(value)
	case name == "rate" && valued:
		r.Rate, err = strconv.ParseFloat(value, 64)
	case name == "all" && !valued:
		r.All = true
	default:
		return DownstreamRule{}, fmt.Errorf("probe: %q: after the @ comes first=N, every=N, rate=P or all", s)
	}
	if err != nil {
		return DownstreamRule{}, fmt.Errorf("probe: %q: %q is not a number", s, value)
	}
	if err := r.Validate(); err != nil {
		return DownstreamRule{}, fmt.Errorf("%w, in %q", err, s)
	}
	return r, nil
}

// Validate reports every fault of the rule at once.
func (r *DownstreamRule) Validate() error {
	faults := []error{r.Fault.Validate()}
	if r.Fault == (DownstreamFault{}) {
		faults = append(faults, errors.New("probe: a rule needs a fault"))
	}
	if r.First < 0 || r.Every < 0 {
		faults = append(faults, errors.New("probe: a number of requests is not positive"))
	}
	if !(r.Rate >= 0 && r.Rate < 1) { // NaN too
		faults = append(faults, fmt.Errorf("probe: rate %v is not over 0 and below 1", r.Rate))
	}
	set := 0
	for _, is := range []bool{r.First != 0, r.Every != 0, r.Rate != 0, r.All} {
		if is {
			set++
		}
	}
	if set != 1 {
		faults = append(faults, errors.New("probe: a rule needs one positive number of requests, a rate, or all"))
	}
	return errors.Join(faults...)
}

// hits says whether the n-th request of an id is hit. What is drawn depends on the
// seed, the id, n and the rule's place among the rules, not on what arrived before:
// requests of several ids race.
func (r *DownstreamRule) hits(seed uint64, place, n int, id string) bool {
	switch {
	case r.First > 0:
		return n <= r.First
	case r.Every > 0:
		return n%r.Every == 0
	case r.Rate > 0:
		in := binary.BigEndian.AppendUint64(nil, uint64(place))
		in = binary.BigEndian.AppendUint64(in, uint64(n))
		sum := sha256.Sum256(append(in, id...))
		return rand.New(rand.NewPCG(seed, binary.BigEndian.Uint64(sum[:]))).Float64() < r.Rate
	}
	return r.All
}

// DownstreamRules makes one function of rules, for [DownstreamOptions.Fault]: the
// first rule that hits a request decides it. The error is of a rule that is not
// valid.
func DownstreamRules(seed uint64, rules ...DownstreamRule) (func(n int, id string) DownstreamFault, error) {
	var faults []error
	for i := range rules {
		faults = append(faults, rules[i].Validate())
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return func(n int, id string) DownstreamFault {
		for i := range rules {
			if rules[i].hits(seed, i, n, id) {
				return rules[i].Fault
			}
		}
		return DownstreamFault{}
	}, nil
}
