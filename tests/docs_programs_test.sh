#!/usr/bin/env bash
# Tests docs_programs.awk, which takes the C++ out of pages. The build has compiled what it took from Lathe's own pages,
# since this test depends on that library.
set -euo pipefail

script=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/docs_programs.awk")
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# In Bazel's sandbox the pages and the source are beside the tests.
root=$(dirname "${BASH_SOURCE[0]}")/..

# Every block is taken, or is compared with a program by docs_test.sh.
mapfile -t pages < <(find -L "$root/docs" "$root/README.md" "$root/CONTRIBUTING.md" "$root/examples/README.md" -name '*.md')
blocks=$(cat "${pages[@]}" | grep -cE '^ *```cpp' || true)
compared=$(cat "${pages[@]}" | grep -cE '^<!-- C\+\+ of ' || true)
taken=$(grep -c '^namespace .*page_' "$root/tests/docs_programs.cc" || true)
if [ "${#pages[@]}" -lt 10 ] || [ "$compared" -eq 0 ] || [ "$taken" -eq 0 ] || [ "$blocks" -ne $((compared + taken)) ]; then
  echo "FAILED: of $blocks blocks in ${#pages[@]} pages $taken were compiled and $compared compared"
  failed=1
fi

# expect WHAT STATUS EXPECTED: the page that it reads gives this output, and nothing else.
expect() {
  local status=0 output
  cat >"$folder/page.md"
  output=$(cd "$folder" && awk -f "$script" page.md 2>&1) || status=$?
  output=$(sed '/^#include "lathe\/lathe.h"$/d; /^$/d' <<<"$output")
  [ "$status" -eq "$2" ] && [ "$output" = "$3" ] && return
  echo "FAILED: $1: exit code $status, expected $2 and"
  echo "$3"
  echo "--- but got"
  echo "$output"
  failed=1
}

expect "declarations stand in a namespace, and other blocks are none of C++" 0 'namespace page_page_md_5 {
#line 6 "page.md"
int F();
}' <<'END'
```sh
int G();
```

```cpp
int F();
```
END

expect "a comment opens a function, and includes come first" 0 '#include <vector>
#include <string>
namespace lathe::nn::page_page_md_7 {
#line 1 "page.md"
int Twice(int n);
void F() {
#line 8 "page.md"
std::vector<std::string> texts;
};
}' <<'END'
<!-- C++ in lathe::nn:
#include <vector>
int Twice(int n);
void F() {
-->

```cpp
#include <string>
std::vector<std::string> texts;
```
END

expect "a comment in one line, and a block that is compared elsewhere" 0 'namespace page_page_md_6 {
#line 5 "page.md"
 const int kNumbers[] = {
#line 7 "page.md"
1, 2,
};
}' <<'END'
<!-- C++ of main.cc -->
```cpp
broken(
```
<!-- C++: const int kNumbers[] = { -->
```cpp
1, 2,
```
END

expect "a comment without a block" 1 'page.md:2: a block of C++ was expected behind the comment' <<'END'
<!-- C++: void F() { -->
Text.
END
expect "a comment before another block" 1 'page.md:2: a comment with C++ stands before another block' <<'END'
<!-- C++: void F() { -->
```sh
```
END
expect "a comment that does not say what it is" 1 \
  'page.md:1: expected <!-- C++: or <!-- C++ in NAMESPACE: or <!-- C++ of FILE -->' <<'END'
<!-- C++ void F() { -->
END
expect "a block without an end" 1 'page.md:2: the page ends within a block, or behind a comment with C++' <<'END'
```cpp
int F();
END

[ "$failed" -eq 0 ] && echo "$taken blocks were compiled, and $compared are compared with programs"
exit "$failed"
