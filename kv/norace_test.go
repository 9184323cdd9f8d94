//go:build !race

package kv

const raced = false
