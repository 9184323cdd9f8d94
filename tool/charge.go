package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/idemd/idemd/idem"
)

const chargeSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["amount"],
  "properties": {
    "amount": {"type": "integer", "minimum": 1, "maximum": 9223372036854775807, "description": "In the currency's smallest unit."},
    "currency": {"type": "string"}
  }
}`

// charge takes an amount. The effect row is the charge: the ledger carries the
// amount, so what was taken can be added up.
func charge() *idem.Tool {
	return &idem.Tool{
		Name:        "charge",
		Description: "Sample: charge an amount once and give a receipt.",
		Effects:     idem.EffectsLocal,
		Rerun:       idem.RerunYes,
		Instant:     true,
		Schema:      []byte(chargeSchema),
		Check:       mustCheck(chargeSchema),
		Invoke: func(_ context.Context, inv idem.Invocation) (idem.Result, error) {
			a, err := parseArgs(inv.Args, "amount")
			if err != nil {
				return idem.Result{}, err
			}
			amount, err := a.integer("amount")
			if err != nil {
				return idem.Result{}, err
			}
			if amount < 1 {
				return idem.Result{}, errArgs
			}
			out := fmt.Appendf(nil, `{"receipt":"%s","amount":%d}`, derived("rcpt_", inv.EffectID), amount)
			return idem.Result{Output: out, Amount: &amount}, nil
		},
	}
}

// derived makes a name for what a local tool made, out of the effect id: the
// same on every attempt, and nothing that the effect id could be read from.
func derived(prefix, effectID string) string {
	sum := sha256.Sum256([]byte("idemd-" + prefix + "1:" + effectID))
	return prefix + hex.EncodeToString(sum[:16])
}
