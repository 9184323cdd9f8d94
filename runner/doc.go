// Package runner applies the law of package idem to a store: it takes calls in,
// runs their tools under leases, settles them, and takes up what an earlier
// life left behind. It is the only place where transitions are applied.
//
// What it promises:
//
//   - An answer is given only after the commit that it speaks of is durable
//     (R4). The store sees to the order; the runner tells waiters and counts
//     only after Update has returned.
//   - Before a tool is dispatched its attempt is durable (R12). A local tool has
//     no effect but the row that is written with its end. As long as it is quick
//     it is run first, and claimed and settled in one commit, where its request
//     waits for it, where it comes from the queue, or where it only computes and
//     a worker is free. Who does not wait is answered with what was accepted.
//   - Claim is the only door to running (R11): a call whose request runs it
//     itself, or finds a worker free, is claimed in the commit that creates it;
//     everything else is found by Store.Due and claimed from there, oldest
//     first.
//   - A call that is accepted runs to its end whether or not anybody waits for
//     it (R15); a wait is served from memory and costs no commit.
//   - An attempt that does not stop when it is told to is abandoned: its call is
//     settled by the law (R14), the goroutine is counted, and once too many
//     have been, their workers stay with them and nothing runs without a worker.
//   - What the store cannot write or read for a while is tried again, less and
//     less often, and keeps nothing else from its turn.
//
// What it does not promise: that a tool runs only once. That depends on the tool,
// which says so itself (R13).
//
// It imports package idem and the standard library, is handed tools and a store,
// and knows neither where tools come from nor what a store is made of.
//
// Reading order: runner.go (parts, start, stop), submit.go and inline.go (a
// request's way in), recover.go (what is due), execute.go (an attempt), work.go
// and outcome.go (its tool, and what came of it), verify.go (held calls that can
// be asked about), room.go and flight.go (bookkeeping in memory).
package runner
