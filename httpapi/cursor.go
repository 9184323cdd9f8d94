package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"

	"github.com/idemd/idemd/idem"
)

// cursorVersion is the first byte of every cursor; other versions are refused.
const cursorVersion = 1

// cursorTag is how many bytes of the digest a cursor carries.
const cursorTag = 8

// cursor names a position within a scope: a route, a namespace and what the
// listing was narrowed to. Its text is opaque to clients; the digest in it makes
// one that is damaged, or that comes from another scope, an error instead of a
// listing with a gap.
type cursor struct {
	scope []string
}

func (c cursor) tag(position []byte) []byte {
	h := sha256.New()
	h.Write([]byte("idemd-cursor-1"))
	var n [8]byte
	for _, part := range c.scope {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	h.Write(position)
	return h.Sum(nil)[:cursorTag]
}

func (c cursor) encode(position []byte) string {
	b := append([]byte{cursorVersion}, c.tag(position)...)
	return base64.RawURLEncoding.EncodeToString(append(b, position...))
}

// decode returns the position, which has the given size.
func (c cursor) decode(s string, size int) ([]byte, error) {
	errForeign := badRequest("the cursor is not one that this listing gave")
	if len(s) > base64.RawURLEncoding.EncodedLen(1+cursorTag+size) {
		return nil, errForeign
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != 1+cursorTag+size || b[0] != cursorVersion {
		return nil, errForeign
	}
	position := b[1+cursorTag:]
	if subtle.ConstantTimeCompare(b[1:1+cursorTag], c.tag(position)) != 1 {
		return nil, errForeign
	}
	return position, nil
}

// idFrom reads a cursor whose position is a call; none is the zero id.
func (c cursor) idFrom(params map[string]string) (id idem.CallID, err error) {
	if v := params["cursor"]; v != "" {
		var b []byte
		if b, err = c.decode(v, len(id)); err == nil {
			id = idem.CallID(b)
		}
	}
	return id, err
}
