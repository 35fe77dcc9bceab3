#!/usr/bin/env bash
# Tests tools/check_sources.sh: plants one fault after the other in a small tree, each of which it must find.
set -euo pipefail

script=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../tools/check_sources.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

# fresh: an empty repository with the script and a few sources without a fault.
fresh() {
  rm -rf "${tree:?}"/* "$tree/.git"
  git -C "$tree" init -q
  mkdir -p "$tree/tools" "$tree/core/base" "$tree/nn"
  cp "$script" "$tree/tools/"
  header core/base/error.h
  header core/tensor.h '#include "lathe/core/base/error.h"'
  header nn/module.h '#include "lathe/core/tensor.h"'
}

# header PATH LINE...: writes a source with these lines.
header() {
  local path=$tree/$1
  shift
  mkdir -p "$(dirname "$path")"
  printf '%s\n' '#pragma once' "$@" >"$path"
}

# check WHAT EXPECTED: the script finds a fault and says EXPECTED, or finds none if EXPECTED is empty.
check() {
  local what=$1 expected=$2 output status=0
  git -C "$tree" add -A
  output=$("$tree/tools/check_sources.sh" 2>&1) || status=$?
  if [ -z "$expected" ]; then
    [ "$status" -eq 0 ] && return
  else
    [ "$status" -eq 1 ] && grep -qF -- "$expected" <<<"$output" && return
  fi
  echo "FAILED: $what: exit code $status, \"$expected\" was expected:"
  echo "$output"
  failed=1
}

fresh
check "a tree without a fault" ""

for line in '#include "lathe/nn/module.h"' '#include <lathe/nn/module.h>' '  #  include "lathe/nn/module.h"'; do
  fresh
  header core/ops.h "$line"
  check "$line in core/" "core/ops.h: includes nn/module.h"
done

fresh
header core/ops_test.cc '#include "lathe/nn/module.h"'
header core/testing/ops.h '#include "lathe/nn/module.h"'
header tests/ops.h '#include "lathe/nn/module.h"'
check "tests that include every room" ""

fresh
header core/base/a.h '#include "lathe/core/base/b.h"'
header core/base/b.h '#include "lathe/core/base/c.h"'
header core/base/c.h '#include "lathe/core/base/a.h"'
check "a circle of headers in one folder" "these headers include each other in a circle: core/base/"

fresh
header core/base/a.h '#include "lathe/core/tensor.h"'
check "a circle of folders" "the includes of these folders make a circle: core"

fresh
for i in {1..25}; do header "nn/layers/layer_$i.h"; done
header nn/layers/layer_test.cc
check "a folder with 25 sources and a test" ""
header nn/layers/layer_26.h
check "a folder with 26 sources" "nn/layers: 26 sources"

for comment in '// Of two ranks it names the lower one.' 'int n;  // Of `k` ranks one.' '// A rank. Of two it is one.' '// A rule: Of two, one.'; do
  fresh
  header core/rank.h '' "$comment"
  check "the comment $comment" 'core/rank.h:3: a sentence begins with a bare "Of"'
done
fresh
printf '%s\n' 'x = 1' '# Of two ranks it names one.' >"$tree/tools/ranks.py"
check "a script's comment" 'tools/ranks.py:2: a sentence begins with a bare "Of"'
for sentence in 'Of two ranks it names one.' '- Of two ranks, one.' 'It has ranks. Of two it names one.'; do
  fresh
  printf '%s\n' "$sentence" >"$tree/page.md"
  check "the page's sentence $sentence" 'page.md:1: a sentence begins with a bare "Of"'
done
fresh
header core/rank.h '' '// Returns the number' '// of ranks; see OfRank.' 'auto text = "One. Of two.";'
printf '%s\n' 'The number' 'of ranks. "Of" begins no sentence.' >"$tree/page.md"
check "other places of the word" ""

# long HEAD LINES COMMENT...: a source of a function with this head and as many lines.
long() {
  local head=$1 lines=$2
  shift 2
  fresh
  header nn/long.h '' "$@" "$head" "$(for ((i = 2; i < lines; ++i)); do echo '  Call();'; done)" '}'
}
for head in 'void Long() {' 'TEST(Long, Test) {' 'template <typename T> T Long() {' 'std::vector<int> Long() {'; do
  long "$head" 61 '// Calls.'
  check "$head of 61 lines" 'nn/long.h:4: a function of 6'
  long "$head" 61 '// Calls. It is long because it calls' '// often.'
  check "$head of 61 lines with a reason" ""
done
long 'void Long() {' 60
check "a function of 60 lines" ""
long 'class Long : public Function<int()> {' 61
sed -i 's/^}$/};/' "$tree/nn/long.h"
check "a class of 61 lines" ""
fresh
header nn/short.h 'int Short() { return 1; }' '' "$(for i in {1..61}; do echo 'int Short();'; done)" '' 'void Call() {' '  Short();' '  Short();' '}'
check "61 lines between short functions" ""

ten='one two three four five six seven eight nine ten'
for last in 'eleven.' 'eleven. One.' 'eleven'; do
  fresh
  header core/rank.h '' "// $ten" "// $ten" "// $ten" "// $last"
  check "a long sentence that ends in \"$last\"" 'core/rank.h:3: a sentence of 31 words in a comment'
done
fresh
header core/rank.h '' "// $ten" "// $ten" "// $ten." "// $ten" '//' "// $ten" "// $ten" '// - one' "// $ten" '//   code' "// $ten" \
  '// y = a b c' "// $ten" "// table  $ten" "// $ten" 'int rank;' "// $ten"
check "sentences of at most 30 words" ""


for last in 'eleven.' '**eleven.** One.' '`and code`' '[and](https://a.org)'; do
  fresh
  printf '%s\n' '# A page' '' "$ten" "$ten" "$ten $last" >"$tree/page.md"
  check "a page with a long sentence that ends in \"$last\"" 'page.md:3: a sentence of 31 words'
done
for line in "- $ten $ten $ten one" "| a | $ten $ten $ten one | b |" "# $ten $ten $ten one"; do
  fresh
  printf '%s\n' '' '<!-- a -->' '    code' '' "$line" >"$tree/page.md"
  check "a page with the line $line" 'page.md:5: a sentence of 31 words'
done
fresh
mkdir "$tree/docs"
printf '%s\n' "$ten $ten $ten one" >"$tree/docs/zh.md"
printf '%s\n' "$ten" "$ten" '' "$ten" "$ten" "- $ten" "$ten" "1. $ten" "$ten \`$ten" "$ten\`." '' "    $ten" "      $ten" "    $ten" "$ten" "| $ten | $ten | $ten | $ten |" \
  '```' "$ten $ten $ten one" '```' "$ten" '<!-- of' "$ten $ten $ten one -->" "$ten $ten" "## $ten" "$ten $ten" >"$tree/page.md"
check "a page of sentences of at most 30 words" ""

# A folder of programs that has all but tsort and clang-format.
fresh
mkdir "$tree/bin"
for program in bash dirname git awk grep sed sort tr uniq xargs env; do ln -s "$(command -v "$program")" "$tree/bin/"; done
git -C "$tree" add -A
output=$(PATH=$tree/bin "$tree/tools/check_sources.sh" 2>&1) && status=0 || status=$?
if [ "$status" -ne 1 ] || ! grep -q '^no tsort here' <<<"$output"; then
  echo "FAILED: without tsort: exit code $status"
  echo "$output"
  failed=1
fi
ln -s "$(command -v tsort)" "$tree/bin/"
output=$(PATH=$tree/bin "$tree/tools/check_sources.sh" 2>&1) && status=0 || status=$?
if [ "$status" -ne 0 ] || ! grep -q 'the format was not checked$' <<<"$output"; then
  echo "FAILED: without clang-format: exit code $status"
  echo "$output"
  failed=1
fi

[ "$failed" -eq 0 ] && echo "every planted fault was found"
exit "$failed"
