package runner_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
	"github.com/idemd/idemd/runner"
)

func TestSettingsValidate(t *testing.T) {
	const day = 24 * time.Hour
	tests := []struct {
		name string
		set  func(*runner.Settings)
		want string // in the error; empty: valid
	}{
		{"defaults", func(*runner.Settings) {}, ""},
		{"smallest", func(s *runner.Settings) {
			*s = runner.Settings{
				Workers: 1, Queue: 1, Lease: 100 * time.Millisecond, ToolTimeout: time.Millisecond, Grace: time.Millisecond,
				MaxAbandoned: 1, Window: time.Millisecond, MaxCrashes: 2,
			}
		}, ""},
		{"largest", func(s *runner.Settings) {
			*s = runner.Settings{
				Workers: 10_000, Queue: 10_000_000, Lease: day, ToolTimeout: day, Grace: day,
				MaxAbandoned: 100_000, Window: 100 * 365 * day, MaxCrashes: 100,
			}
		}, ""},
		{"workers, negative", func(s *runner.Settings) { s.Workers = -1 }, "workers is -1"},
		{"workers, too many", func(s *runner.Settings) { s.Workers = 10_001 }, "workers is 10001"},
		{"queue, negative", func(s *runner.Settings) { s.Queue = -1 }, "queue is -1"},
		{"queue, too long", func(s *runner.Settings) { s.Queue = 10_000_001 }, "queue is 10000001"},
		{"lease, too short", func(s *runner.Settings) { s.Lease = 99 * time.Millisecond }, "lease is 99ms"},
		{"lease, too long", func(s *runner.Settings) { s.Lease = day + 1 }, "lease is 24h0m0.000000001s"},
		{"tool time-out, too short", func(s *runner.Settings) { s.ToolTimeout = time.Microsecond }, "tool-timeout is 1µs"},
		{"tool time-out, too long", func(s *runner.Settings) { s.ToolTimeout = 2 * day }, "tool-timeout is 48h"},
		{"grace, negative", func(s *runner.Settings) { s.Grace = -time.Second }, "grace is -1s"},
		{"abandoned, negative", func(s *runner.Settings) { s.MaxAbandoned = -1 }, "max-abandoned is -1"},
		{"window, too short", func(s *runner.Settings) { s.Window = 1 }, "window is 1ns"},
		{"window, too long", func(s *runner.Settings) { s.Window = 100*365*day + 1 }, "window is"},
		{"crashes, every death would stop the neighbours", func(s *runner.Settings) { s.MaxCrashes = 1 }, "max-crashes is 1"},
		{"crashes, too many", func(s *runner.Settings) { s.MaxCrashes = 101 }, "max-crashes is 101"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s runner.Settings
			tt.set(&s)
			err := s.Validate()
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v, want %q and nothing else", err, tt.want)
			}
		})
	}
}

// Everything that is wrong is reported at once.
func TestValidateReportsAll(t *testing.T) {
	s := runner.Settings{
		Workers: -1, Queue: -1, Lease: -1, ToolTimeout: -1, Grace: -1, MaxAbandoned: -1, Window: -1, MaxCrashes: -1,
	}
	bad := &idem.Tool{Name: "Bad"}
	twice := newActor("twice", idem.EffectsNone, idem.RerunYes).Tool
	_, err := runner.New(storetest.NewModel(storetest.ModelOptions{}), runner.Options{Settings: s, Tools: []*idem.Tool{bad, twice, twice}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"workers", "queue", "lease", "tool-timeout", "grace", "max-abandoned", "window", "max-crashes",
		`tool "Bad"`, "twice is declared twice",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

// What a runner tells of itself.
func TestRunnerTells(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var names []string
		for _, tool := range w.r.Tools() {
			names = append(names, tool.Name)
		}
		equal(t, "tools", strings.Join(names, " "), "hold local none rerun verify")
		equal(t, "window", w.r.Window(), 2*time.Hour)
		if err := w.r.Ready(); err != nil {
			t.Error(err)
		}
		s, err := w.r.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "since", s.Since.Equal(time.Now()), true)
		equal(t, "tools in the stats", len(s.ByTool), 5)
	}, window(2*time.Hour))
}

// Each delivery is counted once more when it is answered, in all and by tool.
func TestCounts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		local, hold := intent{"local", w.local, ""}, intent{"hold", w.hold, ""}
		w.hold.does(then(fails(true), takes(time.Second), lost))
		w.answer(local, long)
		w.answer(local, long)
		w.answer(local, 0)
		w.answer(hold, long)
		w.later(hold, long) // requeued
		time.Sleep(time.Millisecond)
		w.answer(hold, 0)
		w.refuse(intent{"hold", w.local, ""}, 0, idem.CodeConflict) // counted for the tool that was asked for
		w.refuse(intent{"bad", w.hold, badArgs}, 0, idem.CodeInvalidArguments)
		w.refuse(intent{"unknown", newActor("unknown", idem.EffectsNone, idem.RerunYes), ""}, 0, idem.CodeBadRequest)
		w.r.Delivered() // refused before it came to Submit
		w.r.Refused("local")
		w.r.Delivered()
		w.r.Refused("any text whatever")
		time.Sleep(2 * time.Second)
		w.answer(intent{"lost", w.hold, ""}, 0)
		synctest.Wait()
		w.refuse(intent{"lost", w.hold, ""}, 0, idem.CodeOutcomeUnknown)

		s, err := w.r.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "all", s.Counts, idem.Counts{Deliveries: 13, Created: 3, Replayed: 2, Joined: 1, Requeued: 1, Conflicts: 1, Refused: 5})
		equal(t, "local", s.ByTool["local"], idem.Counts{Deliveries: 5, Created: 1, Replayed: 2, Conflicts: 1, Refused: 1})
		equal(t, "hold", s.ByTool["hold"], idem.Counts{Deliveries: 6, Created: 2, Joined: 1, Requeued: 1, Refused: 2})
		equal(t, "tools", len(s.ByTool), 5)
		equal(t, "attempts of calls with an end", s.Totals.Attempts[1], 1)
		equal(t, "attempts of calls with an end", s.Totals.Attempts[2], 1)
	})
}
