#!/usr/bin/env bash
# Runs a test as a processor of a lower level would: with_isa.sh LEVEL TEST, LEVEL as for LATHE_MAX_ISA.
set -euo pipefail
export LATHE_MAX_ISA=$1
case $1 in
  2) export ONEDNN_MAX_CPU_ISA=SSE41 ;;
  3) export ONEDNN_MAX_CPU_ISA=AVX2 ;;
  4) export ONEDNN_MAX_CPU_ISA=AVX512_CORE ;;
  *) echo "error: level $1" >&2; exit 2 ;;
esac
exec "$2"
