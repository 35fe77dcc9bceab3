#!/usr/bin/env bash
# Checks the sources without building them:
#   - each C++ file is formatted as clang-format (Debian's) would;
#   - no #include points from a room up to one above it, and neither the folders' includes nor the headers' make a
#     circle (tests, and what only they use, are left out);
#   - no folder holds more than 25 sources, tests not counted;
#   - the comment of a function of more than 60 lines says why it is long ("It is long because ...", "It is one function
#     because ...");
#   - no sentence of a comment or a page begins with a bare "Of";
#   - no sentence of a comment in C++, or of a page in English, has more than 30 words (aim at 25).
# Prints what is wrong, one line each, and exits with 1 if anything is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
wrong() {
  echo "$1" >&2
  failed=1
}

sources=()
while IFS= read -r -d '' file; do
  if [[ $file =~ [[:space:]] ]]; then wrong "$file: give the source a name without blanks"; else sources+=("$file"); fi
done < <(git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh')

if command -v clang-format >/dev/null; then
  done="the sources are formatted, and their includes point one way"
  while read -r file; do
    wrong "$file: not formatted; run: clang-format -i $file"
  done < <(printf '%s\0' "${sources[@]}" | xargs -0 clang-format --dry-run 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/\1/p' | sort -u)
else
  done="the includes point one way; there is no clang-format here, so the format was not checked"
fi

# "FILE INCLUDED-FILE" for each include of Lathe's own headers. Tests and what they share may use every room.
includes=$(printf '%s\0' "${sources[@]}" | { grep -zvE '_test\.cc$|_testing\.(h|cc)$|/testing/|^tests/|^examples/' || true; } |
  xargs -0r awk '
    match($0, /^[ \t]*#[ \t]*include[ \t]*["<]lathe\/[^">]+[">]/) {
      path = substr($0, RSTART, RLENGTH - 1)
      sub(/^[^"<]*["<]lathe\//, "", path)
      print FILENAME, path
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
while read -r file path; do
  own=${file%%/*}
  [ -n "$own" ] && [ -n "${below[$own]:-}" ] || continue
  [[ " ${below[$own]} " == *" ${path%%/*} "* ]] ||
    wrong "$file: includes $path, of which $own/ must not know; it may include headers of: ${below[$own]}"
done <<<"$includes"

# circle: names the members of a circle among the pairs "A B" that it reads, or nothing.
circle() {
  sort -u | tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^-].*\)$/\1/p' | tr '\n' ' '
}

if command -v tsort >/dev/null; then
  circles=$(awk 'function folder(path) { return sub(/\/[^\/]*$/, "", path) ? path : "." }
    NF && folder($1) != folder($2) { print folder($1), folder($2) }' <<<"$includes" | circle || true)
  [ -z "$circles" ] || wrong "the includes of these folders make a circle: $circles"
  circles=$(awk 'NF && $1 != $2' <<<"$includes" | circle || true)
  [ -z "$circles" ] || wrong "these headers include each other in a circle: $circles"
else
  wrong "no tsort here (Debian's coreutils), so no circle of includes can be found"
fi

while read -r count folder; do
  [ "$count" -le 25 ] || wrong "$folder: $count sources, more than 25; give it sub-folders"
done < <(printf '%s\n' "${sources[@]}" | grep -v '_test\.cc$' | sed 's|/[^/]*$||' | sort | uniq -c)

# The head of a function begins in the first column and ends with the first line that ends in "{". The function ends with the
# line "}".
while read -r place lines; do
  wrong "$place: a function of $lines lines without a reason; split it, or say above \"It is long because ...\""
done < <(printf '%s\0' "${sources[@]}" | xargs -0r awk '
  function reset() { start = inside = 0; comment = head = "" }
  FNR == 1 { reset() }
  inside {
    lines = FNR - start + 1
    if (/^}/ && lines > 60 && comment !~ /is (long|one function) because/) print FILENAME ":" start, lines
    if (/^}/) reset()
    next
  }
  !start && /^\/\/ / { comment = comment substr($0, 3); next }
  !start && /^[A-Za-z_~]/ { start = FNR }
  !start { reset(); next }
  { head = head " " $0 }
  /[;}]$/ { reset() }
  /\{$/ {
    inside = head ~ /\(/ && head !~ /^ (INSTANTIATE_|(template *<.*> *)?(class|struct|union) )/ && head !~ /= *\{$/
    if (!inside) reset()
  }')

# A sentence begins at the start of a comment or of a page's line, or behind a point or a colon.
while IFS=: read -r file line text; do
  wrong "$file:$line: a sentence begins with a bare \"Of\"; put the subject first"
done < <({
  git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0r grep -HnE '(^|[[:space:]])//([^"]*[.:])? Of [a-z0-9`]'
  git ls-files -z '*.sh' '*.bzl' '*.bazel' '*.py' '*.awk' |
    xargs -0r grep -HnE '(^|[[:space:]])#([^"]*[.:])? Of [a-z0-9`]'
  git ls-files -z '*.md' | xargs -0r grep -HnE '(^[-*|>[:space:]]*|[.:] )Of [a-z0-9`]'
} || true)

# flush(): prints the place and the number of words of each long sentence of the variable text, and empties it.
flush='
  function flush(  n, i, part, words) {
    gsub(/(e\.g|i\.e|et al|vs)\. /, "", text)
    n = split(text, part, /[.!?][^[:alnum:] ]* +/)
    for (i = 1; i <= n; i++) { words = gsub(/[^ ]*[[:alnum:]][^ ]*/, "", part[i]); if (words > 30) print place, words }
    text = ""
  }'

# Lines of code, formulas and tables in a comment are indented, or have " = " or two spaces, and end a sentence.
while read -r place count; do
  wrong "$place: a sentence of $count words in a comment; split it (at most 30, better 25)"
done < <(printf '%s\0' "${sources[@]}" | xargs -0r awk "$flush"'
  FNR == 1 || !/^ *\/\/ [^ ]/ || /\/\/ [-*] / || /[^ ]  +[^ ]| = / { flush() }
  /^ *\/\/ [^ ]/ && !/[^ ]  +[^ ]| = / { if (text == "") place = FILENAME ":" FNR; sub(/^ *\/\/ /, ""); text = text $0 " " }
  END { flush() }')

# Paragraphs, items of lists, headings and cells of tables end a sentence. A piece of code in a sentence is one word. Blocks of
# code and HTML comments are left out. The translations are not counted: awk may not know their letters.
while read -r place count; do
  wrong "$place: a sentence of $count words; split it (at most 30, better 25)"
done < <(git ls-files -z '*.md' ':!docs/[a-z][a-z].md' | xargs -0r awk "$flush"'
  function end() {
    gsub(/`[^`]*`/, "code", text)
    gsub(/\]\([^)]*\)/, "]", text)
    flush()
  }
  FNR == 1 { end(); fenced = hidden = code = 0; blank = 1 }
  /^ *```/ { end(); fenced = !fenced; next }
  /^<!--/ { hidden = 1 }
  fenced || hidden { end(); if (/-->/) hidden = 0; next }
  { code = /^    / && (code || blank && /^    [^ *-]/) || code && /^ *$/; blank = /^ *$/ }
  code || blank || /^ *([-*]|[0-9]+\.) / || /^#/ || /^ *\|/ { end() }
  code || blank { next }
  {
    sub(/^ *([-*]|[0-9]+\.) /, "")
    if (text == "") place = FILENAME ":" FNR
    if (/^ *\|/) gsub(/ *\| */, ". ")
    text = text $0 " "
  }
  END { end() }')

[ "$failed" -eq 0 ] && echo "$done"
exit "$failed"
