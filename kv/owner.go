package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
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

// resolve gives a directory its one name. The engine's lock goes by name within
// a process, so a symbolic link would open a directory twice, and closing the
// second would give the lock away to other processes.
func resolve(fsys vfs.FS, dir string) (string, error) {
	if vfs.Root(fsys) != vfs.Default {
		return dir, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// place is a directory on a file system.
type place struct {
	fs  vfs.FS
	dir string
}

// openPlaces is the directories that this process has open.
var openPlaces = struct {
	sync.Mutex
	dirs map[place]bool
}{dirs: make(map[place]bool)}

// reserve takes a directory for this process, until release is called.
func reserve(fsys vfs.FS, dir string) (release func(), err error) {
	p := place{vfs.Root(fsys), dir}
	if !reflect.TypeOf(p.fs).Comparable() {
		return func() {}, nil // no identity: the lock file alone decides
	}
	openPlaces.Lock()
	defer openPlaces.Unlock()
	if openPlaces.dirs[p] {
		return nil, ErrInUse
	}
	openPlaces.dirs[p] = true
	return func() {
		openPlaces.Lock()
		defer openPlaces.Unlock()
		delete(openPlaces.dirs, p)
	}, nil
}

// takeLockFile takes the lock file in a directory.
func takeLockFile(fsys vfs.FS, dir string) (*pebble.Lock, error) {
	l, err := pebble.LockDirectory(dir, fsys)
	if err == nil {
		return l, nil
	}
	// A record lock that somebody has is EAGAIN or, on some systems, EACCES;
	// the latter without a path, since it is not about opening a file.
	var path *fs.PathError
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) && !errors.As(err, &path) {
		return nil, ErrInUse
	}
	return nil, fmt.Errorf("kv: the data directory cannot be locked: %w", err)
}

// lockDirectory keeps other processes out until Close.
func (s *Store) lockDirectory() error {
	h, err := holdDir(s.opts.FS, s.dir)
	if err != nil {
		return err
	}
	s.holding = h
	s.onClose(h.release)
	l, err := takeLockFile(s.opts.FS, s.dir)
	if err != nil {
		return err
	}
	s.dirLock = l
	s.onClose(l.Close)
	return nil
}
