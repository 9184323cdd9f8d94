package kv

import (
	"os"
	"testing"
	"time"
)

// torturing returns how long a long form may take: IDEMD_TORTURE is a duration,
// or 1 for a minute; zero where it is not set.
func torturing(t testing.TB) time.Duration {
	t.Helper()
	v := os.Getenv("IDEMD_TORTURE")
	switch v {
	case "", "0":
		return 0
	case "1":
		return time.Minute
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("IDEMD_TORTURE: %v", err)
	}
	return d
}
