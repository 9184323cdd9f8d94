//go:build race

package kv

// raced says that the engine checks itself, a hundred times slower.
const raced = true
