// Package client is the Go client of idemd that retries rightly: one intent, one
// key, one effect, whatever is lost, slow or killed on the way.
//
// What it promises:
//
//   - A request is sent under one key with the same bytes, however often, by
//     [Client.Call] and after a restart of the process by [Client.Resume] (R1). There
//     is no way to have it make a key up, or a new one for a retry.
//   - One try is one request on the wire, and every one is counted, logged and
//     returned ([Try]). Nothing below it sends again, and no redirect is
//     followed ([Transport]).
//   - What an answer means stands in one pure function, [Classify]. One that is about
//     another key, tool or call is none.
//   - After a lost answer it asks by key before it sends again. An outcome that was
//     unknown once stays unknown in every error until something settles it: the
//     call itself, or a conflict, which says that the key was never ours.
//   - Before the first of several sends it learns how long the server remembers a
//     key, and refuses a policy that can outlive that ([Policy.Span], R16).
//   - A key and its bytes are in the [Journal], if there is one, and synced, before
//     the first send.
//   - 202 is a receipt, not an end (R5): Call asks until there is an end.
//   - A failure of which nobody knows whether it was done all the same is never told
//     as one that was not: for good it is an error, outcome_unknown.
//   - Without a key it asks for nothing unless told so ([Request.NoKey]), and sends
//     nothing again after a lost answer but what the server keeps no record of.
//   - Everything is bounded: tries, time, pauses, bytes of an answer, the journal.
//
// What it does not promise: that a call is done. The budget may run out, and then
// the error says so, has the key, and says whether it may have been done. It does
// not judge whether two intents are one; that is the key's (see [idem.KeyFor]). Nor
// can it undo what a caller does who makes a new key for the same intent.
//
// An unknown outcome that stays unknown (409 outcome_unknown, a failure for good in
// doubt, 410 key_expired after a lost answer, a budget that ran out) is the one thing that a person or the
// ledger has to decide. Never make a new key for it.
//
// It imports the standard library and idem, and nothing else. Unix only, for the
// journal's lock.
package client
