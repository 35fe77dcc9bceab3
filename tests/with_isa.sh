#!/usr/bin/env bash
# Runs a test as processors of lower levels would: with_isa.sh TEST [LEVEL...], with LEVEL as for LATHE_MAX_ISA, and all
# levels by default. Skips a level that this processor doesn't have, and its own, at which the test runs by itself.
# with_isa.sh --settings LEVEL prints the environment variables that it sets, one a line, and nothing if this processor
# doesn't have the level.
set -euo pipefail

# The flags that core/base/isa.cc asks for, as the system names them (LZCNT is "abm" there). Above level 5, oneDNN has
# products for AMX.
level3=(avx2 fma bmi1 bmi2 f16c movbe abm)
level4=("${level3[@]}" avx512f avx512bw avx512cd avx512dq avx512vl)
level5=("${level4[@]}" avx512_bf16)
flags=" $(sed -n '/^flags/{s/^[^:]*: *//p;q}' /proc/cpuinfo) "

# set_level LEVEL: sets the variables, the flags that the level needs and those of the level above.
set_level() {
  export LATHE_MAX_ISA=$1
  case $1 in
    2) export ONEDNN_MAX_CPU_ISA=SSE41; needed=() above=("${level3[@]}") ;;
    3) export ONEDNN_MAX_CPU_ISA=AVX2; needed=("${level3[@]}") above=("${level4[@]}") ;;
    4) export ONEDNN_MAX_CPU_ISA=AVX512_CORE; needed=("${level4[@]}") above=("${level5[@]}") ;;
    5) export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16; needed=("${level5[@]}") above=("${level5[@]}" amx_tile) ;;
    *) echo "error: level $1" >&2; exit 2 ;;
  esac
}

# first_missing FLAG...: prints the first flag that this processor lacks.
first_missing() {
  local flag
  for flag in "$@"; do
    [[ $flags == *" $flag "* ]] || { echo "$flag"; return; }
  done
}

if [ "$1" = --settings ]; then
  set_level "$2"
  [ -n "$(first_missing "${needed[@]}")" ] || printf '%s\n' "LATHE_MAX_ISA=$LATHE_MAX_ISA" "ONEDNN_MAX_CPU_ISA=$ONEDNN_MAX_CPU_ISA"
  exit 0
fi

test=$1
shift
[ $# -gt 0 ] || set -- 2 3 4 5
# GoogleTest writes a report of each run. The test's own has all of them.
report=${XML_OUTPUT_FILE:-/dev/null}
part=$(mktemp)
trap 'rm -f "$part"' EXIT
failed=0

# suite LEVEL KIND: a report of a run that has none. KIND is what its one case counts as.
suite() {
  echo "<testsuite name=\"level $1\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\"></testsuite>" | sed "s/$2=\"0\"/$2=\"1\"/"
}

echo '<testsuites>' >"$report"
for level in "$@"; do
  set_level "$level"
  missing=$(first_missing "${needed[@]}")
  if [ -n "$missing" ]; then
    echo "level $level is skipped: this processor has no $missing"
    suite "$level" skipped >>"$report"
  elif [ -n "$(first_missing "${above[@]}")" ]; then
    echo "level $level is skipped: it is this processor's own, at which the test runs by itself"
    suite "$level" skipped >>"$report"
  else
    echo "== level $level"
    : >"$part"
    XML_OUTPUT_FILE=$part "$test" || { echo "FAILED at level $level"; failed=1; }
    if [ -s "$part" ]; then
      sed -E '/^<(\?xml|\/?testsuites)/d' "$part" >>"$report"
    else
      suite "$level" errors >>"$report"  # it ended before its report
    fi
  fi
done
echo '</testsuites>' >>"$report"
exit "$failed"
