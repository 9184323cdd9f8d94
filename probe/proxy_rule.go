package probe

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// Rule says which exchanges are hit, and by what. An exchange matches by method
// and path; a matching one is hit if First, FirstPerKey and Rate all allow it.
type Rule struct {
	// Faults has at least one; where there are more, each hit draws one by Seed.
	Faults []Fault

	// First hits only the first so many matching exchanges, in the order in which
	// their heads arrived. 0: no limit.
	First int

	// FirstPerKey hits only the first so many matching exchanges of each key (see
	// [ProxyOptions.KeyHeader]): with 1, the first try of each intent. 0: no limit.
	// Exchanges without a key are not hit then, and neither are those of new keys
	// once 262144 are known; [Summary.KeysForgotten] counts the latter.
	FirstPerKey int

	// Rate hits so large a part of the matching exchanges, drawn by Seed: over 0,
	// at most 1. 0: all of them.
	Rate float64

	// Seed decides all that is drawn. What becomes of the n-th matching exchange
	// depends on Seed, n and the rule's place among the rules, on nothing else:
	// the same arrivals meet the same faults.
	Seed uint64

	// Methods that match; none: all. In upper case, as on the wire.
	Methods []string

	// Path is what the path of a matching exchange begins with, unescaped. Empty:
	// every path.
	Path string
}

// Validate reports every fault of the rule at once.
func (r *Rule) Validate() error {
	var faults []error
	if len(r.Faults) == 0 {
		faults = append(faults, errors.New("probe: a rule needs a fault"))
	}
	for _, f := range r.Faults {
		faults = append(faults, f.Validate())
	}
	if r.First < 0 || r.FirstPerKey < 0 {
		faults = append(faults, errors.New("probe: a number of exchanges is negative"))
	}
	if !(r.Rate >= 0 && r.Rate <= 1) { // NaN too
		faults = append(faults, fmt.Errorf("probe: rate %v is not from 0 to 1", r.Rate))
	}
	for _, m := range r.Methods {
		if m == "" || m != strings.ToUpper(m) {
			faults = append(faults, fmt.Errorf("probe: method %q is not in upper case", m))
		}
	}
	if r.Path != "" && !strings.HasPrefix(r.Path, "/") {
		faults = append(faults, fmt.Errorf("probe: path %q does not begin with /", r.Path))
	}
	return errors.Join(faults...)
}

func (r *Rule) matches(req *http.Request) bool {
	return (len(r.Methods) == 0 || slices.Contains(r.Methods, req.Method)) && strings.HasPrefix(req.URL.Path, r.Path)
}

// maxKeys bounds the keys that one rule remembers.
const maxKeys = 1 << 18

// counter is a rule and what has matched it so far.
type counter struct {
	Rule
	place   int // among the rules
	matched uint64
	perKey  map[keyDigest]int
	maxKeys int
}

// keyDigest stands for a key: keys may be long, and there may be many.
type keyDigest [16]byte

// meet counts an exchange and says what hits it, if anything does. forgotten is
// true if its key could not be remembered.
func (c *counter) meet(req *http.Request, key string) (f Fault, hit, forgotten bool) {
	if !c.matches(req) {
		return Fault{}, false, false
	}
	c.matched++
	hit = c.First == 0 || c.matched <= uint64(c.First)
	if c.FirstPerKey > 0 {
		var first bool
		first, forgotten = c.meetKey(key)
		hit = hit && first
	}
	// Drawn anew from the number, not from a running generator: one exchange
	// more or less before it must not change what a later number meets.
	draw := rand.New(rand.NewPCG(c.Seed, c.matched<<8^uint64(c.place)))
	if c.Rate > 0 && draw.Float64() >= c.Rate {
		hit = false
	}
	if !hit {
		return Fault{}, false, forgotten
	}
	return c.Faults[draw.IntN(len(c.Faults))], true, forgotten
}

func (c *counter) meetKey(key string) (hit, forgotten bool) {
	if key == "" {
		return false, false
	}
	sum := sha256.Sum256([]byte(key))
	d := keyDigest(sum[:])
	n, known := c.perKey[d]
	if !known && len(c.perKey) >= c.maxKeys {
		return false, true
	}
	if n < c.FirstPerKey {
		c.perKey[d] = n + 1
	}
	return n < c.FirstPerKey, false
}
