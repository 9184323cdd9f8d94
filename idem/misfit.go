package idem

// Misfit is something in a stored call that the transitions cannot have
// written: a fault of a store, of a disk, or of this package.
type Misfit struct {
	End  bool // it is about the times of an end
	Text string
}

// Misfits says what in the call does not fit its status, or its audit trail of
// so many events. A call that only transitions have written has none. LeaseUntil
// is left out: a store may keep it elsewhere.
func (c *Call) Misfits(events int) []Misfit {
	if !c.Status.Valid() {
		return []Misfit{{Text: "there is no such status"}}
	}
	var all []Misfit
	expect := func(fits bool, m Misfit) {
		if !fits {
			all = append(all, m)
		}
	}
	ended := c.Status.Ended()
	expect(!c.EndedAt.IsZero() == ended, Misfit{End: true, Text: "whether it has the time of its end does not fit"})
	expect(!c.ExpiresAt.IsZero() == ended, Misfit{End: true, Text: "whether it has the time of its expiry does not fit"})

	expect(!c.ID.IsZero() && c.Key.Name != "" && c.Tool != "", Misfit{Text: "it has no id, no key or no tool"})
	expect((c.Owner != "") == (c.Status == StatusRunning), Misfit{Text: "whether it has an owner does not fit"})
	expect(!c.ClaimedAt.IsZero() == (c.Attempt > 0), Misfit{Text: "whether it has the time of its last claim does not fit its attempts"})
	expect(c.Revision > 0 && c.Revision <= events, Misfit{Text: "its revision does not fit its events"})
	expect(c.Deliveries > 0, Misfit{Text: "it was never delivered"})
	// Not only of calls with an effect outside: Effects are the last attempt's, and
	// the tool may have been another one since.
	expect(!c.InDoubt || c.Attempt > 0 && c.Status != StatusSucceeded, Misfit{Text: "it is in doubt, and nothing can have happened, or all is known"})
	if c.Tombstone {
		expect(ended, Misfit{Text: "it is a tombstone without an end"})
		expect(c.Result == nil && c.Failure == nil && c.ClientID == nil && c.Seq == nil, Misfit{Text: "it is a tombstone and tells more than its key"})
		return all
	}
	expect((c.Result != nil) == (c.Status == StatusSucceeded), Misfit{Text: "whether it has a result does not fit"})
	expect((c.Failure != nil) == (c.Status == StatusFailed || c.Status == StatusHeld), Misfit{Text: "whether it has an error does not fit"})
	expect(c.Settle >= 0 && (c.Attempt > 0 || c.Settle == 0 && c.Target == 0), Misfit{Text: "it was never sent, and says how it was"})
	expect(c.Failure == nil || c.Failure.RetryAfter >= 0, Misfit{Text: "it is to be asked for again in the past"})
	return all
}
