package probe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// serve is one request.
func (d *Downstream) serve(w http.ResponseWriter, r *http.Request) {
	if !d.arrive() {
		panic(http.ErrAbortHandler)
	}
	defer d.leave()
	path := r.URL.Path
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		switch path {
		case "/ledger", "/requests", "/summary", "/healthz":
			w.Header().Set("Allow", http.MethodGet)
			reply(w, http.StatusMethodNotAllowed, failure("method_not_allowed"))
		default:
			d.work(w, r, (*visit).effect)
		}
	case http.MethodGet:
		switch {
		case path == "/ledger":
			d.showLedger(w)
		case path == "/requests":
			d.showRequests(w)
		case path == "/summary":
			showJSON(w, d.Report())
		case path == "/healthz":
			showJSON(w, map[string]string{"status": "ok"})
		case path == "/effects" || strings.HasPrefix(path, "/effects/"):
			d.work(w, r, (*visit).lookup)
		default:
			reply(w, http.StatusNotFound, failure("not_found"))
		}
	default:
		reply(w, http.StatusMethodNotAllowed, failure("method_not_allowed"))
	}
}

// failure is the body of an answer that is none.
func failure(code string) []byte {
	b, err := json.Marshal(map[string]string{"error": code})
	if err != nil {
		panic(err) // a string cannot fail
	}
	return append(b, '\n')
}

func reply(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // who does not get it has gone
}

func showJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		reply(w, http.StatusInternalServerError, failure("internal"))
		return
	}
	reply(w, http.StatusOK, append(b, '\n'))
}

const typeNDJSON = "application/x-ndjson"

func (d *Downstream) showLedger(w http.ResponseWriter) {
	w.Header().Set("Content-Type", typeNDJSON)
	if _, err := io.Copy(w, d.ledger.all()); err != nil {
		panic(http.ErrAbortHandler) // or a part would pass for the whole
	}
}

func (d *Downstream) showRequests(w http.ResponseWriter) {
	w.Header().Set("Content-Type", typeNDJSON)
	enc := json.NewEncoder(w)
	for _, r := range d.Requests() {
		if err := enc.Encode(r); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// visit is a request for an effect, or a look-up of one.
type visit struct {
	d     *Downstream
	w     http.ResponseWriter
	r     *http.Request
	rc    *http.ResponseController
	log   *DownstreamRequest // under d.mu
	fault DownstreamFault
	state *effectState
}

// work does a visit, if there is a place for it.
func (d *Downstream) work(w http.ResponseWriter, r *http.Request, do func(*visit)) {
	v := &visit{d: d, w: w, r: r, rc: http.NewResponseController(w), log: &DownstreamRequest{
		At: time.Now().UTC(), Method: r.Method, Path: loggable(r.URL.Path, 256), Fault: DownstreamFault{}.String(), Status: StatusPending,
	}}
	d.mu.Lock()
	d.reqs.add(v.log)
	if r.Method == http.MethodGet {
		d.report.Lookups++
	} else {
		d.report.Requests++
	}
	room := d.working < d.maxRequests
	if room {
		d.working++
	}
	d.mu.Unlock()
	if !room {
		v.retryLater()
		v.fail(http.StatusServiceUnavailable, "too_many_requests")
		v.say()
		return
	}
	defer func() {
		d.mu.Lock()
		d.working--
		d.mu.Unlock()
		v.say()
	}()
	do(v)
}

// say writes the visit to the log of the service.
func (v *visit) say() {
	v.d.mu.Lock()
	l := *v.log
	v.d.mu.Unlock()
	args := []any{
		"number", l.Number, "method", l.Method, "path", l.Path, "id", loggable(l.ID, 40), "attempt", l.Attempt, "fault", l.Fault,
		"committed", l.Committed, "status", l.Status,
	}
	if l.Note != "" {
		args = append(args, "note", l.Note)
	}
	v.d.log.Info("request", args...)
}

// lookup is GET /effects.
func (v *visit) lookup() {
	id, byPath := strings.CutPrefix(v.r.URL.Path, "/effects/")
	if !byPath {
		id = v.r.URL.Query().Get("ref")
	}
	d := v.d
	d.mu.Lock()
	v.log.ID = loggable(id, maxEffectID)
	s := d.ids[id]
	found := s != nil && s.entries > 0
	var at span
	if found {
		at = s.first
	}
	d.mu.Unlock()
	if !found {
		v.fail(http.StatusNotFound, "not_found")
		return
	}
	line, err := d.ledger.line(at)
	if err != nil {
		v.answer(http.StatusInternalServerError, failure("internal"), err.Error())
		return
	}
	v.answer(http.StatusOK, append(line, '\n'), "")
}

// maxEffectID is the longest id of an effect, in bytes.
const maxEffectID = 255

// errTooLarge is that a body is longer than MaxDownstreamBody.
var errTooLarge = errors.New("the body is too large")

// effect is a request for an effect.
func (v *visit) effect() {
	var id string
	var body []byte
	var err error
	// Where the field has the id the fault is known before the body is read: that one
	// is close-before's to leave alone.
	if v.d.pointer == "" {
		id, err = v.headerID()
	} else if body, err = v.read(); err == nil {
		id, err = v.bodyID(body)
	}
	if err != nil {
		v.refuse(err)
		return
	}
	v.d.mu.Lock()
	v.log.ID = loggable(id, maxEffectID)
	v.d.mu.Unlock()
	if err := checkEffectID(id); err != nil {
		v.refuse(err)
		return
	}
	if !v.choose(id) {
		v.fail(http.StatusInsufficientStorage, "too_many_ids")
		return
	}
	if err := v.fault.Validate(); err != nil { // of whoever chose it
		v.answer(http.StatusInternalServerError, failure("internal"), err.Error())
		return
	}
	if v.fault.Kind == CloseBefore {
		v.hangUp("")
		return
	}
	if v.d.pointer == "" {
		if body, err = v.read(); err != nil {
			v.refuse(err)
			return
		}
	}
	e, err := newEntry(id, body)
	if err != nil {
		v.refuse(err)
		return
	}
	switch v.fault.Kind {
	case Refuse:
		v.fail(http.StatusUnprocessableEntity, "refused")
	case Busy:
		v.retryLater()
		v.fail(http.StatusTooManyRequests, "busy")
	case Unavailable:
		v.fail(http.StatusServiceUnavailable, "unavailable")
	case ConflictInProgress:
		v.fail(http.StatusConflict, "in_progress")
	case Delay:
		if err := v.waitFor(v.fault.Wait); err != nil {
			v.giveUp()
			return
		}
		v.commit(e)
	default:
		v.commit(e)
	}
}

// refuse answers a request that asks for nothing that can be done.
func (v *visit) refuse(err error) {
	switch {
	case errors.Is(err, errTooLarge):
		v.w.Header().Set("Connection", "close") // or the rest would be read
		v.answer(http.StatusRequestEntityTooLarge, failure("too_large"), err.Error())
	case errors.Is(err, errNotRead):
		v.settle(0, err.Error())
		panic(http.ErrAbortHandler)
	default:
		v.answer(http.StatusBadRequest, failure(err.Error()), err.Error())
	}
}

func (v *visit) headerID() (string, error) {
	switch ids := v.r.Header.Values(v.d.header); len(ids) {
	case 0:
		return "", fmt.Errorf("there is no field %s", v.d.header)
	case 1:
		return ids[0], nil
	default:
		return "", fmt.Errorf("the field %s is there %d times", v.d.header, len(ids))
	}
}

func (v *visit) bodyID(body []byte) (string, error) {
	doc := bytes.TrimSpace(body)
	if len(doc) == 0 {
		return "", errors.New("there is no body")
	}
	if err := checkJSON(doc); err != nil {
		return "", fmt.Errorf("the body is not JSON: %w", err)
	}
	raw, err := memberAt(doc, v.d.pointer)
	if err != nil {
		return "", err
	}
	if raw[0] != '"' {
		return "", fmt.Errorf("%s is not a string", v.d.pointer)
	}
	return scalarText(raw, v.d.pointer)
}

func checkEffectID(id string) error {
	switch {
	case id == "":
		return errors.New("the effect's id is empty")
	case len(id) > maxEffectID:
		return fmt.Errorf("the effect's id is longer than %d bytes", maxEffectID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return errors.New("the effect's id is not text")
	}
	return nil
}

// errNotRead is that a body did not arrive.
var errNotRead = errors.New("the body did not arrive")

func (v *visit) read() ([]byte, error) {
	_ = v.rc.SetReadDeadline(time.Now().Add(downstreamPatience)) // where the server can
	body, err := io.ReadAll(io.LimitReader(v.r.Body, MaxDownstreamBody+1))
	_ = v.rc.SetReadDeadline(time.Time{})
	switch {
	case len(body) > MaxDownstreamBody:
		return nil, errTooLarge
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNotRead, err)
	}
	return body, nil
}

// newEntry takes out of the body what is written down of it. A body that is not a
// JSON object is as good as another, and has no such members.
func newEntry(id string, body []byte) (*DownstreamEntry, error) {
	sum := sha256.Sum256(body)
	e := &DownstreamEntry{EffectID: id, Body: hex.EncodeToString(sum[:])}
	doc := bytes.TrimSpace(body)
	if len(doc) == 0 || doc[0] != '{' || checkJSON(doc) != nil {
		return e, nil
	}
	intent, err := memberOf(doc, "intent")
	if err != nil {
		return nil, err
	}
	amount, err := memberOf(doc, "amount")
	if err != nil {
		return nil, err
	}
	if len(intent) > MaxID || len(amount) > MaxID {
		return nil, fmt.Errorf("intent or amount is longer than %d bytes", MaxID)
	}
	if len(intent) > 0 && intent[0] == '"' {
		if e.Intent, err = scalarText(intent, "intent"); err != nil {
			return nil, err
		}
	}
	if len(amount) > 0 && (amount[0] == '-' || amount[0] >= '0' && amount[0] <= '9') {
		e.Amount = json.Number(amount)
	}
	return e, nil
}

// choose counts a request of an id and chooses its fault. It is false where the id
// is one too many.
func (v *visit) choose(id string) bool {
	d := v.d
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.ids[id]
	if s == nil {
		if len(d.ids) >= d.maxEntries {
			return false
		}
		s = &effectState{}
		d.ids[id] = s
	}
	s.asked++
	v.state, v.log.Attempt = s, s.asked
	v.fault = d.fault(s.asked, id)
	v.log.Fault = v.fault.String()
	if v.fault.Kind != "" {
		d.report.Faults[v.fault.Kind]++
	}
	return true
}

// waitFor waits for a time, unless the client leaves or the service stops.
func (v *visit) waitFor(long time.Duration) error {
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	defer context.AfterFunc(v.d.ctx, cancel)()
	return v.d.pause(ctx, long)
}

// giveUp ends a request whose wait was ended before its effect.
func (v *visit) giveUp() {
	note := "the client left before the commit"
	if v.d.ctx.Err() != nil {
		note = "stopped before the commit: no effect"
		v.d.mu.Lock()
		v.d.report.Stopped++
		v.d.mu.Unlock()
	}
	v.hangUp(note)
}

// admission is what a request for an effect meets.
type admission int

const (
	admitted   admission = iota // it is to be done
	replayed                    // it was done
	inProgress                  // it is being done
	otherBody                   // the id is of something else
	full                        // the ledger
)

// admit decides what a request leads to. Who is admitted must call done.
func (v *visit) admit(body string) (a admission, was span) {
	d, s := v.d, v.state
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ignores {
		known := s.doing || s.entries > 0
		switch {
		case known && s.body != body:
			return otherBody, span{}
		case s.doing:
			return inProgress, span{}
		case known:
			d.report.Replayed++
			return replayed, s.first
		}
	}
	if d.report.Committed+d.pledged >= d.maxEntries {
		return full, span{}
	}
	d.pledged++
	if !d.ignores {
		s.doing, s.body = true, body
	}
	return admitted, span{}
}

// done gives back what admit has taken, and counts the entry if there is one.
func (v *visit) done(body string, at span, committed bool) {
	d := v.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pledged--
	v.state.doing = false
	if committed {
		d.enter(v.state, body, at)
		v.log.Committed = true
	}
}

// commit makes the effect happen, or finds the answer that the id has, and answers.
func (v *visit) commit(e *DownstreamEntry) {
	a, was := v.admit(e.Body)
	switch a {
	case inProgress:
		v.fail(http.StatusConflict, "in_progress")
		return
	case otherBody:
		v.fail(http.StatusUnprocessableEntity, "other_body")
		return
	case full:
		v.fail(http.StatusInsufficientStorage, "ledger_full")
		return
	case replayed:
		first, err := v.d.ledger.entry(was)
		if err != nil {
			v.answer(http.StatusInternalServerError, failure("internal"), err.Error())
			return
		}
		v.deliver(first.Answer, true)
		return
	}
	if v.fault.Kind == SlowCommit {
		// Not the request's context: who has gone does not take it back.
		if err := v.d.pause(v.d.ctx, v.fault.Wait); err != nil {
			v.done(e.Body, span{}, false)
			v.giveUp()
			return
		}
	}
	v.d.mu.Lock()
	e.Attempt = v.log.Attempt
	v.d.mu.Unlock()
	e.At = time.Now().UTC()
	at, err := v.d.ledger.append(e)
	v.done(e.Body, at, err == nil)
	if err != nil {
		v.answer(http.StatusInternalServerError, failure("internal"), err.Error())
		return
	}
	v.deliver(e.Answer, false)
}
