package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// formatVersion is the engine's disk format, set on purpose: an upgrade of the
// engine must never raise it by itself, since there is no way back.
const formatVersion = pebble.FormatTableFormatV6

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
