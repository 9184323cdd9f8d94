// Package probe is the proof of correctness: it looks at a service from outside,
// over real sockets, breaks the way there on purpose, and judges what happened
// on the ledger, never on an answer.
//
// [Proxy] stands between a client and a service and makes the faults of a
// network happen on demand: answers that are lost after the work was done,
// requests that arrive twice, connections that are reset. Which exchanges are
// hit is counted or drawn from a seed, so that a run can be repeated.
//
// [Run] does scenarios to a service and judges them on its ledger: to small
// services that are mostly wrong on purpose, to idemd as a process of its own, or
// to somebody's target. [SelfTest] judges the judgement.
//
// [Reconciliation] counts a ledger against what was to happen. [History] proves
// from clients' logs, the ledger and the audit trails that no rule was broken.
//
// What it promises: a fault happens where its rule says so and nowhere else, one
// exchange is one request on the wire (two where the fault is a duplicate), and
// the proxy's counts tell requests on the wire apart from what a client believes
// it sent.
//
// What it does not promise: anything about the service.
//
// It may import the standard library, idem and client.
package probe
