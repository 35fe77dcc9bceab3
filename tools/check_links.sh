#!/usr/bin/env bash
# Checks the links of a built site: each `href` and `src` of its HTML pages that leads into the site must name a file that is
# there, and an anchor that the file has. Tags in comments are left out. Prints each broken link with a page that has it, and
# exits with 1 if there is any.
#   tools/check_links.sh site/html
set -euo pipefail
cd "${1:?usage: tools/check_links.sh SITE}"

# The first input lists the files. From it awk takes the pages that it reads next.
find . -type f -printf '%P\n' | LC_ALL=C sort | LC_ALL=C awk '
  # Returns "FILE" or "FILE#ANCHOR" for a link of a page. Both are paths below the site.
  function resolved(page, link,    anchor, parts, kept, n, i, count, path) {
    if (match(link, /#/)) {
      anchor = substr(link, RSTART)
      link = substr(link, 1, RSTART - 1)
    }
    sub(/\?.*/, "", link)
    if (link == "") return page anchor
    if (link !~ /^\//) {
      path = page
      sub(/[^\/]*$/, "", path)
    }
    n = split(path link, parts, "/")
    for (i = 1; i <= n; i++) {
      if (parts[i] == "..") {
        if (--count < 0) return "../" link  # outside of the site
      } else if (parts[i] != "." && (parts[i] != "" || i == n)) {
        kept[++count] = parts[i]
      }
    }
    path = kept[1]
    for (i = 2; i <= count; i++) path = path "/" kept[i]
    if (path ~ /(^|\/)$/) path = path "index.html"
    return path anchor
  }

  FILENAME == "-" {
    files[$0] = 1
    if (/\.html$/) ARGV[ARGC++] = $0
    next
  }
  FNR == 1 { in_comment = 0 }
  in_comment && !/-->/ { next }
  in_comment {
    sub(/^.*-->/, "")
    in_comment = 0
  }
  /<!--/ {
    while (match($0, /<!--/)) {
      head = substr($0, 1, RSTART - 1)
      tail = substr($0, RSTART + 4)
      in_comment = !match(tail, /-->/)
      $0 = head (in_comment ? "" : substr(tail, RSTART + 3))
    }
  }
  {
    while (match($0, /[ \t](href|src|id|name)="[^"]*"/)) {
      name = substr($0, RSTART + 1, 1)
      value = substr($0, RSTART, RLENGTH - 1)
      sub(/^[^"]*"/, "", value)
      $0 = substr($0, RSTART + RLENGTH)
      if (name == "i" || name == "n") anchors[FILENAME "#" value] = 1
      else if (value !~ /^(https?|mailto|javascript|data):/ && !((FILENAME, value) in seen)) {
        seen[FILENAME, value] = 1
        count++
        gsub(/&amp;/, "\\&", value)
        target = resolved(FILENAME, value)
        if (!(target in page_of)) {
          page_of[target] = FILENAME
          written[target] = value
        }
      }
    }
  }
  END {
    for (target in page_of) {
      file = target
      sub(/#.*/, "", file)
      anchor = substr(target, length(file) + 1)
      if (!(file in files)) problem = "which is not there"
      else if (length(anchor) > 1 && !(target in anchors)) problem = "which has no such anchor"
      else continue
      print page_of[target] ": a link to " written[target] ", " problem
      failed++
    }
    if (count == 0) print "no page has a link"
    if (failed == 0 && count > 0) print "links: " count " lead to what is there"
    exit (failed > 0 || count == 0)
  }' - | LC_ALL=C sort
