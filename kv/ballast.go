package kv

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const ballastName = "BALLAST"

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

// giveUpBallast runs while all writes wait. It uses the file system below the
// one that called it, or it would wait for itself.
func (s *Store) giveUpBallast() {
	s.health.full.note(&s.health)
	if s.opts.Ballast < 0 {
		return
	}
	s.health.noBallast.Store(true)
	if err := s.opts.FS.Remove(s.opts.FS.PathJoin(s.dir, ballastName)); err != nil {
		s.health.background(err)
	}
}
