package tool

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/idem"
)

const emailSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["to", "subject", "body"],
  "properties": {
    "to": {"type": "string"},
    "subject": {"type": "string"},
    "body": {"type": "string"}
  }
}`

// sendEmail stands for a message that must go out once. It sends nothing: the
// effect row is the message.
func sendEmail() *idem.Tool {
	return &idem.Tool{
		Name:        "send_email",
		Description: "Sample: record one message as sent, and give its id. Nothing leaves the machine.",
		Effects:     idem.EffectsLocal,
		Rerun:       idem.RerunYes,
		Instant:     true,
		Schema:      []byte(emailSchema),
		Check:       mustCheck(emailSchema),
		Invoke: func(_ context.Context, inv idem.Invocation) (idem.Result, error) {
			return idem.Result{Output: fmt.Appendf(nil, `{"message_id":"%s"}`, derived("msg_", inv.EffectID))}, nil
		},
	}
}
