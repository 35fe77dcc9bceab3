#!/usr/bin/env bash
# Feeds changed inputs to every reader, with libFuzzer, AddressSanitizer and UBSan. tests/fuzz has a fuzzer for each
# format. Prints one line for each. Exits with 1 if there is a finding: a crash, an exception that is no lathe::Error, a
# leak, more than 10 seconds for one input, or more than 2 GB.
#   tools/fuzz.sh                      # 100,000 inputs for each format
#   tools/fuzz.sh --runs 1000          # fewer
#   tools/fuzz.sh csv tokenizer_json   # these formats only
#   tools/fuzz.sh --out DIR            # where logs and findings go; a new folder otherwise
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  echo "error: $1; hint: tools/fuzz.sh [--runs N] [--out DIR] [FORMAT...]" >&2
  exit 2
}
runs=100000
out=
formats=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs | --out)
      [ $# -ge 2 ] || usage "$1 needs a value"
      if [ "$1" = --runs ]; then runs=$2; else out=$2; fi
      shift 2
      ;;
    -*) usage "unknown argument \"$1\"" ;;
    *)
      formats+=("$1")
      shift
      ;;
  esac
done
[[ $runs =~ ^[1-9][0-9]*$ ]] || usage "--runs must be a whole number above 0"

tools/setup.sh --clang
quiet=(--color=no --noshow_progress)
list() { bazel query "${quiet[@]}" "$1" 2>/dev/null | sed -n 's|^//tests/fuzz:\(.*\)_fuzzer$|\1|p'; }
all=$(list 'kind(cc_binary, //tests/fuzz:*)')
if [ ${#formats[@]} -eq 0 ]; then
  mapfile -t formats < <(list 'kind(cc_binary, //tests/fuzz:*) except attr(tags, "\bby_name\b", //tests/fuzz:*)')
fi
[ ${#formats[@]} -gt 0 ] || { echo "error: bazel query finds no fuzzer in tests/fuzz" >&2; exit 1; }
for format in "${formats[@]}"; do
  grep -qxF -- "$format" <<<"$all" || usage "no format \"$format\"; there are: ${all//$'\n'/ }"
done

mapfile -t labels < <(printf '//tests/fuzz:%s_fuzzer\n' "${formats[@]}")
bazel build "${quiet[@]}" --config=fuzz "${labels[@]}"
programs=$(bazel info "${quiet[@]}" --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz

[ -n "$out" ] || out=$(mktemp -d /tmp/lathe_fuzz.XXXXXX)
mkdir -p "$out"
# libFuzzer adds inputs that reach new code to its first folder. The corpus stays as it is.
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT

total=0
for format in "${formats[@]}"; do
  log=$out/$format.log
  rm -f "$out/$format"-*
  mkdir "$found/$format"
  SECONDS=0
  status=0
  "$programs/${format}_fuzzer" -runs="$runs" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$out/$format-" "$found/$format" "tests/fuzz/corpus/$format" >"$log" 2>&1 || status=$?
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  findings=$(find "$out" -maxdepth 1 -name "$format-*" ! -name "$format-slow-unit-*" | wc -l)
  # A program that fails without an artifact, as one that can't start, is a finding, too.
  [ "$status" -eq 0 ] || [ "$findings" -gt 0 ] || findings=1
  printf '%-20s %8s inputs %5d s %2d findings%s\n' "$format" "${inputs:-?}" "$SECONDS" "$findings" \
    "$([ "$findings" -eq 0 ] || echo "; see $log")"
  total=$((total + findings))
done
[ "$total" -eq 0 ]
