// Package idem is the law of a call: what one idempotency key may lead to, in
// every state, after every crash.
//
// It promises that the rules stand here and nowhere else. A rule is a pure
// function, a [Transition], from a record to the [Change] that it decided. The
// layers around load a record, apply a transition, commit the change and show
// it; they decide nothing of their own.
//
// It does not promise that anything is kept or run: that is what a [Store] and
// a runner are for. Nor can it make an external system forget an effect that
// happened twice there; it can only see to it that a second one is never asked
// for without that system's consent (R10, R13).
//
// It imports the standard library, jsontext for canonical JSON, and norm for Unicode
// normalisation where a tool asks for it; nothing else of this
// module. It knows no clock, disk, socket or goroutine: time and chance come in
// as arguments, so that every case can be written down as a table.
//
// # A call's life
//
//	               Submit
//	                 │
//	                 ▼
//	┌────────────▶ pending ◀────────────────────────────────────────┐
//	│                │ Claim                                        │
//	│ Release        ▼                                              │
//	└───────────── running ──┬─ Succeed ─────────▶ succeeded ◀──┐   │
//	               │    ▲    │                                  │   │
//	               └────┘    ├─ Fail, Lose, ─────▶ failed ◀─────┤   │
//	         Claim, once     │  Claim                │          │   │
//	         it is due       │                       └─ Submit ─│──▶│ if retryable
//	                         │                                  │   │
//	                         └─ Hold, Lose, ─────▶ held ────────┴───┘
//	                            Release, Claim           Resolve
//
// Lose, Release and the Claim of a running call part ways by what its tool
// promised (R13): where it may rerun, the call fails, goes back or runs again;
// where it may not, it is held. A Claim also fails a call that is poison, or
// whose tool is gone, even a pending one, and holds a pending one that is in
// doubt and may not go out again. Both ends become a tombstone by [Expire] when
// their window is over.
//
// There is no other way. What no arrow shows is refused, is answered without a
// write, or is dropped with a word in the audit trail.
//
// # The words
//
// An intent is what a caller wants done once; its key is the name that the
// caller gives it, and its fingerprint tells it from another one under the same
// key. The call is the durable record of a key. A delivery is one arrival of a
// request for it, an attempt one execution of it under a lease, and the lease's
// owner is who may move the running call. A call is claimed, its lease renewed,
// and in the end it is settled. A call is due when it may be claimed, held when
// nobody knows what came of it, and ended when it succeeded or failed. Its end
// is replayed to whoever asks again, a call in flight is joined, and a failed
// and retryable one is requeued. The effect is the one trace that a call leaves
// in the ledger, to be counted by [Reconcile]. The window is how long an ended
// call's key is remembered in full; the tombstone is what is left of it then.
//
// # The rules
//
// Code and tests name a rule by its number. A name like storetest/Race is a
// group of the suite that every store passes.
//
//   - R1. The caller names the intent before the first attempt and uses that
//     name for all of them. A server that made keys itself would make a new one
//     for every retry, so none is ever made here.
//     Tests: TestParseKey, TestKeyFor.
//   - R2. One key of one namespace is one call. Whether there is one already and
//     the creation of it are decided under one lock or in one statement.
//     Tests: TestSubmit, storetest/Race, storetest/Refused, storetest/Record.
//   - R3. The same key with the same fingerprint is the same call and gets its
//     first answer, byte for byte. With another fingerprint it is a conflict,
//     always, and learns nothing of what is stored. A tool may declare which
//     differences mean nothing ([Rules]); a call keeps those that it was accepted
//     under.
//     Tests: TestSubmit, TestSubmitRefusals, TestFingerprintOf,
//     TestCanonicalSameAndDifferent, TestSubmitUnderTheCallsRules, TestChangedRules,
//     storetest/Update, storetest/Reopen.
//   - R4. What somebody was told survives a crash, so nothing is told before it
//     is on disk.
//     Tests: storetest/Race, TestKillAtEveryPoint, TestKillUnderLoad.
//   - R5. A receipt says that a call will run, and no more than that. Only an end
//     says what came of it.
//     Tests: TestAcceptedThenKilled.
//   - R6. A running call is moved by its lease's holder alone: call id, owner and
//     attempt must be those of the record. The clock does not matter for that,
//     only whether somebody else has taken the call. A result that finds the
//     call moved is dropped, and the audit trail says so.
//     Tests: TestSettle, TestSettleLate, TestSettleAfterTheLease, TestLeaseHolds,
//     TestClaim, storetest/Lease.
//   - R7. The end, the result and the effect are written together or not at all.
//     Tests: TestChain, TestSettleByPromise, TestResolve, storetest/Race.
//   - R8. No call has two effects. The store refuses the second one even if all
//     that is written here should fail.
//     Tests: storetest/Refused, storetest/Reopen, TestKillUnderLoad.
//   - R9. An end stays. The one exception is a failure that says it is retryable,
//     and only the same key opens that again; nobody retries on the server's own
//     account.
//     Tests: TestSubmit, TestSubmitReopens, TestClaim, storetest/Reopen.
//   - R10. A call's effect id follows from its call id. It is the same on every
//     attempt and goes downstream, so that others can refuse a second effect too.
//     Tests: TestEffectID, TestSubmit, TestMatrix.
//   - R11. Whoever starts again finds calls that are due and claims them like any
//     other; there is no second way to running. Data with one owner hold no lease
//     of an earlier life; shared data do, until it is over.
//     Tests: TestClaim, storetest/Reopen, storetest/Lease.
//   - R12. An attempt is counted before its tool is called, a crash when the call
//     that it left behind is claimed, and both numbers only grow. A call that
//     keeps ending its process is stopped at max_crashes, and runs with nothing
//     beside it on its last try. To stop cleanly is not to crash.
//     Tests: TestClaim, TestClaimStops, TestSettleByPromise, TestOwner.
//   - R13. When an answer was lost, the tool's promise decides: run again, ask
//     downstream, or wait for a person. The stricter of the old and the new
//     promise counts, and an unknown one is the strictest. Until somebody has
//     found out, the call is in doubt, also where a later attempt failed for
//     certain.
//     Tests: TestClaim, TestSettleByPromise, TestStricter, TestToolValidate,
//     TestDoubtStays, TestMatrix.
//   - R14. A refusal before acceptance leaves no trace. After it every definite
//     failure is an end, and where nothing is definite the key is never simply
//     free again: R13 decides. A call whose tool is gone fails and may be asked
//     for again, if it is certain that it is not done.
//     Tests: TestSubmit, TestClaim, TestClaimStops, TestSettleByPromise,
//     TestLastAttempt, TestEveryEndOfAnHTTPTool.
//   - R15. An accepted call runs to its end whether anybody waits for it or not.
//     Tests: TestKillAtEveryPoint, TestAcceptedThenKilled.
//   - R16. A key is remembered for the window, which begins at the end of its call and
//     is fixed then. Later the key is refused, and never runs again by accident.
//     Without an end there is nothing to count from.
//     Tests: TestCallExpired, TestSubmit, TestExpire, TestExpireForgets,
//     TestSettleFillsTheRecord.
//   - R17. A wall clock decides windows and what people read, nothing else, so a
//     jump of it neither loses nor doubles a call. The time in ids never goes
//     back.
//     Tests: TestCallIDOrder, TestExpire, storetest/Read, storetest/Reopen.
//   - R18. Whether all went well is read from the ledger: no intent twice, none
//     lost, none that nobody asked for. That a request was answered with success
//     proves nothing.
//     Tests: TestReconcile, TestKillUnderLoad.
package idem
