package idem

// Doubt says whether the call's side effect may have happened: committed where it
// is in the ledger; unknown where an answer was lost and nobody has found out
// since, and while an external tool is at work; else none. It is a function of the
// record alone, so that a replay says what the first answer said.
//
// A failure of the last attempt does not make it none: the attempt speaks for
// itself only, and one before it may have had the effect (see [Call.InDoubt]).
func (c *Call) Doubt() Doubt {
	switch {
	case c.Status == StatusSucceeded && c.OwesEffect():
		return DoubtCommitted
	case c.Status == StatusSucceeded:
		return DoubtNone // the tool has none
	case c.Status == StatusHeld, c.InDoubt:
		return DoubtUnknown
	case c.Status == StatusRunning && c.Effects == EffectsExternal:
		return DoubtUnknown
	default:
		return DoubtNone
	}
}
