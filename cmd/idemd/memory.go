package main

import (
	"os"
	"runtime/debug"
)

// How serve collects garbage, unless GOGC and GOMEMLIMIT say something else.
//
// Most of what lives is the store's: its cache (128 MiB) and what is not written
// as tables yet (32 to 128 MiB). What a request leaves is small and soon gone, so
// that collecting at twice the living heap, which is Go's default, spends a tenth
// of the machine on marking the same cache again and again. Collecting late costs
// memory only, and the limit says how much: from there on the collector runs as
// often as it must. Too low a limit spends the machine on it; the limit is soft,
// and never refuses memory.
const (
	gcPercent   = 400
	memoryLimit = 640 << 20
)

func tuneCollector() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(memoryLimit)
	}
}
