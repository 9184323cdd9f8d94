package tool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	for _, tc := range []struct {
		seconds, slept string
		want           time.Duration
	}{
		{"0", "0", 0},
		{"-0", "0", 0},
		{"0.25", "0.25", 250 * time.Millisecond},
		{"1.50", "1.5", 1500 * time.Millisecond},
		{"25e-1", "2.5", 2500 * time.Millisecond},
		{"1e1", "10", 10 * time.Second},
		{"10.000", "10", 10 * time.Second},
		{"0.0000000019", "1.9e-9", time.Nanosecond},
		{"1e-1000", "1e-1000", 0},
	} {
		t.Run(tc.seconds, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sleep, args := sample(t, "sleep"), `{"seconds":`+tc.seconds+`}`
				if err := sleep.Check([]byte(args)); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				res, err := sleep.Invoke(t.Context(), invocation(1, args))
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(began); d != tc.want {
					t.Errorf("slept %v, want %v", d, tc.want)
				}
				if want := `{"slept":` + tc.slept + `}`; string(res.Output) != want {
					t.Errorf("got %s, want %s", res.Output, want)
				}
			})
		})
	}
	for _, bad := range []string{"-1", "-1e-1000", "10.0000000001", "1e1000", `"1"`, "null"} {
		wantInvalid(t, sample(t, "sleep").Check([]byte(`{"seconds":`+bad+`}`)))
	}
	wantInvalid(t, sample(t, "sleep").Check([]byte(`{}`)))
}

func TestSleepIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := sample(t, "sleep").Invoke(ctx, invocation(1, `{"seconds":10}`))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}
