#!/usr/bin/env bash
# Tests how RestartWithShortSpin sets the environment, that it keeps arguments, and when it changes nothing.
set -euo pipefail
probe=$1
expect() {
  if [ "$1" != "$2" ]; then
    echo "expected \"$1\" but got \"$2\"" >&2
    exit 1
  fi
}
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
export OMP_NUM_THREADS=2
expect "10000 [a] [b c] []" "$("$probe" a 'b c' '')"
expect "7 [a]" "$(GOMP_SPINCOUNT=7 "$probe" a)"
expect "none [a]" "$(OMP_WAIT_POLICY=active "$probe" a)"
expect "none [a]" "$(OMP_NUM_THREADS=1 "$probe" a)"
# If the dynamic linker starts a program, /proc/self/exe is the linker, not the program.
linker=$(ldd "$probe" | grep -o '/[^ ]*/ld-linux[^ ]*')
expect "none [a]" "$("$linker" "$probe" a)"
