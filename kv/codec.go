package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

var errCorrupt = errors.New("kv: a stored record is damaged")

// writer builds a value. What does not fit the format is an error of the
// caller's, kept until the end.
type writer struct {
	b   []byte
	err error
}

func newWriter(b []byte, version byte) *writer { return &writer{b: append(b, version)} }

func (w *writer) byte(v byte)      { w.b = append(w.b, v) }
func (w *writer) uvarint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) varint(v int64)   { w.b = binary.AppendVarint(w.b, v) }
func (w *writer) time(t time.Time) { w.varint(t.UnixMicro()) }

func (w *writer) text(s string) {
	w.uvarint(uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) bytes(s []byte) {
	w.uvarint(uint64(len(s)))
	w.b = append(w.b, s...)
}

// count is a number that is never negative.
func (w *writer) count(n int) {
	if n < 0 {
		w.err = fmt.Errorf("kv: a negative count cannot be stored")
		return
	}
	w.uvarint(uint64(n))
}

func writeCode[T ~string](w *writer, codes []T, v T) {
	i := slices.Index(codes, v)
	if i < 0 {
		w.err = fmt.Errorf("kv: the word %.40q cannot be stored", v)
		return
	}
	w.byte(byte(i))
}

// reader takes a value apart. After the first fault it yields zeros; done says
// whether there was one.
type reader struct {
	b   []byte
	bad bool
}

func newReader(b []byte, version byte) *reader {
	r := &reader{b: b}
	if r.byte() != version {
		r.bad = true
	}
	return r
}

func (r *reader) empty() bool { return r.bad || len(r.b) == 0 }

func (r *reader) fail() { r.bad, r.b = true, nil }

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) count() int {
	v := r.uvarint()
	if v > math.MaxInt {
		r.fail()
		return 0
	}
	return int(v)
}

func (r *reader) time() time.Time {
	v := r.varint()
	if r.bad {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}

// raw returns bytes of the value itself: copy what is kept.
func (r *reader) raw() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) text() string { return string(r.raw()) }

// bytes returns a copy, not nil where there was no fault.
func (r *reader) bytes() []byte {
	v := r.raw()
	if r.bad {
		return nil
	}
	return append(make([]byte, 0, len(v)), v...)
}

func (r *reader) fixed(dst []byte) {
	if len(r.b) < len(dst) {
		r.fail()
		return
	}
	copy(dst, r.b)
	r.b = r.b[len(dst):]
}

func readCode[T ~string](r *reader, codes []T) T {
	i := int(r.byte())
	if i >= len(codes) {
		r.fail()
		return ""
	}
	return codes[i]
}

// flags reads a byte of which only the known bits may be set.
func (r *reader) flags(known byte) byte {
	f := r.byte()
	if f&^known != 0 {
		r.fail()
	}
	return f
}

// done reports a fault, or bytes that nobody asked for.
func (r *reader) done(row string) error {
	if r.bad || len(r.b) != 0 {
		return fmt.Errorf("%w: %s row", errCorrupt, row)
	}
	return nil
}
