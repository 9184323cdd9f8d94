package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/idemd/idemd/idem"
)

// Model is the obviously right [idem.Store]: one mutex, maps, full scans. It is
// the oracle that other stores are compared with, and the store that tests of
// the layers above run on.
//
// A Model is a handle on data that several handles can share, see [Model.Open].
// It is stricter than the contract asks where that finds mistakes of callers:
// it runs every transition twice and panics if the two runs differ or if one of
// them touched the record it was given.
type Model struct {
	d    *modelData
	life int
	peek bool // reads for Check; belongs to no life

	closed bool // guarded by d.mu
}

var _ idem.Store = (*Model)(nil)

// ModelOptions say whose the data of a Model are.
type ModelOptions struct {
	// Exclusive data are owned by one handle at a time, as by a process that
	// locks its directory; otherwise many handles share them, as over a network.
	Exclusive bool
}

// ErrGone is returned by a Model that was closed, and by one whose exclusive
// data were opened again: that life of the process is over.
var ErrGone = errors.New("storetest: this handle is gone")

type modelData struct {
	exclusive bool

	mu     sync.Mutex
	life   int
	rows   map[idem.Key]*modelRow
	keys   map[idem.CallID]idem.Key
	rules  map[idem.RulesID][]byte // their texts
	totals idem.Totals             // moved by Change.Totals, so that Check can prove that right
}

type modelRow struct {
	call    *idem.Call
	events  []idem.Event
	effects []idem.Effect // at most one
	until   time.Time     // end of the lease; with a monotonic reading
	left    bool          // by an earlier life, and neither claimed nor ended since
}

// NewModel returns the first handle on new, empty data.
func NewModel(o ModelOptions) *Model {
	return &Model{d: &modelData{
		exclusive: o.Exclusive,
		rows:      make(map[idem.Key]*modelRow),
		keys:      make(map[idem.CallID]idem.Key),
		rules:     make(map[idem.RulesID][]byte),
	}}
}

// Open returns another handle on the same data.
//
// On shared data both handles go on living, each as one process among several.
//
// On exclusive data the new handle is the next life of the process. The life
// before it is over at once, closed or not, as after kill -9: from now on its
// handle changes and tells nothing, every lease given in it is over, and what it
// left is due with Recovered set (R11).
func (m *Model) Open() *Model {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.d.exclusive {
		m.d.life++
		for _, r := range m.d.rows {
			r.until = time.Time{}
			r.left = !r.call.Status.Ended()
		}
	}
	return &Model{d: m.d, life: m.d.life}
}

// enter locks the data for a method, unless the handle must not touch them.
func (m *Model) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.d.mu.Lock()
	if !m.peek && (m.closed || m.life != m.d.life) {
		m.d.mu.Unlock()
		return ErrGone
	}
	return nil
}

// Update implements [idem.Store].
func (m *Model) Update(ctx context.Context, key idem.Key, t idem.Transition) (idem.Change, error) {
	if err := m.enter(ctx); err != nil {
		return idem.Change{}, err
	}
	defer m.d.mu.Unlock() // a transition may panic

	row := m.d.rows[key]
	var cur *idem.Call
	if row != nil {
		cur = row.call
	}
	ch, err := decide(t, cur)
	if err != nil || !ch.Write {
		return ch, err
	}
	if err := m.d.commit(key, row, ch); err != nil {
		return idem.Change{}, err
	}
	return ch, nil
}

// decide runs a transition on copies, twice.
func decide(t idem.Transition, cur *idem.Call) (idem.Change, error) {
	first, firstErr := t(cloneCall(cur))
	given := cloneCall(cur)
	ch, err := t(given)
	if !reflect.DeepEqual(given, cur) {
		panic("storetest: the transition modified the record that it was given")
	}
	if !reflect.DeepEqual(first, ch) || fmt.Sprint(firstErr) != fmt.Sprint(err) {
		panic(fmt.Sprintf("storetest: the transition is not a pure function: %v, %v, then %v, %v", first, firstErr, ch, err))
	}
	return ch, err
}

// commit writes a change, all of it or nothing.
func (d *modelData) commit(key idem.Key, row *modelRow, ch idem.Change) error {
	switch after := ch.After; {
	case after == nil || after.Key != key:
		return fmt.Errorf("storetest: the change is not one of the call of %v", key)
	case row == nil && ch.Before != nil:
		return fmt.Errorf("storetest: the change looked at a call of %v, but there is none", key)
	case row != nil && (ch.Before == nil || row.call.ID != after.ID):
		return idem.ErrSecondCall
	case row == nil:
		if _, taken := d.keys[after.ID]; taken {
			return fmt.Errorf("%w: %v names the call of another key", idem.ErrSecondCall, after.ID)
		}
		row = &modelRow{}
	}
	if s := ch.After.Settle; s < 0 || s%time.Millisecond != 0 {
		return fmt.Errorf("storetest: downstream is at work on %v for %v", key, s)
	}
	if f := ch.After.Failure; f != nil && (f.RetryAfter < 0 || f.RetryAfter > idem.MaxRetryAfter || f.RetryAfter%time.Second != 0) {
		return fmt.Errorf("storetest: a failure of %v is to be asked for again after %v", key, f.RetryAfter)
	}
	if row.call != nil && row.call.Rules != ch.After.Rules {
		return fmt.Errorf("storetest: the change gives the call of %v other rules", key)
	}
	if !d.exclusive && ch.Takes != (idem.Lease{}) && time.Now().Before(row.until) {
		return idem.ErrLeaseLives
	}
	if ch.Effect != nil {
		if ch.Effect.CallID != ch.After.ID {
			return fmt.Errorf("storetest: the effect is not one of %v", ch.After.ID)
		}
		if len(row.effects) > 0 {
			return idem.ErrSecondEffect
		}
	}

	claimed := ch.After.Status == idem.StatusRunning && (row.call == nil || row.call.Status != idem.StatusRunning || row.call.Attempt != ch.After.Attempt)
	switch {
	case claimed:
		row.until = time.Now().Add(ch.Lease)
	case ch.After.Status != idem.StatusRunning:
		row.until = time.Time{}
	default:
		// Only a claim sets a lease. A stale result above all writes a running
		// record too, and must leave the living lease as it is.
	}
	if claimed || ch.After.Status.Ended() {
		row.left = false
	}
	row.call = durable(ch.After)
	for _, e := range ch.Events {
		e.Seq, e.At, e.Detail = len(row.events), stored(e.At), bytes.Clone(e.Detail)
		row.events = append(row.events, e)
	}
	if ch.Effect != nil {
		e := cloneEffect(*ch.Effect)
		e.CreatedAt = stored(e.CreatedAt)
		row.effects = append(row.effects, e)
	}
	d.rows[key], d.keys[ch.After.ID] = row, key
	d.totals.Add(ch.Totals())
	return nil
}

// Renew implements [idem.Store].
func (m *Model) Renew(ctx context.Context, key idem.Key, lease idem.Lease, d time.Duration) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.d.mu.Unlock()
	row := m.d.rows[key]
	if row == nil || !lease.Holds(row.call) {
		return idem.ErrLeaseLost
	}
	row.until = time.Now().Add(d)
	row.call.LeaseUntil = stored(row.until)
	return nil
}

// Due implements [idem.Store].
func (m *Model) Due(ctx context.Context, limit int, except ...string) ([]idem.Due, error) {
	now := time.Now()
	return m.waiting(ctx, limit, func(r *modelRow) bool {
		due := r.call.Status == idem.StatusPending || r.call.Status == idem.StatusRunning && !now.Before(r.until)
		return due && !slices.Contains(except, r.call.Tool)
	})
}

// Held implements [idem.Store].
func (m *Model) Held(ctx context.Context, limit int) ([]idem.Due, error) {
	return m.waiting(ctx, limit, func(r *modelRow) bool { return r.call.Status == idem.StatusHeld })
}

func (m *Model) waiting(ctx context.Context, limit int, want func(*modelRow) bool) ([]idem.Due, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.d.mu.Unlock()
	var due []idem.Due
	for _, r := range m.d.rows {
		if !want(r) {
			continue
		}
		c := r.call
		due = append(due, idem.Due{
			ID: c.ID, Key: c.Key, Tool: c.Tool, Status: c.Status, Attempt: c.Attempt, Crashes: c.Crashes, Owner: c.Owner,
			Effects: c.Effects, CreatedAt: c.CreatedAt, Recovered: r.left,
		})
	}
	slices.SortFunc(due, func(a, b idem.Due) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), compareIDs(a.ID, b.ID))
	})
	if limit > 0 && len(due) > limit {
		due = due[:limit]
	}
	return due, nil
}

// CallByKey implements [idem.Store].
func (m *Model) CallByKey(ctx context.Context, key idem.Key) (idem.Call, error) {
	if err := m.enter(ctx); err != nil {
		return idem.Call{}, err
	}
	defer m.d.mu.Unlock()
	row := m.d.rows[key]
	if row == nil {
		return idem.Call{}, idem.ErrNotFound
	}
	return shown(row.call), nil
}

// CallByID implements [idem.Store].
func (m *Model) CallByID(ctx context.Context, ns idem.Namespace, id idem.CallID) (idem.Call, error) {
	if err := m.enter(ctx); err != nil {
		return idem.Call{}, err
	}
	defer m.d.mu.Unlock()
	row := m.d.byID(ns, id)
	if row == nil {
		return idem.Call{}, idem.ErrNotFound
	}
	return shown(row.call), nil
}

// byID returns the row of a call of a namespace, or nil.
func (d *modelData) byID(ns idem.Namespace, id idem.CallID) *modelRow {
	key, ok := d.keys[id]
	if !ok || key.Namespace != ns {
		return nil
	}
	return d.rows[key]
}

// List implements [idem.Store].
func (m *Model) List(ctx context.Context, ns idem.Namespace, q idem.Query) ([]idem.Call, idem.CallID, error) {
	if err := m.enter(ctx); err != nil {
		return nil, idem.CallID{}, err
	}
	defer m.d.mu.Unlock()
	var calls []idem.Call
	for key, r := range m.d.rows {
		older := q.Before.IsZero() || compareIDs(r.call.ID, q.Before) < 0
		if key.Namespace == ns && older && q.Match(r.call) {
			calls = append(calls, listed(r.call))
		}
	}
	slices.SortFunc(calls, func(a, b idem.Call) int { return compareIDs(b.ID, a.ID) })
	if len(calls) <= q.Limit {
		return calls, idem.CallID{}, nil
	}
	calls = calls[:q.Limit]
	return calls, calls[q.Limit-1].ID, nil
}

// Events implements [idem.Store].
func (m *Model) Events(ctx context.Context, ns idem.Namespace, id idem.CallID, from, limit int) ([]idem.Event, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.d.mu.Unlock()
	row := m.d.byID(ns, id)
	if row == nil {
		return nil, idem.ErrNotFound
	}
	var events []idem.Event
	for _, e := range row.events {
		if e.Seq >= from && len(events) < limit {
			e.Detail = bytes.Clone(e.Detail)
			events = append(events, e)
		}
	}
	return events, nil
}

// Effects implements [idem.Store].
func (m *Model) Effects(ctx context.Context, ns idem.Namespace, after idem.CallID, limit int) ([]idem.Effect, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.d.mu.Unlock()
	var effects []idem.Effect
	for key, r := range m.d.rows {
		for _, e := range r.effects {
			if key.Namespace == ns && compareIDs(e.CallID, after) > 0 {
				effects = append(effects, cloneEffect(e))
			}
		}
	}
	slices.SortFunc(effects, func(a, b idem.Effect) int { return compareIDs(a.CallID, b.CallID) })
	return effects[:min(len(effects), limit)], nil
}

// SaveRules implements [idem.Store].
func (m *Model) SaveRules(ctx context.Context, r *idem.Rules) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.d.mu.Unlock()
	id := r.ID()
	if id.IsZero() {
		return idem.ErrNoRules
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if _, saved := m.d.rules[id]; !saved && len(m.d.rules) >= idem.MaxSavedRules {
		return idem.ErrTooManyRules
	}
	m.d.rules[id] = r.Text()
	return nil
}

// Rules implements [idem.Store].
func (m *Model) Rules(ctx context.Context) ([]*idem.Rules, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.d.mu.Unlock()
	var all []*idem.Rules
	for _, text := range m.d.rules {
		r, err := idem.ParseRules(text)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *idem.Rules) int {
		x, y := a.ID(), b.ID()
		return bytes.Compare(x[:], y[:])
	})
	return all, nil
}

// Totals implements [idem.Store].
func (m *Model) Totals(ctx context.Context) (idem.Totals, error) {
	if err := m.enter(ctx); err != nil {
		return idem.Totals{}, err
	}
	defer m.d.mu.Unlock()
	return m.d.totals, nil
}

// Newest implements [idem.Store].
func (m *Model) Newest(ctx context.Context) (time.Time, error) {
	if err := m.enter(ctx); err != nil {
		return time.Time{}, err
	}
	defer m.d.mu.Unlock()
	var newest idem.CallID
	for id := range m.d.keys {
		if compareIDs(id, newest) > 0 {
			newest = id
		}
	}
	if newest.IsZero() {
		return time.Time{}, nil
	}
	return newest.Time(), nil
}

// Ready implements [idem.Store].
func (m *Model) Ready() error {
	if err := m.enter(context.Background()); err != nil {
		return err
	}
	m.d.mu.Unlock()
	return nil
}

// Close implements [idem.Store]. What was stored stays for the next Open.
func (m *Model) Close() error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.closed = true
	return nil
}

// Check is [Check] over every namespace that has a call.
func (m *Model) Check() error {
	m.d.mu.Lock()
	var namespaces []idem.Namespace
	for key := range m.d.rows {
		if !slices.Contains(namespaces, key.Namespace) {
			namespaces = append(namespaces, key.Namespace)
		}
	}
	m.d.mu.Unlock()
	return Check(context.Background(), &Model{d: m.d, peek: true}, namespaces...)
}

// shown is a call as reads give it: a copy, without its Args.
func shown(c *idem.Call) idem.Call {
	cc := *cloneCall(c)
	cc.Args = nil
	return cc
}

// listed is a call as a list gives it: without its Fingerprint, too.
func listed(c *idem.Call) idem.Call {
	cc := shown(c)
	cc.Fingerprint = idem.Fingerprint{}
	return cc
}

// durable is a call as a store that writes it down gives it back: a copy, with
// the times at the precision of a record.
func durable(c *idem.Call) *idem.Call {
	c = cloneCall(c)
	for _, t := range []*time.Time{&c.CreatedAt, &c.LeaseUntil, &c.UpdatedAt, &c.ClaimedAt, &c.EndedAt, &c.ExpiresAt} {
		*t = stored(*t)
	}
	return c
}

func stored(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func cloneCall(c *idem.Call) *idem.Call {
	if c == nil {
		return nil
	}
	cc := *c
	cc.Args, cc.Result = bytes.Clone(c.Args), bytes.Clone(c.Result)
	cc.ClientID, cc.Seq, cc.Failure = clonePtr(c.ClientID), clonePtr(c.Seq), clonePtr(c.Failure)
	return &cc
}

func cloneEffect(e idem.Effect) idem.Effect {
	e.Amount = clonePtr(e.Amount)
	return e
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func compareIDs(a, b idem.CallID) int { return bytes.Compare(a[:], b[:]) }
