#!/usr/bin/env bash
# Injects faults into idemd, step by step with curl, and shows the evidence: every
# try, what reconciling the ledger says, the counts, and the audit trail.
#
# It starts servers of its own on free loopback ports and on a temporary store,
# needs no root, and leaves nothing behind. Needs bash and curl.
set -u

usage() {
  cat <<'USAGE'
usage: scripts/fault_inject.sh [--dry-run] [--drop-response] [--crash] [--concurrent]

  --drop-response  the server does its work and its answer is lost, twice
  --crash          the server dies at each point on the way of a call
  --concurrent     20 requests for one key at once
  --dry-run        only print the commands

Without a fault, all of them. IDEMD names the binary (default: bin/idemd beside
the directory of this script).
Exit code: 0 all as it should be, 1 something is not, 2 usage, 3 cannot begin.
USAGE
}

dry=false
faults=()
for arg in "$@"; do
  case $arg in
    --dry-run) dry=true ;;
    --drop-response | --crash | --concurrent) faults+=("${arg#--}") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "fault_inject.sh: unknown argument $arg" >&2; usage >&2; exit 2 ;;
  esac
done
[ ${#faults[@]} -gt 0 ] || faults=(drop-response crash concurrent)

idemd=${IDEMD:-$(dirname "$0")/../bin/idemd}
# What is set for somebody's idemd, or for somebody's way out of the house, must
# not reach these.
unset "${!IDEMD_@}" http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
if ! $dry; then
  command -v curl >/dev/null || { echo "fault_inject.sh: curl is not installed" >&2; exit 3; }
  command -v "$idemd" >/dev/null || { echo "fault_inject.sh: no $idemd; run make build" >&2; exit 3; }
fi

work=
server=
proxy=
pid= # what was started last
failed=0

gone() { # PID: waits until a process of ours has ended, and makes it, if it does not
  local i
  for i in $(seq 200); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  kill -9 "$1" 2>/dev/null
}

stop() { # PID or nothing: ends a process of ours
  [ -z "$1" ] || { kill "$1" 2>/dev/null; gone "$1"; }
}

clean_up() {
  # A signal may come while a program starts, even before its number is in pid.
  stop "${!:-}"
  stop "$pid"
  stop "$proxy"
  stop "$server"
  [ -z "$work" ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n== %s\n' "$*"; }

# display prints a command as it could be typed.
display() {
  local word line='$' quote="'\\''"
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*) line+=" '${word//\'/$quote}'" ;;
      *) line+=" $word" ;;
    esac
  done
  echo "$line"
}

# show displays a command, and runs it unless this is a dry run.
show() {
  display "$@"
  $dry || "$@"
}

# listening NAME COMMAND...: starts a program that says where it listens, waits for
# that, and sets url and pid. What it says goes to NAME.log.
listening() {
  local name=$1 i
  shift
  url=http://127.0.0.1:PORT pid=
  echo "$(display "$@") &"
  $dry && return
  "$@" >>"$work/$name.out" 2>"$work/$name.log" &
  pid=$!
  disown "$pid" # its death is no news to the shell
  for i in $(seq 1200); do
    url=$(sed -n 's/.* listening on \(http.*\)/\1/p' "$work/$name.log")
    [ -z "$url" ] || return 0
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  echo "fault_inject.sh: $name did not start:" >&2
  cat "$work/$name.log" >&2
  exit 3
}

serve() {
  listening server "$idemd" serve --data "$work/data" --listen 127.0.0.1:0 --chaos --log-level warn
  server=$pid server_url=$url
}

begin() { # a fresh store
  server='' proxy=''
  if $dry; then work=TMP; else
    work=$(mktemp -d "${TMPDIR:-/tmp}/idemd-fault.XXXXXX") || exit 3
  fi
  serve
}

# post HOW URL KEY [HEADER]: one try, which is one request: curl does not retry.
# Its status is 000 where there was no answer.
post() {
  local how=$1 to=$2 key=$3
  shift
  $how curl -q -sS --max-time 30 -o /dev/null -w 'status %{http_code}, replayed: %header{idempotent-replayed}\n' -X POST "$to/v1/tool-calls" \
    -H "Idempotency-Key: $key" -H 'Content-Type: application/json' -H 'Prefer: wait=10' ${3:+-H "$3"} \
    -d '{"tool":"charge","args":{"amount":100}}'
}

# judge KEY...: the ledger has each key's effect once, and nothing else.
judge() {
  local key
  say "judged on the ledger"
  $dry || for key in "$@"; do echo "\"$key\""; done >"$work/expected.jsonl"
  show "$idemd" reconcile --ledger "$server_url" --expected "$work/expected.jsonl" || failed=1
  show "$idemd" stats --url "$server_url"
}

timeline() { # KEY: what happened to its call
  local id=CALL_ID
  $dry || id=$("$idemd" find "$1" --url "$server_url" --json | sed -n 's/.*"call_id": *"\([^"]*\)".*/\1/p')
  show "$idemd" audit "$id" --url "$server_url"
}

finish() {
  stop "$proxy"
  stop "$server"
  proxy='' server='' pid=''
  $dry || rm -rf "$work"
  work=
}

drop_response() {
  say "the answer is lost, twice; the client asks again with the same key"
  begin
  listening proxy "$idemd" proxy --upstream "$server_url" --mode drop-response --methods POST --first-per-key 2
  proxy=$pid
  local try
  for try in 1 2 3; do
    echo "try $try:"
    post show "$url" order-1001 # the first two get no answer
  done
  judge order-1001
  timeline order-1001
  finish
}

crash() {
  say "the server dies at each point on the way of a call; it is started again, and the client asks again"
  begin
  local point keys=()
  for point in after_create after_claim after_dispatch before_commit after_commit before_reply; do
    keys+=("order-$point")
    echo "try 1, $point:"
    post show "$server_url" "order-$point" "Idemd-Chaos: $point=exit"
    $dry || gone "$server"
    serve
    echo "try 2:"
    post show "$server_url" "order-$point"
  done
  judge "${keys[@]}"
  timeline order-after_commit
  finish
}

concurrent() {
  say "20 requests for one key at once"
  begin
  local i pids=()
  post display "$server_url" order-2001
  $dry || {
    for i in $(seq 20); do
      post '' "$server_url" order-2001 &
      pids+=($!)
    done
    wait "${pids[@]}"
  }
  judge order-2001
  timeline order-2001
  finish
}

for fault in "${faults[@]}"; do
  "${fault//-/_}"
done

$dry && exit 0
if [ $failed = 0 ]; then say "all as it should be"; else say "NOT as it should be"; fi
exit $failed
