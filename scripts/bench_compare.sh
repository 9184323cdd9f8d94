#!/usr/bin/env bash
# Compares the speed of a commit with that of the present tree, the only way that
# is fair on a machine that does other things too: both programs are measured on
# it in turns, A B A B, by the present tree's generator, each beside its control.
#
# The commit is built in a worktree of its own, outside the tree, which is removed
# however this ends. Nothing in the tree is touched. Needs bash, git and Go.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: scripts/bench_compare.sh COMMIT

  A is COMMIT, B is the present tree with whatever is not committed in it.

From the environment, with defaults:
  PROFILE=distinct,replay  what is measured (bench run --list)
  RUNS=5                   how often each is; fewer cannot tell a difference from noise
  DURATION=3s              of each series
  CONNECTIONS=64, RATE=    a closed loop over so many; or so many requests a second
  ENGINE=vegeta            what sends
  THRESHOLD=10%            how much worse is a regression, if it is beyond the noise
  DIR=                     where data directories are made: decides which disk (temporary directory)
  OUT=                     keep the results (a, b), compare.txt and compare.svg in this new directory
  BENCH=                   the generator (built from the present tree)

Exit code: 0 no regression, 1 a regression, 2 usage, 3 nothing, or not everything,
could be judged, 4 a program could not be built or measured.
USAGE
}

case ${1-} in
  -h | --help) usage; exit 0 ;;
esac
if [ $# -ne 1 ] || [ -z "$1" ]; then
  usage >&2
  exit 2
fi

say() { echo "bench_compare.sh: $*" >&2; }

cd "$(dirname "$0")/.."
base=$1
runs=${RUNS:-5}
out=${OUT:-}
case $runs in
  '' | *[!0-9]* | 0*) say "RUNS is $runs, not a number above 0"; exit 2 ;;
esac
if [ -n "$out" ] && [ -e "$out" ]; then
  say "OUT: $out is there already"
  exit 2
fi
commit=$(git rev-parse --verify --quiet "$base^{commit}") || { say "git knows no commit $base"; exit 2; }

work=$(mktemp -d)
child=

clean_up() {
  if [ -n "$child" ]; then # it stops the servers that it started
    kill "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  # Not by git worktree prune: it would forget others that are not there just now.
  if [ -e "$work/tree" ]; then
    git worktree remove --force "$work/tree" || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# In the background, so that a signal is heard while it runs, and in a process group
# of its own: Ctrl-C is for this script, and two signals would end bench before it has
# cleaned up.
set -m
attend() {
  local status=0
  "$@" &
  child=$!
  wait "$child" || status=$?
  child=
  return "$status"
}

export CGO_ENABLED=0
export GOFLAGS="-buildvcs=false ${GOFLAGS:-}"

build() { # DIRECTORY VERSION PACKAGE PROGRAM
  attend go build -C "$1" -trimpath -ldflags "-X main.version=$2" -o "$4" "$3" ||
    { say "$3 of $2 could not be built"; exit 4; }
}

a=$(git describe --always "$commit")
b=$(git describe --always --dirty)
say "building A, $a, and B, $b"
git -c core.hooksPath=/dev/null worktree add --quiet --detach "$work/tree" "$commit"
build "$work/tree" "$a" ./cmd/idemd "$work/idemd-a"
build "$PWD" "$b" ./cmd/idemd "$work/idemd-b"
bench=${BENCH:-$work/bench}
[ -n "${BENCH:-}" ] || build "$PWD" "$b" ./cmd/bench "$bench"

options=(--profile "${PROFILE:-distinct,replay}" --runs 1 --duration "${DURATION:-3s}"
  --connections "${CONNECTIONS:-64}" --engine "${ENGINE:-vegeta}")
[ -z "${RATE:-}" ] || options+=(--rate "$RATE")
[ -z "${DIR:-}" ] || options+=(--dir "$DIR")

measure() { # a|b VERSION NUMBER
  local to="$work/$1.$3" status=0
  say "run $3 of $runs: ${1^^}, $2"
  attend "$bench" run "${options[@]}" --idemd "$work/idemd-$1" --out "$to" >"$work/screen" || status=$?
  if [ ! -e "$to/results.json" ]; then
    say "it could not be measured (exit code $status)"
    exit 4
  fi
}

from_a=() from_b=()
for i in $(seq "$runs"); do
  measure a "$a" "$i"
  measure b "$b" "$i"
  from_a+=("$work/a.$i") from_b+=("$work/b.$i")
done
"$bench" merge --out "$work/a" "${from_a[@]}" || exit 4
"$bench" merge --out "$work/b" "${from_b[@]}" || exit 4

status=0
"$bench" compare "$work/a" "$work/b" --threshold "${THRESHOLD:-10%}" --svg "$work/compare.svg" >"$work/compare.txt" || status=$?
cat "$work/compare.txt"
if [ -n "$out" ]; then
  mkdir -p "$out"
  cp -R "$work/a" "$work/b" "$work/compare.txt" "$out"
  [ ! -e "$work/compare.svg" ] || cp "$work/compare.svg" "$out"
fi
exit "$status"
