package kv

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

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
