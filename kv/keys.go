package kv

import (
	"encoding/binary"

	"github.com/idemd/idemd/idem"
)

// First bytes of keys. All of them are part of the disk format.
const (
	prefixNamespace = 'T'
	prefixCall      = 'c'
	prefixEffect    = 'e'
	prefixIdem      = 'i'
	prefixMarker    = 'n'
	prefixRules     = 'r'
	prefixCounter   = 't'
)

// Rows of a call, in key order.
const (
	rowRequest = 0x00
	rowState   = 0x01
	rowAudit   = 0x03
)

var (
	keySchema  = []byte("m/schema")
	keyCounter = []byte{prefixCounter}
)

const (
	idLen       = len(idem.CallID{})
	scopeLen    = 1 + 4            // prefix and nsid
	callLen     = scopeLen + idLen // prefix, nsid and id
	rowLen      = callLen + 1
	auditLen    = rowLen + 4
	maxKeyInUse = scopeLen + 255
)

// nsid is the number of a namespace. It has a fixed width and comes first in
// keys, so that no namespace can read across into another.
type nsid uint32

func appendScope(b []byte, prefix byte, t nsid) []byte {
	return binary.BigEndian.AppendUint32(append(b, prefix), uint32(t))
}

func appendNamespaceKey(b []byte, ns idem.Namespace) []byte {
	return append(append(b, prefixNamespace), ns...)
}

func appendIdemKey(b []byte, t nsid, name string) []byte {
	return append(appendScope(b, prefixIdem, t), name...)
}

func appendCallKey(b []byte, t nsid, id idem.CallID) []byte {
	return append(appendScope(b, prefixCall, t), id[:]...)
}

func appendRequestKey(b []byte, t nsid, id idem.CallID) []byte {
	return append(appendCallKey(b, t, id), rowRequest)
}

func appendStateKey(b []byte, t nsid, id idem.CallID) []byte {
	return append(appendCallKey(b, t, id), rowState)
}

func appendAuditKey(b []byte, t nsid, id idem.CallID, seq uint32) []byte {
	return binary.BigEndian.AppendUint32(append(appendCallKey(b, t, id), rowAudit), seq)
}

func appendEffectKey(b []byte, t nsid, id idem.CallID) []byte {
	return append(appendScope(b, prefixEffect, t), id[:]...)
}

func appendMarkerKey(b []byte, t nsid, id idem.CallID) []byte {
	return append(appendScope(b, prefixMarker, t), id[:]...)
}

func appendRulesKey(b []byte, id idem.RulesID) []byte {
	return append(append(b, prefixRules), id[:]...)
}

// parseRulesKey takes the id off the key of rules.
func parseRulesKey(k []byte) (id idem.RulesID, ok bool) {
	if len(k) != 1+len(id) {
		return id, false
	}
	return idem.RulesID(k[1:]), true
}

// parseScoped takes prefix, nsid and id off a key. Keys of calls go on with the
// row.
func parseScoped(k []byte) (t nsid, id idem.CallID, rest []byte, ok bool) {
	if len(k) < callLen {
		return 0, id, nil, false
	}
	t = nsid(binary.BigEndian.Uint32(k[1:scopeLen]))
	copy(id[:], k[scopeLen:callLen])
	return t, id, k[callLen:], true
}

// parseAudit takes the number of the first event off the row part of a key.
func parseAudit(row []byte) (uint32, bool) {
	if len(row) != auditLen-callLen || row[0] != rowAudit {
		return 0, false
	}
	return binary.BigEndian.Uint32(row[1:]), true
}

// after is the smallest key that does not begin with the prefix and is larger.
// Prefixes here begin with a letter, so there always is one.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; ; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
}
