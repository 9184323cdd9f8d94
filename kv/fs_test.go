package kv

import (
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fsOp is one operation on a file system, by the name of its method. The file
// is without its directory.
type fsOp struct {
	name string
	file string
	size int // of a Write
}

func (o fsOp) log() bool   { return strings.HasSuffix(o.file, ".log") }
func (o fsOp) table() bool { return strings.HasSuffix(o.file, ".sst") }
func (o fsOp) sync() bool  { return o.name == "Sync" || o.name == "SyncData" || o.name == "SyncTo" }
func (o fsOp) read() bool  { return o.name == "Open" || o.name == "Read" || o.name == "ReadAt" }

// hookFS asks before every operation on a file: the hook may wait, count, fail
// the operation, or take an image of the disk. It covers recycled logs too.
type hookFS struct {
	vfs.FS

	mu   sync.Mutex
	hook func(fsOp) error

	// cloning keeps images apart from the operations that lock the in-memory
	// file system twice, which an image in between would block for ever.
	cloning sync.RWMutex
}

func newHookFS(inner vfs.FS) *hookFS { return &hookFS{FS: inner} }

// set changes the hook; nil lets everything pass.
func (f *hookFS) set(hook func(fsOp) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *hookFS) ask(name, file string) error { return f.askSize(name, file, 0) }

func (f *hookFS) askSize(name, file string, size int) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(fsOp{name, f.PathBase(file), size})
}

// image is the disk as a crash might leave it now.
func (f *hookFS) image(cfg vfs.CrashCloneCfg) *vfs.MemFS {
	f.cloning.Lock()
	defer f.cloning.Unlock()
	return f.FS.(*vfs.MemFS).CrashClone(cfg)
}

func (f *hookFS) Unwrap() vfs.FS { return f.FS }

func (f *hookFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &hookFile{File: file, fs: f, name: name}, nil
}

func (f *hookFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.ask("Create", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

func (f *hookFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.ask("ReuseForWrite", to); err != nil {
		return nil, err
	}
	f.cloning.RLock()
	defer f.cloning.RUnlock()
	file, err := f.FS.ReuseForWrite(from, to, c)
	return f.wrap(to, file, err)
}

func (f *hookFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := f.ask("OpenReadWrite", name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.wrap(name, file, err)
}

func (f *hookFS) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	if err := f.ask("Open", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Open(name, o...)
	return f.wrap(name, file, err)
}

func (f *hookFS) MkdirAll(name string, perm os.FileMode) error {
	if err := f.ask("MkdirAll", name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

func (f *hookFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(name, file, err)
}

func (f *hookFS) Link(from, to string) error {
	if err := f.ask("Link", to); err != nil {
		return err
	}
	f.cloning.RLock()
	defer f.cloning.RUnlock()
	return f.FS.Link(from, to)
}

func (f *hookFS) Lock(name string) (io.Closer, error) {
	if err := f.ask("Lock", name); err != nil {
		return nil, err
	}
	f.cloning.RLock()
	defer f.cloning.RUnlock()
	return f.FS.Lock(name)
}

func (f *hookFS) Remove(name string) error {
	if err := f.ask("Remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *hookFS) Rename(from, to string) error {
	if err := f.ask("Rename", to); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

type hookFile struct {
	vfs.File
	fs   *hookFS
	name string
}

func (f *hookFile) Write(p []byte) (int, error) {
	if err := f.fs.askSize("Write", f.name, len(p)); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *hookFile) Read(p []byte) (int, error) {
	if err := f.fs.ask("Read", f.name); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *hookFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.ask("ReadAt", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *hookFile) Sync() error {
	if err := f.fs.ask("Sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *hookFile) SyncData() error {
	if err := f.fs.ask("SyncData", f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *hookFile) SyncTo(n int64) (bool, error) {
	if err := f.fs.ask("SyncTo", f.name); err != nil {
		return false, err
	}
	return f.File.SyncTo(n)
}

// gate stops operations until it is opened.
type gate struct {
	reached chan struct{} // closed when the first operation waits
	opened  chan struct{}
	first   sync.Once
	last    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), opened: make(chan struct{})} }

func (g *gate) wait() {
	g.first.Do(func() { close(g.reached) })
	<-g.opened
}

func (g *gate) open() { g.last.Do(func() { close(g.opened) }) }

// gateLogSync makes every sync of a log wait at the gate.
func (f *hookFS) gateLogSync(g *gate) {
	f.set(func(o fsOp) error {
		if o.log() && o.sync() {
			g.wait()
		}
		return nil
	})
}
