package kv

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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
