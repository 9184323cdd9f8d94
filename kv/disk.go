package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// formatVersion is the engine's disk format, set on purpose: an upgrade of the
// engine must never raise it by itself, since there is no way back.
const formatVersion = pebble.FormatTableFormatV6

const ballastName = "BALLAST"

// manifestFS syncs the directory right after a MANIFEST was made in it. The
// engine syncs the marker that points to the file without being sure that the
// file's own entry is on disk; a crash in between leaves a store that cannot be
// opened.
type manifestFS struct{ vfs.FS }

func (f manifestFS) Unwrap() vfs.FS { return f.FS }

func (f manifestFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if err != nil || !strings.HasPrefix(f.PathBase(name), "MANIFEST-") {
		return file, err
	}
	if err := syncDir(f.FS, f.PathDir(name)); err != nil {
		_ = file.Close() // the first error is the one that counts
		return nil, err
	}
	return file, nil
}

// fuseFS ends the process where an operation fails after which the engine would
// not know any more what is durable: everything about a log, and every sync of
// the directory. The engine would end it too, but not well: it panics, in
// goroutines of its own, and between two logs with its locks in such disorder
// that the runtime stops over it, which nobody can recover.
type fuseFS struct {
	vfs.FS
	blow func(op, name string, err error) // never returns
}

func (f fuseFS) Unwrap() vfs.FS { return f.FS }

func (f fuseFS) check(op, name string, err error) error {
	if err != nil {
		f.blow(op, f.PathBase(name), err)
	}
	return err
}

func (f fuseFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if !isLog(name) {
		return file, err
	}
	return f.guard(name, file, f.check("create", name, err))
}

func (f fuseFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, c)
	if !isLog(to) {
		return file, err
	}
	return f.guard(to, file, f.check("reuse", to, err))
}

// OpenDir opens a directory, on which all that is done is a sync.
func (f fuseFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.guard(name, file, err)
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

func (f fuseFS) guard(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &fuseFile{file, f, name}, nil
}

type fuseFile struct {
	vfs.File
	fs   fuseFS
	name string
}

func (f *fuseFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.fs.check("write", f.name, err)
}

func (f *fuseFile) Sync() error { return f.fs.check("sync", f.name, f.File.Sync()) }

func (f *fuseFile) SyncData() error { return f.fs.check("sync", f.name, f.File.SyncData()) }

func (f *fuseFile) SyncTo(n int64) (bool, error) {
	full, err := f.File.SyncTo(n)
	return full, f.fs.check("sync", f.name, err)
}

func (f *fuseFile) Close() error { return f.fs.check("close", f.name, f.File.Close()) }

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// makeDir makes a directory with its parents, durably, for its owner alone: args
// and results are nobody else's business. The engine syncs the
// nearest parent at every Open, but only that one.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string
	for d := dir; fsys.PathDir(d) != d; d = fsys.PathDir(d) {
		_, err := fsys.Stat(d)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, d)
	}
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range made {
		if err := syncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
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

// open is the directories that this process has open.
var open = struct {
	sync.Mutex
	places map[place]bool
}{places: make(map[place]bool)}

// reserve takes a directory for this process, until release is called.
func reserve(fsys vfs.FS, dir string) (release func(), err error) {
	p := place{vfs.Root(fsys), dir}
	if !reflect.TypeOf(p.fs).Comparable() {
		return func() {}, nil // no identity: the lock file alone decides
	}
	open.Lock()
	defer open.Unlock()
	if open.places[p] {
		return nil, ErrInUse
	}
	open.places[p] = true
	return func() {
		open.Lock()
		defer open.Unlock()
		delete(open.places, p)
	}, nil
}

// lockDir takes the lock file.
func lockDir(fsys vfs.FS, dir string) (*pebble.Lock, error) {
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

// checkFormat refuses a directory whose engine format is newer than ours, from
// the names of its files.
func checkFormat(files []string) error {
	for _, name := range files {
		rest, ok := strings.CutPrefix(name, "marker.format-version.")
		if !ok {
			continue
		}
		_, version, _ := strings.Cut(rest, ".")
		if n, err := strconv.ParseUint(version, 10, 64); err == nil && n > uint64(formatVersion) {
			return fmt.Errorf("%w: engine format %d, this release knows %d", ErrNewerFormat, n, uint64(formatVersion))
		}
	}
	return nil
}

// checkWritable refuses a directory that nothing can be made in. Later that would
// look like a disk that fails, which a new start is meant to mend.
func checkWritable(fsys vfs.FS, dir string) error {
	const name = "PROBE"
	f, err := fsys.Create(fsys.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Close(), fsys.Remove(fsys.PathJoin(dir, name)))
	}
	if err != nil {
		return fmt.Errorf("kv: nothing can be written to the data directory: %w", err)
	}
	return nil
}

// checkSpace refuses to open where the engine would find the disk full: it
// would spin in Open until there is space. Replaying writes the logs once more
// as tables.
func checkSpace(fsys vfs.FS, dir string, files []string, margin int64) error {
	if margin < 0 {
		return nil
	}
	usage, err := fsys.GetDiskUsage(dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kv: free disk space cannot be found out: %w", err)
	}
	need := uint64(margin)
	for _, name := range files {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if err != nil {
			return fmt.Errorf("kv: a log cannot be looked at: %w", err)
		}
		need += 2 * uint64(info.Size())
	}
	if usage.AvailBytes < need {
		return fmt.Errorf("kv: too little free disk space to open: %d MiB are free, %d MiB are needed", usage.AvailBytes>>20, (need+1<<20-1)>>20)
	}
	return nil
}

// makeBallast puts the ballast file in place, where it is missing. Blocks are
// reserved rather than written where the file system can do that.
func makeBallast(fsys vfs.FS, dir string, size int64) error {
	if size < 0 {
		return nil
	}
	name := fsys.PathJoin(dir, ballastName)
	if _, err := fsys.Stat(name); err == nil {
		return nil
	}
	file, err := fsys.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("kv: the ballast file cannot be made: %w", err)
	}
	err = file.Preallocate(0, size)
	if err != nil && !vfs.IsNoSpaceError(err) {
		err = writeZeros(file, size)
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		_ = fsys.Remove(name) // half a ballast is none
		return fmt.Errorf("kv: the ballast file cannot be made: %w", err)
	}
	return nil
}

func writeZeros(file vfs.File, size int64) error {
	for size > 0 {
		n, err := file.Write(make([]byte, min(size, 1<<20)))
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}
