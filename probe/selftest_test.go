package probe

import (
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/idem"
)

func TestSelfTest(t *testing.T) {
	for _, c := range SelfTest(t.Context()) {
		if !c.OK || len(c.Faults) != 0 || c.Cases == 0 {
			t.Errorf("%+v", c)
		}
	}
}

// TestSelfTestFails has a judge that is wrong in one thing, and the check that is to
// see it must.
func TestSelfTestFails(t *testing.T) {
	right := judges{classify: client.Classify, reconcile: idem.Reconcile, differences: differences}
	reconcile := func(spoil func(*idem.Report)) func(*judges) {
		return func(j *judges) {
			j.reconcile = func(ledger, intents []string) idem.Report {
				r := idem.Reconcile(ledger, intents)
				spoil(&r)
				return r
			}
		}
	}
	classify := func(when func(client.Reading) bool, v client.Verdict) func(*judges) {
		return func(j *judges) {
			j.classify = func(r client.Reading) client.Verdict {
				if when(r) {
					return v
				}
				return client.Classify(r)
			}
		}
	}
	const readings, planted, policies, offByOne = 0, 1, 3, 4
	for _, c := range []struct {
		name  string
		spoil func(*judges)
		seen  []int // by which checks
	}{
		{"sees no duplicate", reconcile(func(r *idem.Report) { r.Duplicates = 0 }), []int{planted, policies}},
		{"sees no loss", reconcile(func(r *idem.Report) { r.Lost = 0 }), []int{planted, policies}},
		{"sees a duplicate everywhere", reconcile(func(r *idem.Report) { r.Duplicates++ }), []int{planted, policies}},
		{"takes effects of nobody for nothing", reconcile(func(r *idem.Report) { r.Unexpected = 0 }), []int{planted}},
		{"takes a lost answer for nothing", classify(func(r client.Reading) bool { return r.Status == 0 && !r.NotSent },
			client.Verdict{Effect: idem.DoubtNone, Action: client.ActionAgain}), []int{readings}},
		{"tries a held call again", classify(func(r client.Reading) bool { return r.Code == idem.CodeOutcomeUnknown },
			client.Verdict{Effect: idem.DoubtUnknown, Action: client.ActionAgain}), []int{readings}},
		{"believes any 503", classify(func(r client.Reading) bool { return r.Status == 503 },
			client.Verdict{Effect: idem.DoubtNone, Action: client.ActionAgain}), []int{readings}},
		{"sees no difference", func(j *judges) { j.differences = func(Numbers, Numbers) []string { return nil } }, []int{offByOne}},
		{"does not compare lost", func(j *judges) {
			j.differences = func(declared, measured Numbers) []string {
				measured.Lost = declared.Lost
				return differences(declared, measured)
			}
		}, []int{offByOne}},
	} {
		j := right
		c.spoil(&j)
		checks := selfTest(t.Context(), j)
		for _, i := range c.seen {
			if checks[i].OK || len(checks[i].Faults) == 0 {
				t.Errorf("a judge that %s passes %q", c.name, checks[i].Name)
			}
		}
	}
}
