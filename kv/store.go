package kv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
)

// layoutVersion is the version of what package kv itself puts on disk. A store
// with a higher one is refused.
const layoutVersion = 2

// Errors of Open.
var (
	// ErrInUse means that the directory is open already: in this process or in
	// another, by this name or by another.
	ErrInUse = errors.New("kv: the data directory is in use; one process at a time may have it open")

	// ErrNewerFormat means that a newer release wrote the directory.
	ErrNewerFormat = errors.New("kv: the data directory was written by a newer release")
)

var errClosed = errors.New("kv: the store is closed")

// Store is an [idem.Store] in a directory.
type Store struct {
	opts Options
	dir  string // with its symbolic links resolved
	db   *pebble.DB

	locks      *locks
	live       *live
	namespaces *namespaces
	rules      *savedRules
	counts     mirror
	newest     atomic.Int64 // milliseconds in the newest id

	health health
	watch  watch
	opened atomic.Bool
	closed atomic.Bool
	dead   atomic.Bool

	commits    atomic.Uint64 // how many were asked for; tests hold the fusing of commits to it
	committing atomic.Int64  // commits that wait for a sync
	bootKeys   int           // how many keys Open read; tests hold the start to it

	dirLock  *pebble.Lock
	holding  *holding
	closing  sync.Once
	closeErr error
	releases []func() error // undone at Close, last first
}

var _ idem.Store = (*Store)(nil)

// Open opens the store in a directory, which is made where it is missing. An
// existing store is not written to, apart from what the engine does to recover,
// and from the version of its layout where an older release wrote it: such a
// release cannot open it any more then.
//
// Errors: ErrInUse, ErrNewerFormat; what Validate says. After any other error
// somebody has to look: the files are left as they are.
func Open(o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: o.withDefaults(), locks: newLocks(), live: newLive(), namespaces: newNamespaces(), rules: newSavedRules(),
		health: health{start: time.Now(), failed: make(chan struct{}, 1)},
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.undo())
	}
	s.opened.Store(true)
	return s, nil
}

func (s *Store) open() error {
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.openEngine(); err != nil {
		return err
	}
	found, fresh, err := s.checkSchema()
	if err != nil {
		return err
	}
	if fresh {
		return s.begin()
	}
	if err := s.load(); err != nil {
		return err
	}
	return s.raise(found)
}

// onClose remembers what to undo.
func (s *Store) onClose(undo func() error) { s.releases = append(s.releases, undo) }

// undo gives back what Open took, last first.
func (s *Store) undo() error {
	var errs []error
	for i := len(s.releases) - 1; i >= 0; i-- {
		errs = append(errs, s.releases[i]())
	}
	s.releases = nil
	return errors.Join(errs...)
}

// prepare takes the directory and looks at it before the engine does.
func (s *Store) prepare() error {
	fsys := s.opts.FS
	if err := makeDir(fsys, s.opts.Dir); err != nil {
		return fmt.Errorf("kv: the data directory cannot be made: %w", err)
	}
	dir, err := resolve(fsys, s.opts.Dir)
	if err != nil {
		return fmt.Errorf("kv: the data directory cannot be resolved: %w", err)
	}
	s.dir = dir
	release, err := reserve(fsys, dir)
	if err != nil {
		return err
	}
	s.onClose(func() error { release(); return nil })
	if err := s.lockDirectory(); err != nil {
		return err
	}
	files, err := fsys.List(dir)
	if err != nil {
		return fmt.Errorf("kv: the data directory cannot be listed: %w", err)
	}
	if err := checkFormat(files); err != nil {
		return err
	}
	if err := checkWritable(fsys, dir); err != nil {
		return err
	}
	if err := checkSpace(fsys, dir, files, s.opts.MinFree); err != nil {
		return err
	}
	return makeBallast(fsys, dir, s.opts.Ballast)
}

func (s *Store) openEngine() error {
	// The fuse is above the ballast, which gives a full disk another try.
	var fsys vfs.FS = fuseFS{vfs.OnDiskFull(manifestFS{s.opts.FS}, s.giveUpBallast), s.blow}
	fsys, health := vfs.WithDiskHealthChecks(fsys, s.opts.SlowDisk, nil, s.health.slow)
	s.onClose(health.Close)
	s.startWatch()
	s.onClose(func() error { s.stopWatch(); return nil })

	db, err := pebble.Open(s.dir, s.engineOptions(fsys))
	if err != nil {
		return fmt.Errorf("kv: the store cannot be opened: %w", err)
	}
	s.db = db
	s.onClose(db.Close)
	return nil
}

func (s *Store) engineOptions(fsys vfs.FS) *pebble.Options {
	o := &pebble.Options{
		FS:                          fsys,
		Lock:                        s.dirLock,
		FormatMajorVersion:          formatVersion,
		Merger:                      countMerger,
		MemTableSize:                uint64(s.opts.MemTable),
		MemTableStopWritesThreshold: 4, // at 2 any slow flush holds up every commit
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       24,
		CompactionConcurrencyRange:  compactions,
		LBaseMaxBytes:               64 << 20,
		CacheSize:                   s.opts.Cache,
		MaxOpenFiles:                s.opts.OpenFiles,
		WALMinSyncInterval:          func() time.Duration { return syncInterval(s.committing.Load()) },
		Logger:                      engineLog{s, s.opts.Logger},
		EventListener:               s.listener(),
	}
	o.TargetFileSizes[0] = 8 << 20 // every file is looked at when the store opens
	o.Levels[0] = pebble.LevelOptions{BlockSize: 8 << 10, IndexBlockSize: 64 << 10, FilterPolicy: bloom.FilterPolicy(10)}
	if s.opts.tune != nil {
		s.opts.tune(o)
	}
	return o
}

// compactions is how many may run at once: two, but on few cores they must leave
// some for the requests, which would wait behind them.
func compactions() (least, most int) { return 1, min(2, max(1, runtime.GOMAXPROCS(0)/2)) }

// checkSchema refuses what a newer release wrote, and says whether the store is
// new.
func (s *Store) checkSchema() (found schema, fresh bool, err error) {
	known, err := s.get(keySchema, func(v []byte) (err error) {
		found, err = decodeSchema(v)
		return err
	})
	s.bootKeys++
	if known || err != nil {
		return found, false, err
	}
	it, err := s.db.NewIter(nil)
	if err != nil {
		return found, false, err
	}
	empty := !it.First()
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return found, false, err
	}
	if !empty {
		return found, false, errors.New("kv: the data directory holds something else")
	}
	return found, true, nil
}

// raise gives a store of an older layout the version of this one. It is durable
// before anything is written that the older release would misread.
func (s *Store) raise(found schema) error {
	if found.layout >= layoutVersion {
		return nil
	}
	found.layout = layoutVersion
	return s.writeSchema(found)
}

func (s *Store) writeSchema(sc schema) error {
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }() // only gives its memory back
	if err := b.Set(keySchema, encodeSchema(sc), nil); err != nil {
		return err
	}
	s.commit(b)
	return nil
}

// begin makes a new store. The flush ends the first log, which the engine began
// in an older form in which damage goes unnoticed.
func (s *Store) begin() error {
	if err := s.writeSchema(schema{layoutVersion, time.Now()}); err != nil {
		return err
	}
	return s.flush(nil)
}

// flush writes the memtables as tables. It gives up once failed says so: the
// engine would try for ever.
func (s *Store) flush(failed <-chan struct{}) error {
	defer s.dieOfPanic() // it goes over to the next log
	done, err := s.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-failed:
	}
	return nil
}

// load rebuilds what is kept in memory.
func (s *Store) load() error {
	s.bootKeys++
	_, err := s.get(keyCounter, func(v []byte) (err error) {
		s.counts.totals, err = decodeTotals(v)
		return err
	})
	return errors.Join(err, s.loadNamespaces(), s.loadRules(), s.loadNewest(), s.loadLive())
}

// loadNewest finds the newest id of each namespace.
func (s *Store) loadNewest() error {
	for _, t := range s.namespaces.all() {
		prefix := appendScope(nil, prefixCall, t)
		it, err := s.iter(prefix)
		if err != nil {
			return err
		}
		if it.Last() {
			_, id, _, _ := parseScoped(it.Key())
			s.sawID(id)
			s.bootKeys++
		}
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			return err
		}
	}
	return nil
}

// loadLive finds the calls that an earlier life left without an end.
func (s *Store) loadLive() error {
	names := make(map[nsid]idem.Namespace)
	for ns, t := range s.namespaces.all() {
		names[t] = ns
	}
	return s.scan([]byte{prefixMarker}, func(it *pebble.Iterator) error {
		t, id, _, ok := parseScoped(it.Key())
		ns, known := names[t]
		if !ok || !known {
			return fmt.Errorf("%w: marker row", errCorrupt)
		}
		rec, err := s.readRows(t, ns, id, false)
		s.bootKeys += 2
		switch {
		case err != nil:
			return err
		case !rec.found:
			return fmt.Errorf("%w: a marker without a call", errCorrupt)
		case rec.call.Status.Ended():
			// An end stays an end, whatever a marker says.
			s.opts.Logger.Error("kv: a call with an end has a marker", "call", id.String())
			return nil
		}
		s.live.recover(&rec.call)
		return nil
	})
}

// Close makes everything durable and releases the store. A second call returns
// what the first one did.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.dead.Load() {
			s.closeErr = fmt.Errorf("kv: %w", errDead)
			return
		}
		s.closed.Store(true)
		s.checkPlace()
		// All that was answered is in the logs. What the flush saves is the
		// next start's work, and it is not worth a stop that never ends.
		s.closeErr = errors.Join(s.flush(s.health.nextError()), s.undo())
	})
	return s.closeErr
}

// Update implements [idem.Store].
//
// The lock of the key is held from the look-up until the commit is synced. That
// is what makes everything above true: the engine shows a batch to readers
// before it is durable, and readers go by these locks.
func (s *Store) Update(ctx context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	if err := s.locks.acquire(ctx, key); err != nil {
		return idem.Change{}, err
	}
	defer s.locks.release(key)
	if s.closed.Load() {
		// A write to a closed engine panics, which would pass for a failed one.
		return idem.Change{}, errClosed
	}
	ch, err := s.update(ctx, key, t)
	return ch, s.trusted(ctx, err)
}

// update is Update under the key's lock.
func (s *Store) update(ctx context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	cur, err := s.current(key)
	if err != nil {
		return idem.Change{}, err
	}
	ch, err := t(cur.pointer())
	if err != nil || !ch.Write {
		return ch, err
	}
	if err := cur.check(key, &ch); err != nil {
		return idem.Change{}, err
	}
	if err := s.write(ctx, cur, &ch); err != nil {
		return idem.Change{}, err
	}
	return ch, nil
}

// write commits a change of a record, and then moves what is in memory.
func (s *Store) write(ctx context.Context, cur record, ch *idem.Change) error {
	t, err := s.number(ctx, ch.After.Key.Namespace)
	if err != nil {
		return err
	}
	if ch.Effect != nil && cur.found {
		if err := s.refuseSecondEffect(t, ch.Effect.CallID); err != nil {
			return err
		}
	}
	delta := cur.delta(ch)
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }() // only gives its memory back
	if err := compose(b, t, cur, ch, delta); err != nil {
		return err
	}
	s.commit(b)

	s.counts.add(delta)
	s.sawID(ch.After.ID)
	s.live.apply(ch.After, ch.Lease)
	return nil
}

// refuseSecondEffect looks the effect up: the engine overwrites without a word.
func (s *Store) refuseSecondEffect(t nsid, id idem.CallID) error {
	found, err := s.get(appendEffectKey(nil, t, id), func([]byte) error { return nil })
	if err == nil && found {
		return idem.ErrSecondEffect
	}
	return err
}

// commit makes a batch durable, or ends the process. It is the only place that
// writes. A panic of the engine leaves its commit lock held, so it must not be
// recovered further up, where the store would hang for ever.
func (s *Store) commit(b *pebble.Batch) {
	defer s.dieOfPanic()
	s.commits.Add(1)
	s.committing.Add(1)
	defer s.committing.Add(-1)
	if err := s.db.Apply(b, pebble.Sync); err != nil {
		s.die("a commit failed", err)
	}
}

const (
	fewCommits      = 8 // in which a pause would only be a delay
	pausePerCommit  = 10 * time.Microsecond
	maxSyncInterval = time.Millisecond
)

// syncInterval is how long the log leaves between two syncs while so many commits
// wait for one. Each sync costs the processor the same, however many commits it
// is for. Where many wait, another moment's worth of them is more than what one
// of them loses by it; where few do, each is synced at once.
func syncInterval(committing int64) time.Duration {
	if committing < fewCommits {
		return 0
	}
	return min(time.Duration(committing)*pausePerCommit, maxSyncInterval)
}

// trusted lets an answer out, with its error. Where the process is about to go
// it waits for the context's end instead: nothing is answered after a failure.
func (s *Store) trusted(ctx context.Context, err error) error {
	if !s.dead.Load() {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// Renew implements [idem.Store].
func (s *Store) Renew(ctx context.Context, key idem.Key, lease idem.Lease, d time.Duration) error {
	return s.trusted(ctx, s.live.renew(key, lease, d))
}

// Due implements [idem.Store].
func (s *Store) Due(ctx context.Context, limit int, except ...string) ([]idem.Due, error) {
	return s.live.dueNow(limit, except), s.trusted(ctx, nil)
}

// Held implements [idem.Store].
func (s *Store) Held(ctx context.Context, limit int) ([]idem.Due, error) {
	return s.live.heldNow(limit), s.trusted(ctx, nil)
}

// Totals implements [idem.Store].
func (s *Store) Totals(ctx context.Context) (idem.Totals, error) {
	return s.counts.get(), s.trusted(ctx, nil)
}

// Newest implements [idem.Store].
func (s *Store) Newest(ctx context.Context) (time.Time, error) {
	ms := s.newest.Load()
	if ms == 0 {
		return time.Time{}, s.trusted(ctx, nil)
	}
	return time.UnixMilli(ms).UTC(), s.trusted(ctx, nil)
}

func (s *Store) sawID(id idem.CallID) {
	ms := id.Time().UnixMilli()
	for {
		old := s.newest.Load()
		if ms <= old || s.newest.CompareAndSwap(old, ms) {
			return
		}
	}
}
