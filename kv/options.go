package kv

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options say where a store is and what it may use. Zero values take defaults.
type Options struct {
	// Dir is the data directory; it is made where it is missing. One process
	// at a time owns it.
	Dir string

	// FS is what the directory is on; nil is the operating system's.
	FS vfs.FS

	// Logger; nil is slog.Default.
	Logger *slog.Logger

	// Exit ends the process when the store can no longer be trusted; nil is
	// os.Exit. It must not return, and must not run deferred functions: locks
	// would be released that keep unsynced writes from being shown.
	Exit func(code int)

	// MemTable is how many bytes are kept in memory before they are written as
	// a table: default 32 MiB. Too low rotates the log, which all commits wait
	// for, too often; too high makes the next start replay more (up to four of
	// them) and reserves about eleven times as much disk for logs.
	MemTable int64

	// Cache is bytes for blocks and filters: default 128 MiB. Too low reads
	// filters, about 1.25 bytes per key ever used, from disk for every new key;
	// too high takes memory from everything else.
	Cache int64

	// OpenFiles is about how many files the engine keeps open: default 1000. Too
	// low opens tables again and again; too high takes the file handles of
	// connections, and a store that gets none for its next log ends the process.
	OpenFiles int

	// Ballast is bytes in a file that is given up when the disk is full, so
	// that what runs can end: default 64 MiB, negative for none. Too low buys
	// no time; too high is disk that nothing uses.
	Ballast int64

	// MinFree is how many bytes of disk must be free for the store to open and
	// to be ready: default 256 MiB, negative for no check. Too low finds the
	// disk full in the middle of a commit; too high refuses work that would
	// have fitted.
	MinFree int64

	// SlowDisk is when a single write or sync is called slow and the store not
	// ready: default 5 s. Too low sends traffic away for every hiccup; too high
	// lets requests pile up behind a dead disk.
	SlowDisk time.Duration

	// SlowGrace is when a single write or sync that has not returned ends the
	// process: default 30 s. It must exceed SlowDisk. Too low kills a store
	// that would have recovered; too high keeps callers waiting for one that
	// will not.
	SlowGrace time.Duration

	// StallGrace is the same for commits that the engine holds back because
	// flushes or compactions do not keep up, or the disk is full: default 30 s.
	StallGrace time.Duration

	tune   func(*pebble.Options) // tests: last word on the engine's options
	misuse func(string)          // tests: what is called for a misuse of the engine
}

// DefaultOpenFiles is the default of Options.OpenFiles.
const DefaultOpenFiles = 1000

const (
	defaultMemTable   = 32 << 20
	defaultCache      = 128 << 20
	defaultBallast    = 64 << 20
	defaultMinFree    = 256 << 20
	defaultSlowDisk   = 5 * time.Second
	defaultSlowGrace  = 30 * time.Second
	defaultStallGrace = 30 * time.Second

	minMemTable = 64 << 10
	maxMemTable = 1 << 30
)

// Validate reports every fault at once.
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("kv: "+format, args...))
		}
	}
	fault(o.Dir == "", "a data directory is needed")
	fault(o.MemTable < minMemTable || o.MemTable > maxMemTable, "MemTable must be %d to %d bytes, not %d", minMemTable, maxMemTable, o.MemTable)
	fault(o.Cache < 0, "Cache must not be negative")
	fault(o.OpenFiles < 0, "OpenFiles must not be negative")
	fault(o.SlowDisk < 0, "SlowDisk must not be negative")
	fault(o.SlowGrace <= o.SlowDisk, "SlowGrace (%v) must exceed SlowDisk (%v)", o.SlowGrace, o.SlowDisk)
	fault(o.StallGrace < 0, "StallGrace must not be negative")
	return errors.Join(faults...)
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	o.MemTable = cmp.Or(o.MemTable, defaultMemTable)
	o.Cache = cmp.Or(o.Cache, defaultCache)
	o.OpenFiles = cmp.Or(o.OpenFiles, DefaultOpenFiles)
	o.Ballast = cmp.Or(o.Ballast, defaultBallast)
	o.MinFree = cmp.Or(o.MinFree, defaultMinFree)
	o.SlowDisk = cmp.Or(o.SlowDisk, defaultSlowDisk)
	o.SlowGrace = cmp.Or(o.SlowGrace, defaultSlowGrace)
	o.StallGrace = cmp.Or(o.StallGrace, defaultStallGrace)
	return o
}
