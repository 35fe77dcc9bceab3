#!/usr/bin/env bash
# The tables of docs/distributed.md are those of the simulator. Only rows of few ranks are computed again.
set -euo pipefail

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

program=tests/benchmarks/simulator/simulate_ranks
out=${TEST_TMPDIR:?}/out

$program --ranks 2,4,8,16 >"$out"
[ "$(grep -c '^|' "$out")" = 12 ] || { cat "$out" >&2; fail "the tables have other rows"; }
while read -r line; do
  [ -z "$line" ] || grep -qxF -- "$line" docs/distributed.md || fail "docs/distributed.md lacks the line $line"
done <"$out"

$program --call all_reduce --machines 1,1,1,1 --bytes 100000000 --gigabits 0.4 >"$out"
grep -qE '^all_reduce at 0.4 Gbit/s: 3\.[12][0-9]* s, 150(\.[0-9]+)? MB sent .* of its link, [0-9]+ messages$' "$out" ||
  { cat "$out" >&2; fail "the time of an all-reduce"; }
! $program --gigabits fast >"$out" 2>&1 || fail "there is no such speed"
grep -qF 'error: --gigabits must be numbers above 0 but has "fast"' "$out" || { cat "$out" >&2; fail "no error"; }
! $program --models huge --ranks 2 >"$out" 2>&1 || fail "there is no such model"
echo passed
