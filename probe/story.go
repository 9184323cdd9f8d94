package probe

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/idemd/idemd/idem"
)

// owned is the key that a call was first seen with.
type owned struct {
	key  name
	spot spot
}

// story is all there is about a key.
type story struct {
	h       *History
	key     name
	entries []entry
	effects []effectRow
	trails  []int32
}

func (s *story) check(keyOf map[name]owned, perCall map[name]effectRow) {
	s.checkCalls(keyOf)
	s.checkEffects(perCall)
	s.checkTrails()
	s.checkAccepted()
	s.checkOutcomes()
	s.checkEnds()
	s.checkOrder()
}

// checkCalls finds a second call of the key, and a second key of a call.
func (s *story) checkCalls(keyOf map[name]owned) {
	var (
		first   name
		firstAt spot
	)
	told := make(map[name]bool)
	see := func(call name, at spot) {
		if call == 0 || told[call] {
			return
		}
		told[call] = true
		if first == 0 {
			first, firstAt = call, at
		} else {
			s.h.violate(RuleOneCall, s.key, call, "the key has another call, "+s.h.names.texts[first], firstAt, at)
		}
		if o, seen := keyOf[call]; seen {
			s.h.violate(RuleOneCall, s.key, call, fmt.Sprintf("the call has another key, %q", shorten(s.h.names.texts[o.key])), o.spot, at)
			return
		}
		keyOf[call] = owned{s.key, at}
	}
	for i := range s.entries {
		see(s.entries[i].call, s.entries[i].spot)
	}
	for _, e := range s.effects {
		see(e.call, e.spot)
	}
	for _, i := range s.trails {
		see(s.h.trails[i].call, s.h.trails[i].spot)
	}
}

// checkEffects finds a second effect of the key or of a call, and one that no
// trail explains.
func (s *story) checkEffects(perCall map[name]effectRow) {
	for i, e := range s.effects {
		if i > 0 {
			s.h.violate(RuleOneEffect, s.key, e.call, "the key has another effect", s.effects[0].spot, e.spot)
		}
		if other, twice := perCall[e.call]; twice && other.key != e.key {
			s.h.violate(RuleOneEffect, s.key, e.call, "the call has another effect, under another key", other.spot, e.spot)
		}
		perCall[e.call] = e
		i, known := s.h.trailOf[e.call]
		if !known {
			s.h.violate(RuleAudit, s.key, e.call, "there is an effect of the call, but no audit trail", e.spot)
			continue
		}
		if t := &s.h.trails[i]; t.end != 0 && !t.is(idem.StatusSucceeded) {
			s.h.violate(RuleNoEffect, s.key, e.call, "there is an effect of a call that is "+string(idem.Statuses[t.end-1]), e.spot, t.spot)
		}
	}
}

// effectOf reports whether a call has an effect.
func (s *story) effectOf(call name) bool {
	return slices.ContainsFunc(s.effects, func(e effectRow) bool { return e.call == call })
}

// checkTrails finds calls that succeeded without an effect.
func (s *story) checkTrails() {
	for _, i := range s.trails {
		t := &s.h.trails[i]
		if t.is(idem.StatusSucceeded) && !s.effectOf(t.call) && !s.without(t.call) {
			s.h.violate(RuleLostEffect, s.key, t.call, "the call succeeded and has no effect in the ledger", t.spot)
		}
	}
}

// without reports whether a call's tool is known to have no effect. Its trail
// knows best. A client knows it only of a call that it was shown: one that asked for
// something else under the key was refused, and its tool excuses nobody.
func (s *story) without(call name) bool {
	if i, known := s.h.trailOf[call]; known && s.h.trails[i].tool {
		return s.h.trails[i].without
	}
	return slices.ContainsFunc(s.entries, func(e entry) bool {
		return e.call == call && e.state != 0 && e.tool != 0 && s.h.noEffect[s.h.names.texts[e.tool]]
	})
}

// checkAccepted finds calls that clients were told of and that are not there,
// or are not as they were told.
func (s *story) checkAccepted() {
	lost, told, owed, unclaimed := map[name]bool{}, map[name]bool{}, map[name]bool{}, map[name]bool{}
	once := func(seen map[name]bool, rule HistoryRule, call name, message string, proof ...spot) {
		if !seen[call] {
			seen[call] = true
			s.h.violate(rule, s.key, call, message, proof...)
		}
	}
	for i := range s.entries {
		e := &s.entries[i]
		if e.call == 0 && e.kind == kindPost && e.status2xx() && len(s.trails) == 0 {
			once(lost, RuleLostCall, 0, "the request was accepted and there is no call", e.spot)
		}
		if e.call == 0 {
			continue
		}
		at, known := s.h.trailOf[e.call]
		if !known {
			once(lost, RuleLostCall, e.call, "the call was named and is not there in the end", e.spot)
		}
		if e.is(idem.StatusSucceeded) && !s.effectOf(e.call) && !s.without(e.call) && (!known || s.h.trails[at].end == 0) {
			// Where there is a sound trail, it is what accuses.
			once(owed, RuleLostEffect, e.call, "the call was told to have succeeded and has no effect in the ledger", e.spot)
		}
		if !known {
			continue
		}
		t := &s.h.trails[at]
		if t.end == 0 {
			continue
		}
		if e.attempt > t.claims {
			once(unclaimed, RuleTold, e.call, fmt.Sprintf("attempt %d was shown, and there were %d claims", e.attempt, t.claims), e.spot, t.spot)
		}
		if e.final() && (t.end != e.state || t.retryable) {
			once(told, RuleTold, e.call, fmt.Sprintf("the call was shown as %s, and its audit trail ends with %s", e.shown(), idem.Statuses[t.end-1]), e.spot, t.spot)
		}
	}
}

// asker is a client and what it asked for.
type asker struct{ client, intent name }

// checkOutcomes finds an effect of which everybody who asked for the key was
// told, in the end, that it does not exist. One who was told something else, or
// was never told because it died, may be whose effect it is; and so may the
// earlier request that a conflict or an expired key is about: that may be one of
// its own, and what it was told of that one stands.
func (s *story) checkOutcomes() {
	if len(s.effects) == 0 {
		return
	}
	last := make(map[asker]*entry)
	asking := make(map[asker]bool) // it has asked and was not told what came of it
	for i := range s.entries {
		e := &s.entries[i]
		who := asker{e.client, e.intent}
		switch e.kind {
		case kindPost: // whatever was told before, it asks again
			asking[who] = true
		case kindOutcome:
			delete(asking, who)
			if e.effect != doubtNone || e.code != otherCalls {
				last[who] = e
			}
		}
	}
	if len(asking) > 0 {
		return
	}
	proof := []spot{s.effects[0].spot}
	for _, e := range last {
		if e.effect != doubtNone {
			return
		}
		proof = append(proof, e.spot)
	}
	if len(proof) > 1 {
		slices.SortFunc(proof[1:], func(a, b spot) int {
			return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.line, b.line))
		})
		s.h.violate(RuleNoEffect, s.key, s.effects[0].call, "there is an effect, and everybody was told that there is none", proof...)
	}
}

// checkEnds compares all answers that show the same end. There is one end for
// good; a retryable one is known by its attempt. Only a call whose tool was gone
// when it was asked for again has two retryable ends in one attempt, and
// updated_at tells them apart.
func (s *story) checkEnds() {
	type which struct {
		call    name
		attempt int32
	}
	ends, finals, told := map[which]*entry{}, map[name]*entry{}, map[which]bool{}
	for i := range s.entries {
		e := &s.entries[i]
		if !e.ended() || !e.digests {
			continue
		}
		id := which{e.call, e.attempt}
		first, seen := ends[id]
		if f, ended := finals[e.call]; ended && e.final() {
			first, seen = f, true
		}
		if !seen {
			ends[id] = e
			if e.final() {
				finals[e.call] = e
			}
			continue
		}
		if e.final() && finals[e.call] == nil {
			finals[e.call] = e
		}
		two := first.retryable && e.retryable && first.updated != 0 && e.updated != 0 && first.updated != e.updated
		same := first.state == e.state && first.retryable == e.retryable && first.attempt == e.attempt && first.result == e.result && first.failure == e.failure
		switch {
		case two:
			ends[id] = e
		case !same && !told[id]:
			told[id] = true
			message := fmt.Sprintf("an end was shown as %s and as %s", first.shown(), e.shown())
			if first.shown() == e.shown() {
				message = fmt.Sprintf("an end, %s, was shown with other bytes", e.shown())
			}
			s.h.violate(RuleReplay, s.key, e.call, message, first.spot, e.spot)
		}
	}
}

const (
	nothing = -1            // the server did not know the call
	forGood = math.MaxInt64 // an end that nothing opens again
	unheard = math.MinInt64 // tells nothing
)

// rank orders what can be shown of a key by what comes first. Within one attempt
// running comes first; what follows has no order of its own.
func (e *entry) rank() int64 {
	switch {
	case e.kind == kindOutcome:
		return unheard
	case e.code == notFound:
		return nothing
	case e.final():
		return forGood
	case e.is(idem.StatusRunning):
		return 2 * int64(e.attempt)
	case e.state != 0:
		return 2*int64(e.attempt) + 1
	case e.status2xx() && e.kind == kindPost:
		return 0 // accepted, whatever the rest of the answer was
	default:
		return unheard
	}
}

// checkOrder finds answers that show less than an answer before them: before, in
// the log of one client, or by the clock, when the try began after the other
// answer was there.
func (s *story) checkOrder() {
	var tries []*entry
	for i := range s.entries {
		if s.entries[i].rank() != unheard {
			tries = append(tries, &s.entries[i])
		}
	}
	told := make(map[*entry]bool)
	after := func(before, e *entry) {
		if before == nil || e.rank() >= before.rank() || told[e] {
			return
		}
		told[e] = true
		rule, message := RuleForward, fmt.Sprintf("%s was shown after %s", e.shown(), before.shown())
		switch {
		case e.rank() == nothing:
			rule, message = RuleLostCall, "the call was not found after it had been accepted"
		case before.rank() == forGood:
			rule = RuleEnd
		}
		s.h.violate(rule, s.key, cmp.Or(e.call, before.call), message, before.spot, e.spot)
	}

	most := make(map[name]*entry) // by client: the highest so far
	for _, e := range tries {
		before := most[e.client]
		after(before, e)
		if before == nil || e.rank() > before.rank() {
			most[e.client] = e
		}
	}

	answers := slices.Clone(tries)
	slices.SortStableFunc(answers, func(a, b *entry) int { return cmp.Compare(a.at, b.at) })
	slices.SortStableFunc(tries, func(a, b *entry) int { return cmp.Compare(a.began, b.began) })
	var highest *entry
	for _, e := range tries {
		for len(answers) > 0 && answers[0].at < e.began-int64(s.h.o.Skew) { // neither is below 0: no overflow
			if a := answers[0]; highest == nil || a.rank() > highest.rank() {
				highest = a
			}
			answers = answers[1:]
		}
		after(highest, e)
	}
}
