// Package bench measures idemd from outside, honestly: over sockets, as a process
// of its own, beside a control in the same run, with its counts checked.
//
// What it promises:
//
//   - A request's latency counts from when it was due. At a set rate that is by
//     the schedule, whatever the answers before it did, so that a stall is seen by
//     every request that it kept waiting, also by those that could not be sent
//     meanwhile. In a closed loop a request is due when its connection is free.
//   - A generator that could not keep its own schedule voids the figures and says so.
//   - Every series has a control: the same requests, sent the same way, to a
//     handler that reads the body, answers as many bytes and does nothing. The two
//     take turns. The ratio to the control is what may be compared between machines
//     and commits; absolute figures are of one machine at one time.
//   - After every series the server's own counts must agree with the answers that
//     were read, or the figures are void: a server that is fast because it forgets
//     is not fast. And every answer must be the right one, but where the daemon is
//     killed: a refusal is quick, and no figure of what was refused.
//   - No request is sent twice by anything below.
//
// What it does not promise: that the machine was quiet. Its load, the time of an
// fsync and the CPU that generator and server took are measured in the same run
// and shown, and repeats say how far figures move by themselves.
//
// [Run] measures, [Recording.Save] keeps it, [WriteScreen] shows it.
// [Open], [Merge] and [Compare] set results side by side, [Report] files them. It
// may import the standard library, idem, client, Vegeta and HdrHistogram.
package bench
