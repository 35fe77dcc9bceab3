#!/usr/bin/env bash
# Formats the C++ files of a commit and checks the sources (tools/check_sources.sh) before git makes it. This
# line installs it:
#   ln -sf ../../tools/pre_commit.sh "$(git rev-parse --git-path hooks)/pre-commit"
# `git commit --no-verify` goes past it.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

command -v clang-format >/dev/null ||
  { echo "error: no clang-format here; hint: tools/setup.sh --tests installs it" >&2; exit 1; }

formatted=$(mktemp)
copy=$(mktemp -d)
trap 'rm -rf "$formatted" "$copy"' EXIT
failed=0
while IFS= read -r -d '' file; do
  git show ":$file" | clang-format --assume-filename="$file" >"$formatted"
  ! git show ":$file" | cmp -s - "$formatted" || continue
  if git diff --quiet -- "$file"; then
    cat "$formatted" >"$file"
    git add -- "$file"
    echo "formatted $file"
  else
    # Adding the file would also commit the changes that are not staged.
    echo "$file: the staged part is not formatted; format and stage it by hand" >&2
    failed=1
  fi
done < <(git diff --cached --name-only --diff-filter=ACMR -z -- '*.h' '*.cc' '*.cu' '*.cuh')

[ "$failed" -eq 0 ] || exit 1
# The files as they will be committed, which the working tree may not have.
git checkout-index --all --prefix="$copy/"
git_dir=$(git rev-parse --absolute-git-dir)
index=$(realpath -- "$(git rev-parse --git-path index)")
[ -z "${GIT_INDEX_FILE:-}" ] || index=$(realpath -- "$GIT_INDEX_FILE")
env -u GIT_PREFIX GIT_DIR="$git_dir" GIT_INDEX_FILE="$index" GIT_WORK_TREE="$copy" "$copy/tools/check_sources.sh"
