package idem

import "testing"

func TestDoubt(t *testing.T) {
	for _, tc := range []struct {
		name string
		call Call
		want Doubt
	}{
		{"pending, never attempted", Call{Status: StatusPending}, DoubtNone},
		{"pending again, after a definite failure", Call{Status: StatusPending, Attempt: 1, Effects: EffectsExternal}, DoubtNone},
		{"pending again, after a lost answer", Call{Status: StatusPending, Attempt: 1, Effects: EffectsExternal, InDoubt: true}, DoubtUnknown},
		{"running, external", Call{Status: StatusRunning, Effects: EffectsExternal}, DoubtUnknown},
		{"running, local", Call{Status: StatusRunning, Effects: EffectsLocal}, DoubtNone},
		{"running, no effects", Call{Status: StatusRunning, Effects: EffectsNone}, DoubtNone},
		{"held", Call{Status: StatusHeld, Effects: EffectsExternal}, DoubtUnknown},
		{"failed", Call{Status: StatusFailed, Effects: EffectsExternal}, DoubtNone},
		{"failed, in doubt", Call{Status: StatusFailed, Effects: EffectsExternal, InDoubt: true}, DoubtUnknown},
		{"succeeded, external", Call{Status: StatusSucceeded, Effects: EffectsExternal}, DoubtCommitted},
		{"succeeded, local", Call{Status: StatusSucceeded, Effects: EffectsLocal}, DoubtCommitted},
		{"succeeded, no effects", Call{Status: StatusSucceeded, Effects: EffectsNone}, DoubtNone},
		{"succeeded settles an older doubt", Call{Status: StatusSucceeded, Effects: EffectsExternal, InDoubt: true}, DoubtCommitted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.call.Doubt(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
