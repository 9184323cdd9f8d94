// Package httpapi is the contract of idemd over HTTP: it reads requests, asks a
// [Service], and writes answers. The same contract for machines is openapi.yaml,
// which the server also gives out.
//
// What it promises:
//
//   - Every situation of the table below has the answer of the table.
//   - One place writes answers (reply), and one table maps codes to statuses
//     (problems). Every error has one shape, to which the members of RFC 9457
//     are added where Accept prefers application/problem+json.
//   - A stored result or error is sent byte for byte as it was stored.
//   - A client cannot take more than its share: bodies, the bytes of all bodies
//     together, header sections, requests in flight, waits, streams, connections,
//     and the time without progress are bounded. A body that is still arriving
//     takes no place of others, and an idle connection gives way to a newcomer.
//   - No key and no argument reaches a log.
//
// What it does not promise: anything about calls. It knows no law; it only says
// what the service answered.
//
// It imports idem, a router and a JSON tokenizer. It does not import what runs the
// calls, and declares the small interface that it needs instead.
//
// # Situations
//
// Each line is one test of the contract, of the same name.
//
//	POST /v1/tool-calls
//	new key                            202 call, Location, Retry-After
//	new key, wait sees the end         200 call, Preference-Applied
//	new key, wait runs out             202 call, Preference-Applied
//	on its way                         202 the same call, replayed
//	on its way, wait sees the end      200 the same call, replayed
//	on its way, wait sees it held      409 outcome_unknown, effect unknown
//	succeeded                          200 the original call, byte for byte
//	failed for good                    200 the original call, byte for byte
//	failed retryably                   202 the same call, opened again, not replayed
//	failed retryably, wait             200 at the next end
//	failed in doubt                    200 the original call, its error's effect unknown
//	failed, told to wait               200 the call, Retry-After and retry_after
//	held                               409 outcome_unknown, effect unknown
//	other fingerprint                  409 idempotency_conflict in every state
//	past its window                    410 key_expired
//	known key is not validated again   200 although the args would be refused now
//	no key                             400 missing_idempotency_key
//	bad key                            400 bad_request, no echo
//	two keys                           400 bad_request
//	bad body                           400 bad_request
//	unknown tool                       400 bad_request, nothing stored
//	args do not fit                    422 invalid_arguments, nothing stored
//	unrecorded tool                    200 what it did; no call, no key needed
//	unrecorded tool, failed            200 its error, effect none
//	unrecorded tool, joined            200 the answer of the run under way, replayed
//	unrecorded tool, other args        409 idempotency_conflict while a run is under way
//	unrecorded tool, known key         as the record of the key says
//	unrecorded tool, args do not fit   422 invalid_arguments
//	unrecorded tool, bad key           400 bad_request
//	unrecorded tool, busy              503 unavailable
//	unrecorded tool, crowded           503 unavailable in the upper half; known keys go on
//	unrecorded tool, stopping          503 unavailable
//	body too large                     413 payload_too_large
//	other media type                   415 unsupported_media_type
//	queue full                         503 unavailable; known keys go on
//	stopping                           503 unavailable; known keys go on
//	crowded                            503 unavailable; the lower half may wait
//	bug                                500 internal, effect unknown, no details
//	fault on purpose, not allowed      400 bad_request
//	fault on purpose                   no answer, or 500 internal
//
//	Reading
//	call by id                         200 call; 404 not_found, malformed ids too
//	call by id, wait                   200 at the next end, or as it is
//	call by key in the path            200 call; any allowed byte, decoded once
//	call by key in the header          200 call; 404 not_found; 400 without a key
//	call past its window               200 until it is swept, then 410 key_expired
//	list                               200 newest first, filters, pages
//	list, bad query                    400 bad_request; foreign cursors too
//	audit                              200 events, pages
//	effects                            200 rows of the ledger, pages
//	effects as a stream                200 the whole ledger, a row a line
//	stats                              200 totals and counts
//	tools                              200 declarations
//	health                             200 at any load
//	readiness                          200 and how many calls are held; 503 with the reason
//	description                        200 openapi.yaml
//
//	Deciding a held call
//	resolve as succeeded               200 call; one effect
//	resolve as failed                  200 call
//	resolve as retry                   200 call, pending
//	resolve what is not held           409 not_held, with the status
//	resolve, bad body                  400 bad_request
//
//	Everywhere
//	no such route                      404 not_found
//	unknown query parameter            400 bad_request, except on probes
//	other method                       405 method_not_allowed, Allow
//	header section too large           431 headers_too_large
//
// An answer about a key (every answer to POST /v1/tool-calls, and to a look-up by
// key) also carries the key as it was received, if it is valid, Idempotent-Replayed,
// and the call's id in Idemd-Call-Id where there is one.
//
// # Choices
//
// Where RFCs and common sense leave room: null for an optional member is a wrong
// type, since null is not absent in the canonical form either. client_id has at
// most 255 bytes and no control characters. A content coding of the body is
// 415. Of several waits in Prefer the first one counts, also where it cannot be
// read. In a query an empty parameter counts as absent, and an unknown one is
// 400 on every route except /healthz, /readyz and /openapi.yaml: what somebody
// asked for and did not get would go unnoticed, and a key in a path whose question
// mark nobody encoded would be another key. Preference-Applied says that the wait was handed on, also where the answer
// came at once; a tool that keeps no record is always waited for, so it says nothing
// there. The window of a tool is a duration as Go writes it. A traceparent that is
// not valid is dropped and refuses nothing. A key that is missing is noticed after the
// body was read, since the tool says whether one is needed; a key that is none before.
//
// Accept chooses between two forms of an error, and nothing is ever 406: plain
// JSON goes to whoever does not prefer a problem document, by quality, then by
// the more exact name, then by order. Its type is urn:idemd:error: and the code;
// its instance is the path of the call, where there is one.
package httpapi
