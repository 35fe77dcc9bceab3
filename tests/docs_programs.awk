# Makes one C++ source of all blocks of C++ in pages (```cpp), so that a test compiles them:
#
#   awk -f docs_programs.awk README.md docs/data.md ... >docs_programs.cc
#
# Each block stands in a namespace of its own, behind #include "lathe/lathe.h". If it needs more around it, an HTML comment
# before it has that, where readers of the page do not see it:
#
#   <!-- C++: void Train(lathe::Accelerator& accelerator) { -->
#
# The comment's code comes before the block, and may have several lines. Braces that it leaves open are closed behind the
# block, with "};". Lines with #include stand before the namespace. "<!-- C++ in lathe: ... -->" puts the namespace into
# lathe, as sources of Lathe need it. A block behind "<!-- C++ of FILE -->" is left out, since docs_test.sh compares it with
# that program. Errors of the compiler name the page and the line.

function fail(message) {
  print FILENAME ":" FNR ": " message >"/dev/stderr"
  failed = 1
  exit 1
}

# Adds a line to the code of the present block, or to its includes.
function add(line) {
  if (line ~ /^ *#include/) includes = includes line "\n"
  else code = code line "\n"
}

# Says that the code to come stands from this line of the page on.
function mark(line) { code = code "#line " line " \"" FILENAME "\"\n" }

function forget() {
  includes = code = outer = ""
  open = 0
  has_comment = is_left_out = 0
}

# Adds a line of a comment's code. "-->" ends the comment.
function take(line) {
  in_comment = line !~ /-->/
  sub(/ *-->.*/, "", line)
  if (line !~ /[^ ]/) return
  add(line)
  open += gsub(/{/, "", line) - gsub(/}/, "", line)
}

FNR == 1 {
  if (fenced || in_comment) fail("the page before it ends within a block or a comment")
  forget()
}

fenced && /^ *```/ {
  fenced = 0
  if (is_cpp && !is_left_out) {
    for (; open > 0; --open) code = code "};\n"
    printf "\n%snamespace %s%s {\n%s}\n", includes, outer, name, code
  }
  forget()
  next
}
fenced {
  if (is_cpp) add($0)
  next
}
/^ *```/ {
  fenced = 1
  is_cpp = /^ *```cpp/
  if (has_comment && !is_cpp) fail("a comment with C++ stands before another block")
  name = FILENAME
  gsub(/[^A-Za-z0-9]/, "_", name)
  name = "page_" name "_" FNR
  mark(FNR + 1)
  next
}

in_comment { take($0); next }
/^<!-- C\+\+ of .* -->$/ {
  forget()
  has_comment = is_left_out = 1
  next
}
/^<!-- C\+\+/ {
  forget()
  has_comment = 1
  line = $0
  sub(/^<!-- C\+\+/, "", line)
  if (match(line, /^ in [a-z:]*[a-z]:/)) {
    outer = substr(line, 5, RLENGTH - 5) "::"
    line = substr(line, RLENGTH)
  }
  if (line !~ /^:/) fail("expected <!-- C++: or <!-- C++ in NAMESPACE: or <!-- C++ of FILE -->")
  mark(FNR)
  take(substr(line, 2))
  next
}
/[^ ]/ && has_comment { fail("a block of C++ was expected behind the comment") }

BEGIN { print "#include \"lathe/lathe.h\"" }
END {
  if (failed) exit 1
  if (fenced || in_comment || has_comment) fail("the page ends within a block, or behind a comment with C++")
}
