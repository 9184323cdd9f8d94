package tool

import (
	"strings"
	"testing"
)

const httpRelations = `version: 1
tools:
- name: a
  effects: external
  timeout: 5s
  rerun: hold
  http:
    method: POST
    url: https://h/p
    headers: {X: y}
    effect_key: {header: Idempotency-Key, downstream: ignores}
    success: [200]
    final: [400]
    retryable: [429]
`

const commandRelations = `version: 1
tools:
- name: a
  effects: external
  timeout: 5s
  rerun: hold
  command:
    argv: [/bin/prog, "{effect_id}"]
    env: {A: b}
    final_exit: [1]
    retryable_exit: [75]
`

const verifyRelations = `version: 1
tools:
- name: a
  effects: external
  timeout: 5s
  rerun: verify
  http:
    method: POST
    url: https://h/p
    effect_key: {header: Idempotency-Key, downstream: ignores}
    success: [200]
  verify:
    method: GET
    url: https://h/q/{effect_id}
    found: [200]
    absent: [404]
    settle: 5s
`

// Each relation, broken by itself, at its place; and next to it what is allowed.
func TestRelations(t *testing.T) {
	const ok = ""
	const never = "; leave it out, so that the outcome counts as unknown"
	for _, tc := range []struct {
		name, base string
		edits      []string // old, new, old, new …
		want       string   // after the file's name
	}{
		{"http as it is", httpRelations, nil, ok},
		{"command as it is", commandRelations, nil, ok},
		{"verify as it is", verifyRelations, nil, ok},

		{"effects local", httpRelations, []string{"effects: external", "effects: local"}, `4:12: tool a, effects: must be none or external; it is "local"`},
		{"effects missing", httpRelations, []string{"  effects: external\n", ""}, "3:3: tool a: effects is missing; say none (it only reads, or computes) or external (it changes something outside)"},
		{"record false of an effect", httpRelations, []string{"rerun: hold", "record: false"}, "6:11: tool a, record: record: false is for effects: none only; an effect without a record could not be kept from happening twice"},
		{"record true of an effect", httpRelations, []string{"rerun: hold", "record: true"}, ok},
		{"neither http nor command", "version: 1\ntools:\n- name: a\n  effects: external\n", nil, "3:3: tool a: nothing says how it is run; give it http or command"},
		{"http and command", httpRelations, []string{"  http:", "  command: {argv: [/bin/prog]}\n  http:"}, "7:3: tool a, command: a tool has http or command, not both"},

		{"none: no key", httpRelations, []string{"external", "none", "  rerun: hold\n", ""}, "10:5: tool a, http.effect_key: a tool with effects: none has no effect id; leave it out"},
		{"none", httpRelations, []string{"external", "none", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, ok},
		{"none: rerun", httpRelations, []string{"external", "none", "hold", "rerun", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, ok},
		{"none: hold", httpRelations, []string{"external", "none", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, "6:10: tool a, rerun: a tool with effects: none can always run again; say rerun, or leave it out"},
		{"none: effect id in the URL", httpRelations, []string{"external", "none", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", "", "h/p", "h/{effect_id}"}, "8:10: tool a, http.url: a tool with effects: none has no effect id"},
		{"none: 5xx retryable", httpRelations, []string{"external", "none", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", "", "[429]", "[408, 409, 503]"}, ok},
		{"none: verify", verifyRelations, []string{"external", "none", "  rerun: verify\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, "10:3: tool a, verify: a tool with effects: none has nothing to ask about; leave it out"},
		{"none: GET", httpRelations, []string{"external", "none", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", "", "POST", "GET"}, ok},
		{"none: no attempts without a record", httpRelations, []string{"external", "none\n  record: false\n  max_attempts: 3", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, "6:17: tool a, max_attempts: with record: false nobody counts attempts; leave it out"},
		{"none: no crashes without a record", httpRelations, []string{"external", "none\n  record: false\n  max_crashes: 3", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, "6:16: tool a, max_crashes: with record: false nobody counts crashes; leave it out"},

		{"rerun where it is ignored", httpRelations, []string{"hold", "rerun"}, "6:10: tool a, rerun: rerun would do it twice: the downstream is declared to ignore the effect id; say verify or hold"},
		{"rerun by default where it is ignored", httpRelations, []string{"  rerun: hold\n", "", "version: 1", "version: 1\ndefaults: {rerun: rerun}"}, "4:3: tool a, rerun: rerun would do it twice: the downstream is declared to ignore the effect id; say verify or hold"},
		{"rerun where it is honoured", httpRelations, []string{"hold", "rerun", "ignores", "honours"}, ok},
		{"hold by default", httpRelations, []string{"  rerun: hold\n", ""}, ok},
		{"downstream missing", httpRelations, []string{", downstream: ignores", ""}, "11:5: tool a, http.effect_key: downstream is missing; say whether the other side does a thing once for each effect id, however often it is asked: honours or ignores"},
		{"verify without a question", httpRelations, []string{"hold", "verify"}, "6:10: tool a, rerun: rerun: verify needs verify, which says how downstream is asked; else say hold"},
		{"a question without verify", verifyRelations, []string{"rerun: verify", "rerun: hold"}, "12:3: tool a, verify: it is asked only with rerun: verify"},
		{"a question and rerun", verifyRelations, []string{"rerun: verify", "rerun: rerun", "ignores", "honours"}, "12:3: tool a, verify: it is asked only with rerun: verify"},

		{"GET of an effect", httpRelations, []string{"POST", "GET"}, "8:13: tool a, http.method: GET must change nothing, and whoever is in between may repeat it; use POST, or say effects: none"},
		{"HEAD of an effect", httpRelations, []string{"POST", "HEAD"}, "8:13: tool a, http.method: HEAD must change nothing, and whoever is in between may repeat it; use POST, or say effects: none"},
		{"other method", httpRelations, []string{"POST", "TRACE"}, "8:13: tool a, http.method: must be POST, PUT, PATCH or DELETE, or GET or HEAD for a tool with effects: none, in upper case"},
		{"no method", httpRelations, []string{"    method: POST\n", ""}, "7:3: tool a, http: method is missing; say POST, PUT, PATCH or DELETE, or GET or HEAD for a tool with effects: none"},

		{"URL: no scheme", httpRelations, []string{"https://h/p", "h/p"}, "9:10: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH"},
		{"URL: no host", httpRelations, []string{"https://h/p", "https:///p"}, "9:10: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH"},
		{"URL: a port alone", httpRelations, []string{"https://h/p", "https://:80/p"}, "9:10: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH"},
		{"URL: upper case scheme", httpRelations, []string{"https://h/p", "HTTPS://h/p"}, ok},
		{"URL: nonsense", httpRelations, []string{"https://h/p", "'https://h/%zz'"}, "9:10: tool a, http.url: must be a URL, https://HOST/PATH"},
		{"URL: a name in it", httpRelations, []string{"https://h/p", "https://me:canary@h/p"}, "9:10: tool a, http.url: must not hold a name and a password; put them into a header: Authorization: Basic ${CREDENTIALS}"},
		{"URL: fragment", httpRelations, []string{"https://h/p", "https://h/p#x"}, "9:10: tool a, http.url: must not have a fragment (#), which is never sent"},
		{"URL: empty fragment", httpRelations, []string{"https://h/p", "'https://h/p#'"}, "9:10: tool a, http.url: must not have a fragment (#), which is never sent"},
		{"URL: port", httpRelations, []string{"https://h/p", "https://h:65536/p"}, "9:10: tool a, http.url: the port must be from 1 to 65535"},
		{"URL: empty port", httpRelations, []string{"https://h/p", "https://h:/p"}, "9:10: tool a, http.url: the port must be from 1 to 65535"},
		{"URL: IPv6", httpRelations, []string{"https://h/p", "https://[::1]:8443/p"}, ok},
		{"URL: blank", httpRelations, []string{"https://h/p", "'https://h/a b'"}, "9:10: tool a, http.url: must not have blanks; write %20"},
		{"URL: host by effect id", httpRelations, []string{"https://h/p", "'https://{effect_id}.h/p'"}, "9:10: tool a, http.url: the host is fixed; {effect_id} can stand only in the path and in the query"},
		{"URL: port by effect id", httpRelations, []string{"https://h/p", "'https://h:{effect_id}'"}, "9:10: tool a, http.url: the host is fixed; {effect_id} can stand only in the path and in the query"},
		{"URL: fragment by effect id", httpRelations, []string{"https://h/p", "'https://h/#{effect_id}'"}, "9:10: tool a, http.url: must not have a fragment (#), which is never sent"},
		{"URL: another name", httpRelations, []string{"https://h/p", "'https://h/{order_id}'"}, "9:10: tool a, http.url: {effect_id} is all that can stand in braces; args go in the body, or in the query of a GET"},
		{"URL: host by variable", httpRelations, []string{"https://h/p", "'https://${HOST}/p'"}, "9:10: tool a, http.url: a variable can stand only in the path and in the query: the host is fixed"},
		{"URL: all by variable", httpRelations, []string{"https://h/p", "'${HOST}'"}, "9:10: tool a, http.url: a variable can stand only in the path and in the query: the host is fixed"},
		{"URL: effect id", httpRelations, []string{"https://h/p", "https://h/{effect_id}?a={effect_id}", "header: Idempotency-Key, ", ""}, ok},

		{"URL: effect id before all", httpRelations, []string{"https://h/p", "'{effect_id}https://h/p'"}, "9:10: tool a, http.url: must be a URL, https://HOST/PATH"},
		{"URL: effect id in the scheme", httpRelations, []string{"https://h/p", "'http{effect_id}://h/p'"}, "9:10: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH"},
		{"URL: effect id before the host", httpRelations, []string{"https://h/p", "'https:{effect_id}//h/p'"}, "9:10: tool a, http.url: must be a whole URL, https://HOST/PATH or http://HOST/PATH"},
		{"URL: effect id, escaped", httpRelations, []string{"https://h/p", "https://h/%7Beffect_id%7D"}, "9:10: tool a, http.url: {effect_id} must be written as it is, without %7B"},
		{"URL: effect id as a variable", httpRelations, []string{"https://h/p", "'https://h/${effect_id}'"}, "9:10: tool a, http.url: the effect id is {effect_id}, without the $"},

		{"header: effect id", httpRelations, []string{"{X: y}", "{X: 'id {effect_id}'}"}, "10:18: tool a, http.headers.X: {effect_id} is not replaced in a header; say effect_key: {header: NAME, ...} for it"},
		{"header: effect id as a variable", httpRelations, []string{"{X: y}", "{X: '${effect_id}'}"}, "10:18: tool a, http.headers.X: the effect id is {effect_id}, without the $"},
		{"header: host", httpRelations, []string{"{X: y}", "{Host: 'canary:8443'}"}, ok},
		{"header: host, blank", httpRelations, []string{"{X: y}", "{host: 'canary x'}"}, "10:21: tool a, http.headers.Host: must be HOST or HOST:PORT"},
		{"header: host, path", httpRelations, []string{"{X: y}", "{Host: canary/x}"}, "10:21: tool a, http.headers.Host: must be HOST or HOST:PORT"},
		{"header: host, name", httpRelations, []string{"{X: y}", "{Host: 'canary@x'}"}, "10:21: tool a, http.headers.Host: must be HOST or HOST:PORT"},
		{"header: name", httpRelations, []string{"{X: y}", "{'a b': y}"}, "10:22: tool a, http.headers.…: this cannot be the name of a header"},
		{"header: ours", httpRelations, []string{"{X: y}", "{content-length: '5'}"}, "10:31: tool a, http.headers.Content-Length: this header is not for a file to set; leave it out"},
		{"header: one key for all", httpRelations, []string{"{X: y}", "{Idempotency-Key: x}", "header: Idempotency-Key", "header: X-Id"}, "10:32: tool a, http.headers.Idempotency-Key: one value for all calls would make them one; say effect_key: {header: Idempotency-Key, ...}"},
		{"header: twice", httpRelations, []string{"{X: y}", "{X-a: y, x-A: z}"}, "10:28: tool a, http.headers.x-A: the header is there already, in another spelling"},
		{"header: line break", httpRelations, []string{"{X: y}", `{X: "canary\nY: z"}`}, "10:18: tool a, http.headers.X: the value of a header must not have line breaks or other control characters"},
		{"header: NUL", httpRelations, []string{"{X: y}", `{X: "canary\0"}`}, "10:18: tool a, http.headers.X: the value of a header must not have line breaks or other control characters"},
		{"header: a number", httpRelations, []string{"{X: y}", `{X: 31337}`}, "10:18: tool a, http.headers.X: must be text; it is a number; quote it if text is meant"},

		{"key: missing", httpRelations, []string{"    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, "7:3: tool a, http: effect_key is missing; say where the effect id goes, for example effect_key: {header: Idempotency-Key, downstream: ignores}"},
		{"key: nowhere", httpRelations, []string{"header: Idempotency-Key, ", ""}, "11:5: tool a, http.effect_key: say where the effect id goes: header: NAME, or pointer: /MEMBER of the body, or {effect_id} in the URL"},
		{"key: in two places", httpRelations, []string{"header: Idempotency-Key", "header: Idempotency-Key, pointer: /a"}, "11:5: tool a, http.effect_key: say header or pointer, not both"},
		{"key: header name", httpRelations, []string{"header: Idempotency-Key", "header: 'Idempotency Key'"}, "11:26: tool a, http.effect_key.header: this cannot be the name of a header"},
		{"key: header that means something", httpRelations, []string{"header: Idempotency-Key", "header: host"}, "11:26: tool a, http.effect_key.header: Host means something else; name another header, for example Idempotency-Key"},
		{"key: traceparent", httpRelations, []string{"header: Idempotency-Key", "header: traceparent"}, "11:26: tool a, http.effect_key.header: Traceparent means something else; name another header, for example Idempotency-Key"},
		{"key: header set as well", httpRelations, []string{"header: Idempotency-Key", "header: x"}, "11:26: tool a, http.effect_key.header: headers sets X as well; leave it out there"},
		{"key: pointer", httpRelations, []string{"header: Idempotency-Key", "pointer: /meta/key"}, ok},
		{"key: pointer to what args have", httpRelations, []string{"header: Idempotency-Key", "pointer: /meta/key", "  http:\n", "  input_schema: {type: object, properties: {meta: {properties: {key: {type: string}}}}}\n  http:\n"}, "12:27: tool a, http.effect_key.pointer: args have this member by input_schema, and a call that brings it along would be refused; name another, or leave it out there"},
		{"key: pointer beside what args have", httpRelations, []string{"header: Idempotency-Key", "pointer: /meta/key", "  http:\n", "  input_schema: {type: object, properties: {key: {}, meta: {properties: {id: true}}, a: false}}\n  http:\n"}, ok},
		{"key: pointer to all", httpRelations, []string{"header: Idempotency-Key", "pointer: /"}, "11:27: tool a, http.effect_key.pointer: must be a JSON pointer to a member of the body, for example /idempotency_key"},
		{"key: no pointer", httpRelations, []string{"header: Idempotency-Key", "pointer: key"}, "11:27: tool a, http.effect_key.pointer: must be a JSON pointer to a member of the body, for example /idempotency_key"},

		{"success: missing", httpRelations, []string{"    success: [200]\n", ""}, "7:3: tool a, http: success must name a status at least, for example success: [200, 201]"},
		{"success: empty", httpRelations, []string{"success: [200]", "success: []"}, "12:5: tool a, http.success: success must name a status at least, for example success: [200, 201]"},
		{"success: redirect", httpRelations, []string{"success: [200]", "success: [303]"}, "12:15: tool a, http.success[0]: 303 never says that it was done; redirects are not followed"},
		{"success: 5xx", httpRelations, []string{"success: [200]", "success: [200, 500]"}, "12:20: tool a, http.success[1]: 500 never says that it was done"},
		{"success: 1xx", httpRelations, []string{"success: [200]", "success: [200, 101]"}, "12:20: tool a, http.success[1]: 101 never says that it was done"},
		{"success: turned away", httpRelations, []string{"success: [200]", "success: [200, 401]"}, "12:20: tool a, http.success[1]: 401 never says that it was done"},
		{"success: not now", httpRelations, []string{"success: [200]", "success: [200, 425]"}, "12:20: tool a, http.success[1]: 425 never says that it was done"},
		{"success: not in time", httpRelations, []string{"success: [200]", "success: [200, 408]"}, "12:20: tool a, http.success[1]: 408 never says that it was done"},
		{"success: 409", httpRelations, []string{"success: [200]", "success: [200, 409]"}, ok},
		{"success: a class", httpRelations, []string{"success: [200]", "success: [2xx]"}, "12:15: tool a, http.success[0]: must be a whole number from 100 to 599, written with its digits; it is text"},
		{"success: out of range", httpRelations, []string{"success: [200]", "success: [200, 600]"}, "12:20: tool a, http.success[1]: must be a whole number from 100 to 599; it is 600"},
		{"final: 2xx", httpRelations, []string{"[400]", "[204]"}, "13:13: tool a, http.final[0]: 204 says that it was done, or may have been; it can be in success only"},
		{"retryable: 2xx", httpRelations, []string{"[429]", "[202]"}, "14:17: tool a, http.retryable[0]: 202 says that it was done, or may have been; it can be in success only"},
		{"final: 1xx", httpRelations, []string{"[400]", "[100]"}, "13:13: tool a, http.final[0]: 100 is never the last answer to a request"},
		{"final: 3xx", httpRelations, []string{"[400]", "[307]"}, ok},
		{"in success and final", httpRelations, []string{"success: [200]", "success: [200, 400]"}, "13:13: tool a, http.final[0]: the status 400 is in success as well; it can mean one thing only"},
		{"in success and retryable", httpRelations, []string{"success: [200]", "success: [200, 409]", "[429]", "[409]", "ignores", "honours"}, "14:17: tool a, http.retryable[0]: the status 409 is in success as well; it can mean one thing only"},
		{"in final and retryable", httpRelations, []string{"[400]", "[429]"}, "14:17: tool a, http.retryable[0]: the status 429 is in final as well; it can mean one thing only"},
		{"408 retryable, ignored", httpRelations, []string{"[429]", "[429, 408]"}, "14:22: tool a, http.retryable[1]: 408 does not say that nothing was done, and the downstream ignores the effect id" + never},
		{"409 retryable, ignored", httpRelations, []string{"[429]", "[409]"}, "14:17: tool a, http.retryable[0]: 409 does not say that nothing was done, and the downstream ignores the effect id" + never},
		{"500 retryable, ignored", httpRelations, []string{"[429]", "[500]"}, "14:17: tool a, http.retryable[0]: 500 does not say that nothing was done, and the downstream ignores the effect id" + never},
		{"503 final, ignored", httpRelations, []string{"[400]", "[503]"}, "13:13: tool a, http.final[0]: 503 does not say that nothing was done, and the downstream ignores the effect id" + never},
		{"503 final, honoured", httpRelations, []string{"[400]", "[503]", "ignores", "honours"}, "13:13: tool a, http.final[0]: 503 does not say that nothing was done, so that it cannot be for good; call it retryable, which goes out with the same effect id, or leave it out"},
		{"503 final, no effect", httpRelations, []string{"[400]", "[503]", "external", "none", "  rerun: hold\n", "", "    effect_key: {header: Idempotency-Key, downstream: ignores}\n", ""}, ok},
		{"408, 409, 5xx retryable, honoured", httpRelations, []string{"[429]", "[408, 409, 500, 503, 599]", "ignores", "honours"}, ok},

		{"command: relative", commandRelations, []string{"/bin/prog", "prog"}, "8:12: tool a, command.argv[0]: the program must be an absolute path, /usr/bin/prog: there is no shell and no PATH"},
		{"command: program by effect id", commandRelations, []string{"/bin/prog", "'/bin/{effect_id}'"}, "8:12: tool a, command.argv[0]: the program must be an absolute path, /usr/bin/prog: there is no shell and no PATH"},
		{"command: empty", commandRelations, []string{`[/bin/prog, "{effect_id}"]`, "[]"}, "7:3: tool a, command: argv must name the program"},
		{"command: missing", commandRelations, []string{`    argv: [/bin/prog, "{effect_id}"]` + "\n", ""}, "7:3: tool a, command: argv is missing; say the program and its arguments, [/usr/bin/prog, arg]"},
		{"command: too many", commandRelations, []string{"/bin/prog", "/bin/prog" + strings.Repeat(", a", 99)}, "8:5: tool a, command.argv: at most 100 are allowed; there are 101"},
		{"command: NUL", commandRelations, []string{"/bin/prog", `/bin/prog, "a\0"`}, "8:23: tool a, command.argv[1]: must not have a NUL"},
		{"command: a secret in argv", commandRelations, []string{"/bin/prog", "/bin/prog, '${TOKEN}'"}, "8:23: tool a, command.argv[1]: a variable ${...} can stand only in a URL, in the value of a header and in a value of env; write $${ for the characters ${"},
		{"command: env name", commandRelations, []string{"{A: b}", "{1A: b}"}, "9:15: tool a, command.env.1A: this cannot be the name of a variable: letters, digits and _, no digit first"},
		{"command: env NUL", commandRelations, []string{"{A: b}", `{A: "canary\0"}`}, "9:14: tool a, command.env.A: the value must not have a NUL"},
		{"command: env lines", commandRelations, []string{"{A: b}", `{A: "a\nb"}`}, ok},
		{"command: codes in both", commandRelations, []string{"[75]", "[75, 1]"}, "11:26: tool a, command.retryable_exit[1]: the exit code 1 is in final_exit as well; it can mean one thing only"},
		{"command: rerun", commandRelations, []string{"hold", "rerun"}, "6:10: tool a, rerun: rerun would do it twice: say downstream: honours under command, if what the program asks does a thing once for each effect id, or say verify or hold"},
		{"command: rerun, ignored", commandRelations, []string{"hold", "rerun", "    env:", "    downstream: ignores\n    env:"}, "6:10: tool a, rerun: rerun would do it twice: say downstream: honours under command, if what the program asks does a thing once for each effect id, or say verify or hold"},
		{"command: rerun, honoured", commandRelations, []string{"hold", "rerun", "    env:", "    downstream: honours\n    env:"}, ok},
		{"command: honoured by env", commandRelations, []string{"hold", "rerun", "    env:", "    downstream: honours\n    env:", `, "{effect_id}"`, "", "A: b", `A: "id={effect_id}"`}, ok},
		{"command: honoured and not told", commandRelations, []string{`, "{effect_id}"`, "", "    env:", "    downstream: honours\n    env:"}, "9:17: tool a, command.downstream: nothing can honour an effect id that it does not get; put {effect_id} into argv or env"},
		{"command: not told", commandRelations, []string{`, "{effect_id}"`, ""}, ok},
		{"command: none and downstream", commandRelations, []string{"external", "none", "  rerun: hold\n", "", "    env:", "    downstream: ignores\n    env:"}, "8:17: tool a, command.downstream: a tool with effects: none has no effect id; leave it out"},
		{"command: asked about, not told", commandRelations, []string{`, "{effect_id}"`, "", "rerun: hold", "rerun: verify\n  verify: {method: GET, url: 'https://h/{effect_id}', found: [200], absent: [404]}"}, "8:3: tool a, command: verify asks for the effect id, which the program does not get; put {effect_id} into argv or env"},

		{"verify: POST", verifyRelations, []string{"GET", "POST"}, "13:13: tool a, verify.method: must be GET or HEAD: a question must change nothing"},
		{"verify: HEAD", verifyRelations, []string{"GET", "HEAD"}, ok},
		{"verify: without effect id", verifyRelations, []string{"/{effect_id}", ""}, "14:10: tool a, verify.url: must have {effect_id} in its path or its query: it asks about one effect"},
		{"verify: host", verifyRelations, []string{"https://h/q/{", "https://{"}, "14:10: tool a, verify.url: the host is fixed; {effect_id} can stand only in the path and in the query"},
		{"verify: headers", verifyRelations, []string{"    found:", "    headers: {Connection: close}\n    found:"}, "15:27: tool a, verify.headers.Connection: this header is not for a file to set; leave it out"},
		{"verify: effect id in a header", verifyRelations, []string{"    found:", "    headers: {X: '{effect_id}'}\n    found:"}, "15:18: tool a, verify.headers.X: {effect_id} is not replaced in a header; put it into verify.url"},
		{"verify: found missing", verifyRelations, []string{"    found: [200]\n", ""}, "12:3: tool a, verify: found is missing; say which statuses mean that it was done, for example [200]"},
		{"verify: found empty", verifyRelations, []string{"found: [200]", "found: []"}, "12:3: tool a, verify: found must name a status at least, for example found: [200]"},
		{"verify: absent empty", verifyRelations, []string{"[404]", "[]"}, "12:3: tool a, verify: absent must name a status at least, for example absent: [404]"},
		{"verify: found elsewhere", verifyRelations, []string{"found: [200]", "found: [304]"}, "15:13: tool a, verify.found[0]: 304 does not say that it was found; found takes statuses from 200 to 299"},
		{"verify: both", verifyRelations, []string{"[404]", "[404, 200]"}, "16:19: tool a, verify.absent[1]: the status 200 is in found as well; it can mean one thing only"},
		{"verify: absent 2xx", verifyRelations, []string{"[404]", "[404, 410, 204]"}, ok},
		{"verify: absent, server down", verifyRelations, []string{"[404]", "[404, 503]"}, "16:19: tool a, verify.absent[1]: 503 says nothing about the effect, and a wrong absent runs the tool twice; leave it out, so that the question is asked again"},
		{"verify: absent, not allowed", verifyRelations, []string{"[404]", "[401]"}, "16:14: tool a, verify.absent[0]: 401 says nothing about the effect, and a wrong absent runs the tool twice; leave it out, so that the question is asked again"},
		{"verify: settle under the time-out", verifyRelations, []string{"settle: 5s", "settle: 4999ms"}, "17:13: tool a, verify.settle: it must be at least timeout (5s): until then downstream may still be at work"},
		{"verify: settle by default", verifyRelations, []string{"    settle: 5s\n", ""}, ok},
		{"verify: settle without a time-out", verifyRelations, []string{"  timeout: 5s\n", ""}, "16:13: tool a, verify.settle: it must be at least timeout, so say that as well"},
		{"verify: settle, and a broken time-out by default", verifyRelations, []string{"  timeout: 5s\n", "", "version: 1", "version: 1\ndefaults: {timeout: 6}"}, "2:21: defaults.timeout: a duration needs its unit; write 6s for seconds"},
		{"verify: and a broken rerun by default", verifyRelations, []string{"  rerun: verify\n", "", "version: 1", "version: 1\ndefaults: {rerun: ask}"}, `2:19: defaults.rerun: must be rerun, verify or hold; it is "ask"`},
		{"verify: time-out by default", verifyRelations, []string{"  timeout: 5s\n", "", "version: 1", "version: 1\ndefaults: {timeout: 6s}"}, "17:13: tool a, verify.settle: it must be at least timeout (6s): until then downstream may still be at work"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := tc.base
			for i := 0; i < len(tc.edits); i += 2 {
				if !strings.Contains(text, tc.edits[i]) {
					t.Fatalf("there is no %q", tc.edits[i])
				}
				text = strings.Replace(text, tc.edits[i], tc.edits[i+1], 1)
			}
			specs, faults := loadText(t, text, variables{"HOST": "h", "TOKEN": "canary"})
			if tc.want == ok {
				wantFaults(t, faults)
				for _, s := range specs {
					if err := s.Validate(); err != nil {
						t.Error(err)
					}
				}
				return
			}
			wantFaults(t, faults, "f:"+tc.want)
		})
	}
}
