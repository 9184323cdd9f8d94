package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// unknown stands where the machine does not say.
const unknown = "unknown"

// environment is what the machine says of itself.
func environment(dir string) Env {
	return Env{
		CPU: cpuModel(), Cores: runtime.GOMAXPROCS(0), Memory: memory(), Kernel: kernel(), Go: runtime.Version(),
		FileSystem: fileSystem(dir), LoadBefore: loadAverage(),
	}
}

const (
	fsyncs    = 200
	fsyncSize = 4 << 10
)

// fsyncMeter measures how long a write and fsync takes.
type fsyncMeter struct {
	hist     *hdrhistogram.Histogram
	sum, max time.Duration
}

// measure writes and syncs at the end of a new file in the directory, as the log
// of a store does, and removes the file.
func (f *fsyncMeter) measure(dir string) (err error) {
	file, err := os.CreateTemp(dir, "fsync-*")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() {
		_ = file.Close() // nothing in it is needed
		if rmErr := os.Remove(file.Name()); err == nil && rmErr != nil {
			err = fmt.Errorf("bench: %w", rmErr)
		}
	}()
	block := make([]byte, fsyncSize)
	for range fsyncs {
		began := time.Now()
		if _, err := file.Write(block); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := file.Sync(); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		took := time.Since(began)
		if err := f.hist.RecordValue(microseconds(took)); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		f.sum, f.max = f.sum+took, max(f.max, took)
	}
	return nil
}

func (f *fsyncMeter) quantiles() Quantiles { return quantiles(f.hist, f.sum, f.max) }

// ownCPU is how many seconds of CPU this process has used so far.
func ownCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return -1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// used is the CPU between two readings, or -1 where one of them is not known.
func used(before, after float64) float64 {
	if before < 0 || after < 0 {
		return -1
	}
	return after - before
}

// existing is the nearest directory above a path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		up := filepath.Dir(path)
		if up == path {
			return path
		}
		path = up
	}
}
