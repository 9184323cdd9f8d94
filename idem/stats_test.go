package idem

import (
	"strings"
	"testing"
)

func TestTotalsOf(t *testing.T) {
	var totals Totals
	for i := range totals.Status {
		totals.Status[i] = int64(i + 1)
	}
	for i, s := range Statuses {
		if got := totals.Of(s); got != int64(i+1) {
			t.Errorf("%s: %d", s, got)
		}
	}
	if totals.Of("") != 0 || totals.Of("done") != 0 {
		t.Error("an unknown status has a count")
	}
}

func TestTotalsAdd(t *testing.T) {
	a := Totals{Calls: 1, Effects: 2, Status: [len(Statuses)]int64{3, 4, 5, 6, 7}, Attempts: [AttemptBuckets]int64{8, 9, 10}}
	b := Totals{Calls: -1, Effects: 20, Status: [len(Statuses)]int64{30, -4, 50, 60, 70}, Attempts: [AttemptBuckets]int64{80, 90, 100, 10: 1}}
	a.Add(b)
	want := Totals{Calls: 0, Effects: 22, Status: [len(Statuses)]int64{33, 0, 55, 66, 77}, Attempts: [AttemptBuckets]int64{88, 99, 110, 10: 1}}
	if a != want {
		t.Errorf("\n got %+v\nwant %+v", a, want)
	}
}

// Attempts are counted of calls with an end, in eleven buckets; soundChange holds
// every transition of the tables to a recount.
func TestTotalsAttempts(t *testing.T) {
	for attempt, bucket := range map[int]int{0: 0, 1: 1, 9: 9, 10: 10, 11: 10, 1 << 30: 10} {
		for _, s := range Statuses {
			got := Change{Write: true, After: &Call{Status: s, Attempt: attempt}}.Totals()
			want := Totals{Calls: 1}
			for i := range Statuses {
				if Statuses[i] == s {
					want.Status[i] = 1
				}
			}
			if s.Ended() {
				want.Attempts[bucket] = 1
			}
			if got != want {
				t.Errorf("%s after %d attempts: %+v", s, attempt, got)
			}
		}
	}
}

// A change that is not committed counts nothing, whatever is in it.
func TestTotalsOfNoChange(t *testing.T) {
	ch := Change{After: &Call{Status: StatusSucceeded}, Effect: &Effect{}}
	if got := ch.Totals(); got != (Totals{}) {
		t.Errorf("%+v", got)
	}
}

func TestAttemptBucket(t *testing.T) {
	var names []string
	for i := range AttemptBuckets {
		names = append(names, AttemptBucket(i))
	}
	if got := strings.Join(names, " "); got != "0 1 2 3 4 5 6 7 8 9 10+" {
		t.Error(got)
	}
}
