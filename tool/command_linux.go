package tool

import "syscall"

// processAttributes makes a program the leader of a group of its own, which a
// Ctrl-C in idemd's terminal does not reach, and has it killed when the thread
// that starts it ends, with idemd at the latest. The child asks whether its parent
// lives once it has made that arrangement (syscall does), so that none slips
// through when idemd dies in between. The arrangement is for the program alone,
// and the kernel drops it for one that is setuid, setgid, or has capabilities.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitEnd returns true when a child has ended, and leaves it to be reaped. False
// means that the system cannot do that.
func awaitEnd(pid int) bool {
	const byPID = 1 // P_PID
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0
		}
	}
}
