# Turns the plain comments of a C++ header into comments that Doxygen reads. Doxygen runs it on each header.
#   - A comment before a declaration becomes `///`, and one behind a declaration `///<`.
#   - The comment that opens the header describes the file.
#   - Signs that Doxygen or Markdown would interpret are escaped, so that text is shown as it stands.
#   - Lines that are indented by three blanks or more, and belong to no list, are shown as code.

# Escapes what Doxygen or Markdown would interpret, outside of `code`.
function plain(text,    count, parts, i, out) {
  count = split(text, parts, "`")
  for (i = 1; i <= count; ++i) {
    if (i % 2 == 1 || count % 2 == 0) {
      gsub(/[\\*_<>#&@$%|~\[\]]/, "\\\\&", parts[i])
      gsub(/--/, "\\--", parts[i])
    }
    out = out (i == 1 ? "" : count % 2 == 1 ? "`" : "\\`") parts[i]
  }
  return out
}

FNR == 1 && /^\/\// { print "/// \\file" }

/^ *\/\// {
  match($0, /^ */)
  prefix = substr($0, 1, RLENGTH) "///"
  text = $0
  sub(/^ *\/\//, "", text)
  if (text ~ /^ *$/) {
    before = "empty"
    print prefix
  } else if (text ~ /^   / && before != "list") {
    if (before == "text") print prefix
    before = "code"
    gsub(/\/\*[^*]*\*\//, "", text)  # a comment within the example would end Doxygen's
    print prefix "    " text
  } else {
    if (before == "code") print prefix
    if (text ~ /^ *(-|[0-9]+\.) /) before = "list"
    else if (before != "list" || text !~ /^   /) before = "text"
    print prefix plain(text)
  }
  next
}

{ before = "" }

# A comment behind a declaration, but not behind what opens or ends a block.
/[^ ].*[;,})A-Za-z0-9]  *\/\/ / && !/\{ *\/\/ / && !/^ *#/ && !/^}/ {
  at = match($0, / +\/\/ /)
  print substr($0, 1, at - 1) " ///< " plain(substr($0, at + RLENGTH))
  next
}

{ print }
