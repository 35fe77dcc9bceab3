#!/usr/bin/env bash
# Runs a test as a processor of a lower level would: with_isa.sh LEVEL TEST, with LEVEL as for LATHE_MAX_ISA. Skips the
# test if this processor doesn't have that level, or no higher one, because the test runs so by itself.
# with_isa.sh --settings LEVEL prints the environment variables that it sets, one a line, and nothing if this processor
# doesn't have the level.
set -euo pipefail
only_settings=
if [ "$1" = --settings ]; then
  only_settings=1
  shift
fi
export LATHE_MAX_ISA=$1
# The flags that core/base/isa.cc asks for, as the system names them (LZCNT is "abm" there). Above level 5, oneDNN has
# products for AMX.
level3=(avx2 fma bmi1 bmi2 f16c movbe abm)
level4=("${level3[@]}" avx512f avx512bw avx512cd avx512dq avx512vl)
level5=("${level4[@]}" avx512_bf16)
case $1 in
  2) export ONEDNN_MAX_CPU_ISA=SSE41; needed=() above=("${level3[@]}") ;;
  3) export ONEDNN_MAX_CPU_ISA=AVX2; needed=("${level3[@]}") above=("${level4[@]}") ;;
  4) export ONEDNN_MAX_CPU_ISA=AVX512_CORE; needed=("${level4[@]}") above=("${level5[@]}") ;;
  5) export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16; needed=("${level5[@]}") above=("${level5[@]}" amx_tile) ;;
  *) echo "error: level $1" >&2; exit 2 ;;
esac
flags=" $(sed -n '/^flags/{s/^[^:]*: *//p;q}' /proc/cpuinfo) "

# first_missing FLAG...: prints the first flag that this processor lacks.
first_missing() {
  local flag
  for flag in "$@"; do
    [[ $flags == *" $flag "* ]] || { echo "$flag"; return; }
  done
}

# skip WHY: ends, and reports a test that was skipped.
skip() {
  echo "skipped: $1"
  printf '%s\n' '<testsuites>' '<testsuite name="with_isa" tests="1" failures="0" errors="0" skipped="1"></testsuite></testsuites>' \
    >"${XML_OUTPUT_FILE:-/dev/null}"
  exit 0
}

missing=$(first_missing "${needed[@]}")
if [ -n "$only_settings" ]; then
  [ -n "$missing" ] || printf '%s\n' "LATHE_MAX_ISA=$LATHE_MAX_ISA" "ONEDNN_MAX_CPU_ISA=$ONEDNN_MAX_CPU_ISA"
  exit 0
fi
[ -z "$missing" ] || skip "this processor has no $missing"
[ -z "$(first_missing "${above[@]}")" ] || skip "level $1 is this processor's own, at which the test runs by itself"
exec "$2"
