#!/usr/bin/env bash
# Checks the pages against the repository:
#   - README.md has at most 7,000 bytes;
#   - every relative link leads to a file and, if it names one, to a heading there;
#   - every program, script and Bazel label in a code block exists, and so does every path that a page names;
#   - every flag that a page gives to a script or a program is one that it takes;
#   - every environment variable that a page names is read, and docs/environment.md names every one that is read;
#   - docs/architecture.md and its drawing name the folders of each room, and no others;
#   - C++ behind "<!-- C++ of FILE -->" is that of FILE, and README and its translations have such a loop;
#   - the C++ beside Python in examples/README.md is that of examples/table_mlp.cc;
#   - a translation has the same code blocks, but for their comments, as the README sections that it translates.
# Run it as a test, or by hand from anywhere: tests/docs_test.sh [ROOT], where ROOT is another tree to check.
set -euo pipefail

# In Bazel's sandbox this script is a link to the source tree, all of which it reads.
cd "${1:-$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..}"

failed=0
wrong() {
  echo "$1"
  failed=1
}

mapfile -t pages < <(find docs -name '*.md' | LC_ALL=C sort)
pages=(README.md CONTRIBUTING.md examples/README.md "${pages[@]}")
[ "${#pages[@]}" -gt 3 ] || wrong "no pages in docs/"

most=7000
size=$(wc -c <README.md)
[ "$size" -le "$most" ] || wrong "README.md has $size bytes, more than $most; move details into docs/"

# prose FILE: the page's lines outside of code blocks, as "LINE-NUMBER:TEXT", without code in backticks.
prose() {
  awk '
    /^ *```/ { fenced = !fenced; next }
    fenced || /^    [^ -]/ && blank { next }
    { blank = /^ *$/ || blank && /^    / }
    { gsub(/`[^`]*`/, ""); print FNR ":" $0 }' "$1"
}

# code FILE [HEADING...]: the code blocks of the page or of these sections (each up to the next heading), one line each.
code() {
  local file=$1
  shift
  awk -v wanted="$(printf '|%s' "$@")|" '
    !fenced && /^#+ / { heading = $0; sub(/^#+ /, "", heading) }
    /^ *```/ { fenced = !fenced; blank = 0; next }
    wanted != "||" && !index(wanted, "|" heading "|") { blank = /^ *$/; next }
    fenced { print; next }
    /^ *$/ { blank = 1; next }
    /^    / && (blank || in_block) { print; in_block = 1; next }
    { blank = in_block = 0 }' "$file"
}

# anchors FILE: the names by which links reach the page's headings.
anchors() {
  sed -nE 's/^#+ +(.*)$/\1/p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^[:alnum:] _-]//g; s/ /-/g'
}

# --- links ---

for page in "${pages[@]}"; do
  if [ ! -f "$page" ]; then
    wrong "$page is missing"
    continue
  fi
  folder=$(dirname "$page")
  while IFS= read -r found; do
    line=${found%%:*}
    target=${found#*:}
    case $target in
      http://* | https://* | mailto:*) continue ;;
    esac
    path=${target%%#*}
    file=$page
    [ -z "$path" ] || file=$folder/$path
    if [ ! -e "$file" ]; then
      wrong "$page:$line: a link to $target, which is not there"
    elif [[ $target == *#* && $file == *.md ]] && ! anchors "$file" | grep -qxF -- "${target#*#}"; then
      wrong "$page:$line: a link to $target, which has no such heading"
    fi
  done < <(prose "$page" | awk '{
    line = $0
    sub(/:.*/, "", line)
    while (match($0, /\]\([^) ]+\)/)) {
      print line ":" substr($0, RSTART + 2, RLENGTH - 3)
      $0 = substr($0, RSTART + RLENGTH)
    }
  }')
done

# --- commands and paths ---

# has_target PACKAGE NAME: whether the package's BUILD file names this target.
has_target() {
  local package=$1 name=$2
  [ -f "./$package/BUILD.bazel" ] || return 1
  [ "$name" = all ] || grep -qE "(name = |[( ])\"$name\"" "./$package/BUILD.bazel" || [ -e "./$package/$name" ]
}

# has_test PACKAGE NAME: whether the package has this test, as its BUILD file reads. A test has the name of its source,
# or comes from an op or a list: "NAME_%s_test" and "WHERE" make NAME_WHERE_test; NAME alone makes a test for each device,
# and an op with `levels` one for other instruction set levels. `lathe_ops` makes all_ops_WHERE_test.
has_test() {
  local build=./$1/BUILD.bazel name=$2 head tail
  has_target "$1" "$name" || [ -e "./$1/$name.cc" ] && return 0
  tail=${name%_test}
  while [[ $tail == *_* ]]; do
    head+=${tail%%_*}_
    tail=${tail#*_}
    grep -sqF "\"${head}%s_test\"" "$build" && grep -qF "\"$tail\"" "$build" && return 0
  done
  if [[ $name =~ ^(ops/)?(.*)_(gpu|emulated|emulated_asan)_test$ ]]; then
    [ "${BASH_REMATCH[2]}" != all_ops ] || { grep -sq '^lathe_ops(' "$build" && return 0; }
    grep -sqE "(^ *|[[(]|, |name = )\"${BASH_REMATCH[2]}\"[]),]" "$build"
  elif [[ $name =~ ^ops/(.*)_test_levels$ ]]; then
    grep -sqE "lathe_op\\(.*\"${BASH_REMATCH[1]}\".*levels = True" "$build"
  elif [[ $name =~ ^(.*_test)_levels$ ]]; then
    grep -sqE "^ *\"(:|//[a-z/]+:)?${BASH_REMATCH[1]}\"," "$build"
  else
    return 1
  fi
}

# check_word WHERE WORD: complains if the word is a script, program, label or path that does not exist. Words with
# capitals or wildcards stand for many names. Each word is looked up until it is found.
declare -A found_words=()
check_word() {
  local where=$1 word=$2 label package name problem=
  [ -z "${found_words["$word"]:-}" ] || return 0
  [[ ! $word =~ [*\<\{A-Z] ]] || return 0
  case $word in
    bazel-bin/*/*)
      package=$(dirname "${word#bazel-bin/}")
      name=$(basename "$word")
      while [ ! -e "./$package/BUILD.bazel" ] && [[ $package == */* ]]; do
        name=$(basename "$package")/$name
        package=$(dirname "$package")
      done
      has_target "$package" "$name" || has_test "$package" "$name" || problem=" is built by no target"
      ;;
    //... | //*/...)
      package=${word#//}
      package=${package%...}
      [ -d "./$package" ] || problem=": no such folder"
      ;;
    //*)
      label=${word#//}
      package=${label%%:*}
      name=${label##*:}
      [[ $label == *:* ]] || name=$(basename "$package")
      if [[ $name =~ _test(_levels)?$ ]]; then
        has_test "$package" "$name" || problem=": no such test"
      else
        has_target "$package" "$name" || problem=": no such target"
      fi
      ;;
    tools/* | tests/* | examples/* | core/* | nn/* | optim/* | data/* | models/* | distributed/* | train/* | apps/* | docs/*)
      [ -e "./$word" ] || has_target "$(dirname "$word")" "$(basename "$word")" || problem=" does not exist"
      ;;
  esac
  if [ -n "$problem" ]; then
    wrong "$where: $word$problem"
  else
    found_words["$word"]=1
  fi
}

# words: splits text into words, without the signs around them.
words() {
  tr ' \t"`,;()=' '\n' | sed -E "s/^[']+//; s,([^./])[.':]+\$,\\1,; s,/\$,," | grep -E '^(//|[a-z-]+/)' | LC_ALL=C sort -u || true
}

for page in "${pages[@]}"; do
  [ -f "$page" ] || continue
  while IFS= read -r word; do
    check_word "$page" "$word"
  done < <(code "$page" | sed -E 's,(^| +)(#|//) .*,,' | words)
  while IFS= read -r word; do
    check_word "$page" "$word"
  done < <(awk '/^ *```/ { fenced = !fenced; next } !fenced' "$page" | grep -oE '`[^`]+`' | words)
done

# takes SCRIPT FLAG: whether the script has --FLAG, as a label of `case` or as an argument of Python's parser. A script that
# hands its arguments to a benchmark takes the flags of Google's library, too.
takes() {
  case $1 in
    *.py) grep -qF -- "add_argument(\"--$2\"" "./$1" ;;
    *) grep -qE "^ *(-[a-z_-]+ \| )*--$2( \| (-[a-z_-]+|''))*\)" "./$1" || { [[ $2 == benchmark_* ]] && grep -qF '"$@"' "./$1"; } ;;
  esac
}

# The sources are read once: a search for each flag and page would take most of the time. Keys are "ROOM FLAG" for the
# literals "FLAG" and "--FLAG" of a room, and names of environment variables.
declare -A flags_of=() read_rooms=() variables=()

# has_flag ROOM FLAG: whether a source of the room has the literal.
has_flag() {
  local literal
  if [ -z "${read_rooms[$1]:-}" ]; then
    read_rooms[$1]=1
    while IFS= read -r literal; do
      flags_of["$1 $literal"]=1
    done < <(grep -rhoE --include='*.cc' '"(--)?[a-z_0-9]+"' "./$1" | tr -d '"-' | LC_ALL=C sort -u)
  fi
  [ -n "${flags_of["$1 $2"]:-}" ]
}

while IFS= read -r variable; do
  variables[$variable]=1
done < <(grep -rhoE --include='*.cc' --include='*.h' --include='*.cu' --include='*.sh' --include='*.bzl' --include='*.py' --exclude='docs_*' \
  '\bLATHE_[A-Z0-9_]*[A-Z0-9]\b' ./core ./nn ./optim ./data ./models ./distributed ./train ./apps ./tests ./tools | LC_ALL=C sort -u)

# check_flags WHERE COMMAND: complains of flags that the command's script or program lacks. Those of Lathe's own programs are
# literals in the sources of the room. If a program starts another one, each flag is looked up
# as if it were a flag of either.
check_flags() {
  local where=$1 command=$2 arguments flag script room
  [[ $command == *" --"* ]] || return 0
  if [[ $command =~ (^|[ /])((tools|tests)/[a-z_/]+\.(sh|py))(.*) ]]; then
    script=${BASH_REMATCH[2]}
    command=${BASH_REMATCH[5]}
    [ -f "./$script" ] || return 0  # check_word has said so
  elif [[ $command =~ bazel-bin/([a-z]+)/(.*) ]]; then
    room=${BASH_REMATCH[1]}
    command=${BASH_REMATCH[2]}
    [ -d "./$room" ] || return 0
  elif [[ $command =~ ^\ *(finetune|lathe)\ (.*) ]]; then  # a program whose folder is left out
    room=apps
    command=${BASH_REMATCH[2]}
  else
    return 0
  fi
  read -ra arguments <<<"$command"
  for flag in "${arguments[@]}"; do
    [[ $flag =~ ^--([a-z_0-9]+) ]] || continue
    flag=${BASH_REMATCH[1]}
    if [ -n "${script:-}" ]; then
      takes "$script" "$flag" || wrong "$where: $script does not take --$flag"
    else
      has_flag "$room" "$flag" || has_flag "$room" "${flag#no_}" || wrong "$where: no program in $room/ has the flag --$flag"
    fi
  done
}

# commands: the commands that it reads, one line each, without comments, quoted words and what follows the command.
commands() {
  sed -e ':join' -e '/\\$/{N;s/\\\n//;bjoin' -e '}' | sed -E "s, # .*,,; s/'[^']*'|\"[^\"]*\"//g; s/ *(\\||;|&&).*//"
}

for page in "${pages[@]}"; do
  [ -f "$page" ] || continue
  while IFS= read -r command; do
    check_flags "$page" "$command"
  done < <(code "$page" | commands; awk '/^ *```/ { fenced = !fenced; next } !fenced' "$page" | grep -oE '`[^`]+`' | tr -d '`' | commands)
done

# Tables of options begin with the flags, and variables of the environment are read somewhere.
for page in "${pages[@]}"; do
  [ -f "$page" ] || continue
  while IFS= read -r flags; do
    check_flags "$page" "lathe $flags"
  done < <([[ $page != docs/training.md && $page != docs/distributed.md ]] || sed -nE 's/^\| (`--[^|]*) \|.*/\1/p' "$page" | tr -d '`,' | sed 's/^/ /')
  while IFS= read -r variable; do
    [ -n "${variables[$variable]:-}" ] || wrong "$page: nothing reads $variable"
  done < <(grep -ohE '\bLATHE_[A-Z0-9_]*[A-Z0-9]\b' "$page" | LC_ALL=C sort -u)
done

# The names of variables are literals. In sources of the rooms that read variables, those with an underscore count, however they
# are passed on to getenv.
named=$(grep -oE '`[A-Z][A-Z0-9_]+`' docs/environment.md | tr -d '`' | LC_ALL=C sort -u)
while IFS= read -r variable; do
  grep -qxF -- "$variable" <<<"$named" || wrong "docs/environment.md does not name $variable, which is read"
done < <({
  grep -rlE --include='*.cc' --include='*.h' --include='*.cu' 'getenv\(|\bOwnVariable\b|\bGetVariable\b' \
    ./core ./nn ./optim ./data ./models ./distributed ./train ./apps | { grep -vE '_test\.cc$|/testing/|_testing\.' || true; } |
    xargs -r grep -ohE '"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+"'
  grep -rhoE --include='*.cc' --include='*.h' --include='*.cu' 'getenv\("[^"]+"' \
    ./core ./nn ./optim ./data ./models ./distributed ./train ./apps ./tests
  grep -rhoE --include='*.bzl' 'environ\.get\("[^"]+"' ./tools
  grep -rhoE --include='*.sh' '\$\{[A-Z][A-Z0-9_]*:?[-?=]' ./tools
} | grep -oE '[A-Z][A-Z0-9_]+' | LC_ALL=C sort -u)

# A glossary of more terms would not be read.
terms=$(awk '/^## Glossary/ { found = 1 } found && /^\| / && !/^\| term / { count++ } END { print count + 0 }' docs/architecture.md)
[ "$terms" -le 30 ] || wrong "docs/architecture.md: the glossary has $terms terms, more than 30"
[ "$terms" -gt 0 ] || wrong "docs/architecture.md has no glossary"

# --- the rooms ---

# folders ROOM: the folders in the room, without those of tests and of families of models.
folders() {
  local folder name families
  families=$(sed -n '/^FAMILIES = \[/,/^\]/p' "./$1/BUILD.bazel")
  for folder in "./$1"/*/; do
    name=$(basename "$folder")
    case $name in testing | testdata) continue ;; esac
    [[ $families == *"\"//$1/$name\","* ]] || echo "$name"
  done | LC_ALL=C sort
}

# named_folders: the folders "NAME/" in the text that it reads.
named_folders() {
  { grep -oE '(^|[ `])[a-z_0-9]+/' || true; } | tr -d ' `/' | LC_ALL=C sort -u
}

drawing=docs/architecture.svg
for room in core nn optim data models distributed train apps; do
  there=$(folders "$room")
  drawn=$(awk -v room=">$room<" '/class="name"/ { inside = index($0, room) } inside && /class="what"/' "$drawing" | sed 's/<[^>]*>/ /g' | named_folders)
  if ! difference=$(diff <(echo "$there") <(echo "$drawn")); then
    wrong "$drawing names other folders than $room/ has (<: the room, >: the drawing)"
    echo "$difference"
  fi
  told=$(grep -F "| \`$room/\` |" docs/architecture.md | cut -d'|' -f3 | named_folders)
  if ! difference=$(diff <(echo "$there") <(echo "$told")); then
    wrong "docs/architecture.md names other folders than $room/ has (<: the room, >: the page)"
    echo "$difference"
  fi
done

# --- the training loop ---

# loop FILE EXAMPLE: the lines of the page's blocks of C++ behind "<!-- C++ of EXAMPLE -->" that hold statements, without
# comments and blanks. It leaves out lines of braces alone, and the brace that opens a block.
loop() {
  awk -v comment="<!-- C++ of $2 -->" '
    $0 == comment { found = 1; next }
    /^ *```/ { fenced = found && /^ *```cpp/; found = 0; next }
    fenced' "$1" | sed -E 's,(^|[[:blank:]]+)//.*$,,; s/[[:blank:]]+//g; s/\{$//' | grep -vE '^\}*$' || true
}

# compare_loop PAGE EXAMPLE: the statements that it reads, without spaces, must occur in the example in the same order. The
# example may have others between them.
compare_loop() {
  local page=$1 example=$2 rest line statements=0
  rest=$(sed -E 's,^ *//.*,,' "$example" | tr -d '[:space:]')
  while IFS= read -r line; do
    statements=$((statements + 1))
    if [[ $rest != *"$line"* ]]; then
      wrong "$page: the loop's \"$line\" is not in $example, or at another place there"
      break
    fi
    rest=${rest#*"$line"}
  done
  [ "$statements" -gt 0 ] || wrong "$page shows no training loop in C++"
}

for page in "${pages[@]}"; do
  [ -f "$page" ] || continue
  mapfile -t programs < <(sed -nE 's/^<!-- C\+\+ of (.*) -->$/\1/p' "$page" | LC_ALL=C sort -u)
  case $page in
    README.md | docs/ja.md | docs/hi.md | docs/zh.md) [ "${#programs[@]}" -gt 0 ] || wrong "$page shows no training loop in C++" ;;
  esac
  for program in "${programs[@]}"; do
    if [ -f "$program" ]; then
      compare_loop "$page" "$program" < <(loop "$page" "$program")
    else
      wrong "$page: there is no $program"
    fi
  done
done

# The second column of a table, which begins with a column "Python".
if [ -f examples/README.md ]; then
  compare_loop examples/README.md examples/table_mlp.cc < <(
    awk '/^\| Python \|/ { inside = 1; getline; next } !/^\|/ { inside = 0 } inside' examples/README.md |
      sed -nE 's/^.*\| `(.*)` \|$/\1/p' | tr -d '[:blank:]')
fi

# --- translations ---

# bare: code without comments, blank lines and indentation.
bare() {
  sed -E 's,(^|[[:blank:]]+)(#|//) .*$,,; s/^[[:blank:]]+//; s/[[:blank:]]+$//; s/[[:blank:]]+/ /g' | grep -v '^$' || true
}

for language in ja hi zh; do
  page=docs/$language.md
  if [ ! -f "$page" ]; then
    wrong "$page is missing"
    continue
  fi
  sections=$(sed -nE 's/^<!-- Translates of README\.md: (.*) -->$/\1/p' "$page")
  [ -n "$sections" ] || wrong "$page does not say what it translates"
  IFS='|' read -r -a headings < <(sed 's/ *| */|/g' <<<"$sections")
  for heading in "${headings[@]}"; do
    sed -nE 's/^#+ //p' README.md | grep -qxF -- "$heading" || wrong "$page translates \"$heading\", which README.md does not have"
  done
  if ! difference=$(diff <(code README.md "${headings[@]}" | bare) <(code "$page" | bare)); then
    wrong "$page: its code differs from README.md's (<: README.md, >: $page)"
    echo "$difference"
  fi
done

if [ "$failed" -eq 0 ]; then echo "${#pages[@]} pages: links, commands, paths and translations are right"; fi
exit "$failed"
