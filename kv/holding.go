package kv

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// holding is the data directory itself, held open and locked, beside the lock
// file in it. The lock file is only as good as its name: somebody may remove it
// as stale, or put a copy of the whole directory in its place, and the next
// process would lock another file and write to the same store, or this one would
// delete files out of the copy.
//
// Nil, on a file system in memory, holds nothing.
type holding struct {
	dir string
	f   *os.File
	was os.FileInfo
}

// holdDir takes the directory.
func holdDir(fsys vfs.FS, dir string) (*holding, error) {
	if vfs.Root(fsys) != vfs.Default {
		return nil, nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("kv: the data directory cannot be opened: %w", err)
	}
	h := &holding{dir: dir, f: f}
	if h.was, err = f.Stat(); err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	switch {
	case err == nil, errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOLCK):
		// A file system without such locks leaves it to the lock file.
		return h, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = ErrInUse
	default:
		err = fmt.Errorf("kv: the data directory cannot be locked: %w", err)
	}
	return nil, errors.Join(err, f.Close())
}

// moved reports whether the directory's name leads to something else by now.
func (h *holding) moved() bool {
	if h == nil {
		return false
	}
	is, err := os.Stat(h.dir)
	return err == nil && !os.SameFile(h.was, is)
}

func (h *holding) release() error {
	if h == nil {
		return nil
	}
	return h.f.Close() // and with it the lock
}
