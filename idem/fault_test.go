package idem

import (
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	for s, want := range map[string]Fault{
		"after_create=exit":        {Point: PointAfterCreate, Action: ActionExit},
		"after_claim=panic":        {Point: PointAfterClaim, Action: ActionPanic},
		"after_dispatch=drop":      {Point: PointAfterDispatch, Action: ActionDrop},
		"before_commit=error":      {Point: PointBeforeCommit, Action: ActionError},
		"after_commit=sleep:250ms": {Point: PointAfterCommit, Action: ActionSleep, Sleep: 250 * time.Millisecond},
		"before_reply=sleep:0":     {Point: PointBeforeReply, Action: ActionSleep},
		"before_reply=sleep:1m":    {Point: PointBeforeReply, Action: ActionSleep, Sleep: time.Minute},
	} {
		if got, err := ParseFault(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, p := range Points {
		if _, err := ParseFault(string(p) + "=exit"); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	for s, says := range map[string]string{
		"": "POINT=ACTION", "exit": "POINT=ACTION", "after_commit": "POINT=ACTION", "after_commit:exit": "POINT=ACTION",
		"=exit": "unknown point", "nowhere=exit": "unknown point", " after_commit=exit": "unknown point", "After_commit=exit": "unknown point",
		"after_commit=": "unknown action", "after_commit=kill": "unknown action", "after_commit=exit ": "unknown action",
		"after_commit=exit=1": "unknown action", "after_commit=sleep": "unknown action", "after_commit=sleep=1s": "unknown action",
		"after_commit=sleep:": "duration", "after_commit=sleep:1": "duration", "after_commit=sleep:-1s": "duration",
		"after_commit=sleep:1m1ns": "duration", "after_commit=sleep:9999999h": "duration",
	} {
		if got, err := ParseFault(s); err == nil || !strings.Contains(err.Error(), says) || got != (Fault{}) {
			t.Errorf("%q: %+v, %v, want a word about %s", s, got, err, says)
		}
	}
	// What was sent is not echoed at length.
	if _, err := ParseFault(strings.Repeat("x", 1<<20) + "=exit"); err == nil || len(err.Error()) > 300 {
		t.Errorf("%v", err)
	}
}
