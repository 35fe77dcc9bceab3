#!/usr/bin/env bash
# Runs a test as a processor of a lower level would: with_isa.sh LEVEL TEST, with LEVEL as for LATHE_MAX_ISA. Skips the
# test if this processor doesn't have that level. with_isa.sh --settings LEVEL prints the environment variables that it
# sets, one a line, and nothing if it would skip.
set -euo pipefail
only_settings=
if [ "$1" = --settings ]; then
  only_settings=1
  shift
fi
export LATHE_MAX_ISA=$1
# The flags that core/base/isa.cc asks for, as the system names them (LZCNT is "abm" there).
level3=(avx2 fma bmi1 bmi2 f16c movbe abm)
level4=("${level3[@]}" avx512f avx512bw avx512cd avx512dq avx512vl)
case $1 in
  2) export ONEDNN_MAX_CPU_ISA=SSE41; needed=() ;;
  3) export ONEDNN_MAX_CPU_ISA=AVX2; needed=("${level3[@]}") ;;
  4) export ONEDNN_MAX_CPU_ISA=AVX512_CORE; needed=("${level4[@]}") ;;
  5) export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16; needed=("${level4[@]}" avx512_bf16) ;;
  *) echo "error: level $1" >&2; exit 2 ;;
esac
flags=" $(sed -n '/^flags/{s/^[^:]*: *//p;q}' /proc/cpuinfo) "
for flag in "${needed[@]}"; do
  if [[ $flags != *" $flag "* ]]; then
    [ -z "$only_settings" ] || exit 0
    echo "skipped: this processor has no $flag"
    echo '<testsuites><testsuite name="with_isa" tests="1" failures="0" errors="0" skipped="1"></testsuite></testsuites>' |
      sed 's/<testsuite /\n&/' >"${XML_OUTPUT_FILE:-/dev/null}"
    exit 0
  fi
done
if [ -n "$only_settings" ]; then
  printf '%s\n' "LATHE_MAX_ISA=$LATHE_MAX_ISA" "ONEDNN_MAX_CPU_ISA=$ONEDNN_MAX_CPU_ISA"
  exit 0
fi
exec "$2"
