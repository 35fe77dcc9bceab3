#!/usr/bin/env bash
# Checks the sources without building them:
#   - each C++ file is formatted as clang-format (Debian's) would;
#   - no #include points from a room up to one above it, and the folders' includes make no circle;
#   - no folder holds more than 25 sources, tests not counted.
# Prints what is wrong, one line each, and exits with 1 if anything is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
wrong() {
  echo "$1" >&2
  failed=1
}

mapfile -t sources < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')

if command -v clang-format >/dev/null; then
  while read -r file; do
    wrong "$file: not formatted; run: clang-format -i $file"
  done < <(printf '%s\0' "${sources[@]}" | xargs -0 clang-format --dry-run 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/\1/p' | sort -u)
else
  echo "no clang-format here: the format is not checked" >&2
fi

# "FILE ROOM-OF-INCLUDED FOLDER-OF-INCLUDED" for each include of Lathe's own headers. Tests and what they share may use every room.
includes=$(printf '%s\n' "${sources[@]}" | grep -vE '_test\.cc$|_testing\.(h|cc)$|/testing/|^tests/|^examples/' |
  xargs awk '
    match($0, /^#include "lathe\/[^"]+"/) {
      path = substr($0, RSTART + 16, RLENGTH - 17)
      folder = path
      if (!sub(/\/[^\/]*$/, "", folder)) folder = "."
      room = folder
      sub(/\/.*/, "", room)
      print FILENAME, room, folder
    }')

declare -A below=(
  [core]="core"
  [nn]="nn core"
  [optim]="optim nn core"
  [data]="data core"
  [models]="models nn data core"
  [distributed]="distributed optim nn data core"
  [train]="train models distributed optim nn data core"
  [apps]="apps train models distributed optim nn data core"
)
while read -r file room _; do
  own=${file%%/*}
  [ -n "${below[$own]:-}" ] || continue
  [[ " ${below[$own]} " == *" $room "* ]] || wrong "$file: includes a header of $room/, which $own/ must not know; it may include: ${below[$own]}"
done <<<"$includes"

circles=$(awk '{ own = $1; sub(/\/[^\/]*$/, "", own); if (own != $3) print own, $3 }' <<<"$includes" | sort -u | tsort 2>&1 >/dev/null |
  sed -n 's/^tsort: \([^-].*\)$/\1/p' | grep -v 'input contains a loop' | tr '\n' ' ' || true)
[ -z "$circles" ] || wrong "the includes of these folders make a circle: $circles"

while read -r count folder; do
  [ "$count" -le 25 ] || wrong "$folder: $count sources, more than 25; give it sub-folders"
done < <(printf '%s\n' "${sources[@]}" | grep -v '_test\.cc$' | sed 's|/[^/]*$||' | sort | uniq -c)

[ "$failed" -eq 0 ] && echo "the sources are formatted, and their includes point one way"
exit "$failed"
