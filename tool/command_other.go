//go:build unix && !linux

package tool

import "syscall"

// processAttributes makes a program the leader of a group of its own, which a
// Ctrl-C in idemd's terminal does not reach. Nothing ends it when idemd is killed:
// only Linux can do that.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitEnd says that a child's end cannot be awaited without reaping it.
func awaitEnd(int) bool { return false }
