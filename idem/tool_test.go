package idem

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestToolValidate(t *testing.T) {
	invoke := func(context.Context, Invocation) (Result, error) { return Result{}, nil }
	verify := func(context.Context, Invocation) (Verification, error) { return Verification{}, nil }
	good := func(change func(*Tool)) *Tool {
		tool := &Tool{Name: "refund", Effects: EffectsExternal, Rerun: RerunHold, Invoke: invoke}
		change(tool)
		return tool
	}
	for name, change := range map[string]func(*Tool){
		"external, hold":   func(*Tool) {},
		"external, rerun":  func(t *Tool) { t.Rerun = RerunYes },
		"external, verify": func(t *Tool) { t.Rerun, t.Verify, t.Settle = RerunVerify, verify, time.Minute },
		"local":            func(t *Tool) { t.Effects, t.Rerun = EffectsLocal, RerunYes },
		"none":             func(t *Tool) { t.Effects, t.Rerun = EffectsNone, RerunYes },
		"local, instant":   func(t *Tool) { t.Effects, t.Rerun, t.Instant = EffectsLocal, RerunYes, true },
		"a time-out":       func(t *Tool) { t.Timeout = time.Nanosecond },
		"shortest name":    func(t *Tool) { t.Name = "a" },
		"longest name":     func(t *Tool) { t.Name = "z" + strings.Repeat("9", 62) + "_" },
	} {
		if err := good(change).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		change func(*Tool)
		says   string
	}{
		"no name":            {func(t *Tool) { t.Name = "" }, "name"},
		"name too long":      {func(t *Tool) { t.Name = strings.Repeat("a", 65) }, "name"},
		"capital":            {func(t *Tool) { t.Name = "Refund" }, "name"},
		"capital inside":     {func(t *Tool) { t.Name = "reFund" }, "name"},
		"begins with digit":  {func(t *Tool) { t.Name = "1a" }, "name"},
		"begins with _":      {func(t *Tool) { t.Name = "_a" }, "name"},
		"dash":               {func(t *Tool) { t.Name = "re-fund" }, "name"},
		"not ASCII":          {func(t *Tool) { t.Name = "refünd" }, "name"},
		"line end":           {func(t *Tool) { t.Name = "refund\n" }, "name"},
		"nothing to invoke":  {func(t *Tool) { t.Invoke = nil }, "invoke"},
		"no effects":         {func(t *Tool) { t.Effects = "" }, "effects"},
		"unknown effects":    {func(t *Tool) { t.Effects = "remote" }, "effects"},
		"external, silent":   {func(t *Tool) { t.Rerun = "" }, "rerun"}, // R13: a promise is made, never guessed
		"external, unknown":  {func(t *Tool) { t.Rerun = "maybe" }, "rerun"},
		"local, hold":        {func(t *Tool) { t.Effects = EffectsLocal }, "rerun"},
		"none, verify":       {func(t *Tool) { t.Effects, t.Rerun, t.Verify = EffectsNone, RerunVerify, verify }, "rerun"},
		"external, instant":  {func(t *Tool) { t.Instant = true }, "instant"},
		"none, instant":      {func(t *Tool) { t.Effects, t.Rerun, t.Instant = EffectsNone, RerunYes, true }, "instant"},
		"verify without how": {func(t *Tool) { t.Rerun = RerunVerify }, "verify"},
		"how without verify": {func(t *Tool) { t.Verify = verify }, "verify"},
		"negative time-out":  {func(t *Tool) { t.Timeout = -1 }, "duration"},
		"negative at once":   {func(t *Tool) { t.Concurrency = -1 }, "concurrency"},
		"negative attempts":  {func(t *Tool) { t.MaxAttempts = -1 }, "attempts"},
		"one crash":          {func(t *Tool) { t.MaxCrashes = 1 }, "crashes"},
		"no record outside":  {func(t *Tool) { t.Unrecorded = true }, "record"},
		"bad rules":          {func(t *Tool) { t.Rules = &Rules{Trim: []string{"no pointer"}} }, "pointer"},
		"negative settle":    {func(t *Tool) { t.Rerun, t.Verify, t.Settle = RerunVerify, verify, -1 }, "duration"},
	} {
		err := good(c.change).Validate()
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want a word about %s", name, err, c.says)
		}
	}
}

// R13: of two promises the stricter counts, and an unknown one is the strictest.
func TestStricter(t *testing.T) {
	order := []Rerun{RerunYes, RerunVerify, RerunHold}
	for i, a := range order {
		for j, b := range order {
			if got, want := stricter(a, b), order[max(i, j)]; got != want {
				t.Errorf("stricter of %q and %q: %q", a, b, got)
			}
		}
		for _, odd := range []Rerun{"", "a word of a later release"} {
			if stricter(a, odd) == RerunYes || stricter(odd, a) == RerunYes {
				t.Errorf("%q and %q: may rerun", a, odd)
			}
			if a != RerunHold && (stricter(a, odd) != odd || stricter(odd, a) != odd) {
				t.Errorf("%q and %q: not the unknown one", a, odd)
			}
		}
	}
}

func TestFailureIsAnError(t *testing.T) {
	var err error = &Failure{Code: FailureTool, Message: "no such order"}
	if err.Error() != "tool_failed: no such order" {
		t.Errorf("%q", err)
	}
}
