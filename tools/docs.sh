#!/usr/bin/env bash
# Builds the pages and the API reference as a site: open site/html/index.html. Doxygen and mkdocs are installed
# from Debian's archive if they are missing. Every warning of either is an error, and so is a link that leads nowhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh --docs

rm -rf site
mkdir -p site/pages
cp -r docs/. site/pages
rm site/pages/Doxyfile
cp README.md site/pages/index.md
cp CONTRIBUTING.md site/pages/contributing.md
cp LICENSE site/pages

# The headers that programs may include. Kernels and tests have others.
headers=$(find lathe.h core nn optim data models distributed train apps -name '*.h' | LC_ALL=C sort |
  grep -vE '/testing/|_testing\.h$|/fake_[^/]*$|^core/(cpu|cuda)/')
{
  cat docs/Doxyfile
  echo "INPUT = $(tr '\n' ' ' <<<"$headers")"
  echo "OUTPUT_DIRECTORY = site/pages"
} | doxygen -

# If all nested classes are private, Doxygen leaves their list out, but not the link to it.
nested='<a href="#nested-classes">Classes</a> &#124;'
{ grep -rlF "$nested" site/pages/api || true; } | { xargs -r grep -LF 'name="nested-classes"' || true; } | xargs -r sed -i "s,$nested,,"

# The theme's pages name two scripts that Debian's mkdocs lacks. jQuery is in a package that mkdocs depends on. The other
# script lets the theme draw tables with lines, and lets wide ones scroll.
mkdir -p site/pages/js
cp /usr/share/javascript/jquery/jquery.min.js site/pages/js/jquery-3.6.0.min.js
echo 'for (const table of document.querySelectorAll(".rst-content table")) table.classList.add("docutils");' \
  >site/pages/js/theme_extra.js

# On the site README.md is the first page, and no source is there: links to sources become plain text.
sed -E -i \
  -e 's,\]\(docs/,](,g; s,\]\(README\.md,](index.md,g; s,\]\(CONTRIBUTING\.md,](contributing.md,g' \
  -e 's,\[([^]]*)\]\((core|nn|optim|data|models|distributed|train|apps|examples|tests|tools)/[^)]*\),\1,g; s,\[([^]]*)\]\(extending/?\),\1,g' \
  site/pages/{index,contributing}.md
sed -E -i \
  -e 's,\]\(\.\./README\.md,](index.md,g; s,\]\(\.\./CONTRIBUTING\.md,](contributing.md,g' \
  -e 's,\[([^]]*)\]\(\.\./[^)]*\),\1,g' \
  $(ls site/pages/*.md | grep -vE '/(index|contributing)\.md$')
sed -E -i \
  -e 's,\]\(\.\./\.\./README\.md,](../index.md,g; s,\]\(\.\./\.\./CONTRIBUTING\.md,](../contributing.md,g' \
  -e 's,\[([^]]*)\]\(\.\./\.\./[^)]*\),\1,g' \
  site/pages/extending/*.md
printf '\n## API reference\n\n[All public headers](api/files.html), with what they declare.\n' >>site/pages/index.md

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! mkdocs build --strict >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
tools/check_links.sh site/html
echo "docs: open site/html/index.html"
