//go:build !linux

package bench

import "runtime"

func cpuModel() string         { return unknown }
func memory() int64            { return 0 }
func kernel() string           { return runtime.GOOS }
func loadAverage() float64     { return -1 }
func fileSystem(string) string { return unknown }
func processCPU(int) float64   { return -1 }
