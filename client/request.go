package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/idemd/idemd/idem"
)

// Request is what a caller wants done once.
type Request struct {
	Tool string

	// Args is a JSON object. It is sent byte for byte, but for white space
	// around it, so that no number is rounded on the way.
	Args json.RawMessage

	// Key names the intent, and is the caller's: it comes from the intent, and is
	// the same whenever the intent is asked for again (R1). See [idem.KeyFor].
	Key string

	// NoKey says that there is no key on purpose, since the tool keeps no record (see
	// [Tool]); the server refuses it for any other. After a lost answer it is sent
	// again only if the server has said that the tool keeps none. It cannot be kept in
	// a journal.
	NoKey bool

	ClientID *string // stored with the call; nil for none
	Seq      *int64  // stored with the call; nil for none

	// HandIn makes Call return once the call is accepted, instead of asking
	// until it has its end. It still waits as long as the policy's Wait.
	HandIn bool
}

// frozen is a request as it is sent, every time.
type frozen struct {
	key    idem.Key // no name where there is no key on purpose
	tool   string
	body   []byte
	handIn bool
}

// freeze checks a request and builds what is sent. The error is an *Error with
// the code bad_request or missing_idempotency_key, and nothing was sent.
func (r Request) freeze() (frozen, error) {
	var key idem.Key
	if r.NoKey {
		if r.Key != "" {
			return frozen{}, refused(r.Key, idem.Errorf(idem.CodeBadRequest, "a key, and none on purpose"), "")
		}
	} else {
		var err error
		if key, err = idem.ParseKey(idem.DefaultNamespace, r.Key); err != nil {
			return frozen{}, refused(r.Key, err, "")
		}
	}
	switch {
	case r.Tool == "":
		return frozen{}, refused(r.Key, idem.Errorf(idem.CodeBadRequest, "the tool's name is empty"), "")
	case !utf8.ValidString(r.Tool), r.ClientID != nil && !utf8.ValidString(*r.ClientID): // JSON would change it
		return frozen{}, refused(r.Key, idem.Errorf(idem.CodeBadRequest, "the name of the tool or of the client is not UTF-8"), "")
	}
	if _, err := idem.Canonical(r.Args); err != nil { // what the server would refuse
		return frozen{}, refused(r.Key, err, "the arguments: ")
	}
	tool, err := json.Marshal(r.Tool)
	if err != nil {
		return frozen{}, fmt.Errorf("client: %w", err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"tool":%s,"args":%s`, tool, bytes.Trim(r.Args, " \t\r\n"))
	if r.ClientID != nil {
		id, err := json.Marshal(*r.ClientID)
		if err != nil {
			return frozen{}, fmt.Errorf("client: %w", err)
		}
		fmt.Fprintf(&b, `,"client_id":%s`, id)
	}
	if r.Seq != nil {
		fmt.Fprintf(&b, `,"seq":%d`, *r.Seq)
	}
	b.WriteByte('}')
	return frozen{key: key, tool: r.Tool, body: b.Bytes(), handIn: r.HandIn}, nil
}
