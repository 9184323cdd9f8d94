package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// field is the value of the first line "name : value" of a file.
func field(file, name string) string {
	doc, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(doc)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func cpuModel() string {
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		return model
	}
	return unknown
}

func memory() int64 {
	kilobytes, _, _ := strings.Cut(field("/proc/meminfo", "MemTotal"), " ")
	n, err := strconv.ParseInt(kilobytes, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

func kernel() string {
	doc, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return unknown
	}
	return "Linux " + strings.TrimSpace(string(doc))
}

func loadAverage() float64 {
	doc, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(doc), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return load
}

// fileSystems are the names of statfs(2)'s magic numbers.
var fileSystems = map[int64]string{
	0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x794C7630: "overlayfs",
	0x2FC12FC1: "zfs", 0x6969: "nfs", 0xF2F52010: "f2fs", 0x65735546: "fuse", 0x01021997: "9p", 0xCA451A4E: "bcachefs",
}

func fileSystem(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return unknown
	}
	magic := int64(uint32(st.Type)) // its type is another one on other machines
	if name, ok := fileSystems[magic]; ok {
		return name
	}
	return fmt.Sprintf("%#x", magic)
}

// ticksPerSecond is the unit of CPU times in /proc, which is the same on every Linux.
const ticksPerSecond = 100

func processCPU(pid int) float64 {
	doc, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return -1
	}
	// The second field is a name that may hold anything; what is after its last
	// bracket does not. utime and stime are the fields 14 and 15.
	fields := strings.Fields(string(doc[strings.LastIndexByte(string(doc), ')')+1:]))
	if len(fields) < 13 {
		return -1
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		return -1
	}
	return float64(user+system) / ticksPerSecond
}
