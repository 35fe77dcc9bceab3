#!/usr/bin/env bash
# Builds everything and runs every test. The last line is "N passed, N failed, N skipped", counted in test
# cases. Exits with 1 if a test failed or none ran.
#   tools/test.sh --levels       # then runs all tests again as on processors of each level (2, 3 and 4) below
#                                # this one's: without AVX2, without AVX-512, without AVX512-BF16
#   tools/test.sh --embedding    # also compiles all of Lathe in a workspace that embeds it, not only its tokenizers
#   tools/test.sh --sanitizers   # also builds with clang, and runs the tests that suit AddressSanitizer, UBSan
#                                # and TSan with these; see CONTRIBUTING.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

levels=()
sanitizers=
embedding=
for argument in "$@"; do
  case $argument in
    --levels) levels=(2 3 4) ;;
    --embedding) embedding=1 ;;
    --sanitizers) sanitizers=1 ;;
    *) echo "error: unknown argument \"$argument\"; hint: tools/test.sh [--levels] [--embedding] [--sanitizers]" >&2; exit 2 ;;
  esac
done

tools/setup.sh --tests

quiet=(--color=no --noshow_progress)
options=()
# Where no GPU runs the kernels, they compile faster without optimization, and for the oldest supported GPUs. The
# programs that are left in bazel-bin say so in `lathe env`. A plain `bazel build` optimizes the kernels again.
gpu=1
nvidia-smi -L >/dev/null 2>&1 || gpu=
[ -n "$gpu" ] || options+=(--define=lathe_kernels=unoptimized)
for folder in golden data; do
  variable=LATHE_${folder^^}_DIR
  dir=${!variable:-}
  if [ -z "$dir" ] && [ -d "../shared/$folder" ]; then dir=../shared/$folder; fi
  # Tests run in a folder of their own, so they need an absolute path.
  [ -z "$dir" ] || options+=("--test_env=$variable=$(realpath -e -- "$dir")")
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0
failed=0
skipped=0

# took WHAT: prints the seconds since the last call.
total=0
SECONDS=0
took() {
  echo "-- $1: $SECONDS s"
  total=$((total + SECONDS))
  SECONDS=0
}

if tools/check_sources.sh; then
  passed=$((passed + 1))
else
  echo "FAILED: tools/check_sources.sh"
  failed=$((failed + 1))
fi

took "checking the sources"

# Builds as on a machine without CUDA. This comes first, so that the default build's programs are there in the
# end. The two builds differ in some dozens of actions.
if bazel build "${quiet[@]}" --config=cpu //apps/finetune //apps/lathe //core/... && bazel-bin/apps/lathe/lathe env | grep 'built without CUDA' >/dev/null; then
  passed=$((passed + 1))
else
  echo "FAILED: bazel build --config=cpu"
  failed=$((failed + 1))
fi

took "building without CUDA"

# Compiles the kernels for the oldest supported GPUs, as the build of everything does where there is no GPU.
if [ -n "$gpu" ]; then
  if ! bazel query "${quiet[@]}" //core:cuda_kernels_sm_80 >/dev/null 2>&1; then
    echo "no CUDA here: kernels are not compiled for sm_80"
    skipped=$((skipped + 1))
  elif bazel build "${quiet[@]}" //core:cuda_kernels_sm_80; then
    passed=$((passed + 1))
  else
    echo "FAILED: compiling the kernels for sm_80"
    failed=$((failed + 1))
  fi
  took "kernels for sm_80"
fi

# run_each "LABELS" BAZEL_OPTION...: runs these tests, and counts each as one case.
run_each() {
  local labels=$1 label
  shift
  # shellcheck disable=SC2086
  bazel test "${quiet[@]}" "${options[@]}" "$@" --keep_going --local_test_jobs=2 $labels 2>&1 | tee "$log" || true
  for label in $labels; do
    if grep -qE "^$label +(\(cached\) )?PASSED" "$log"; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
    fi
  done
}
# run_sanitizer NAME QUERY: runs the tests that QUERY finds with --config=NAME.
run_sanitizer() {
  local labels
  labels=$(bazel query "${quiet[@]}" "$2" 2>/dev/null) || true
  if [ -n "$labels" ]; then
    run_each "$labels" "--config=$1"
  else
    echo "FAILED: bazel query of the tests for $1"
    failed=$((failed + 1))
  fi
  took "tests with --config=$1"
}
if [ -n "$sanitizers" ]; then
  kernels='filter("_emulated_test$", tests(//core/...))'
  run_sanitizer asan "$kernels"
  run_sanitizer emulated_in_a_shuffled_order "$kernels"
  run_sanitizer ubsan 'tests(//core/... + //data/... + //nn/... + //optim/... + //models/... + //distributed/... + //train/...) except filter("_gpu_test$|_emulated|cuda|nccl|inner_loops", tests(//...))'
  run_sanitizer tsan "attr(tags, '\btsan\b', tests(//...))"
  if tools/setup.sh --clang && bazel build "${quiet[@]}" --config=clang --config=cpu //...; then
    passed=$((passed + 1))
  else
    echo "FAILED: bazel build --config=clang"
    failed=$((failed + 1))
  fi
  took "building with clang"
fi

# If a part does not build, it counts as one failed case, because the number of its cases is unknown.
jobs=100
bazel build "${quiet[@]}" "${options[@]}" --keep_going //... || { failed=$((failed + 1)); jobs=2; }

# Prints "PASSED FAILED SKIPPED", the cases in a test.xml, or in those of a test's shards. GoogleTest wrote it, or (after a
# crash or a timeout) Bazel. Disabled cases are none of these.
count_cases() {
  awk '
    function attribute(name) {
      return match($0, " " name "=\"[0-9]+\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : 0
    }
    /^ *<testsuite name=/ {
      bad += attribute("failures") + attribute("errors")
      good += attribute("tests") - attribute("failures") - attribute("errors") - attribute("skipped") - attribute("disabled")
    }
    /^ *<testsuite name=/ { idle += attribute("skipped") }
    END { print good + 0, bad + 0, idle + 0 }' "$@"
}

# run_tests BAZEL_OPTION...: runs the tests of //... and counts them. Tests use all cores themselves, but many wait for
# a timeout. A busy one takes ten parts (tools/lathe.bzl), so there are three at a time, and some that wait. This keeps two
# cores busy if Bazel chooses among many tests, which --jobs allows unless something is left to compile. Some tests promise
# an end within seconds, which others (or other users of the machine) can delay: up to five that fail run once more, alone,
# and are named if they pass then. Results never come from the cache, which knows nothing of the files in the data folders.
run_tests() {
  local label folder reports good bad idle again
  local run=(bazel test "${quiet[@]}" --keep_going --nocache_test_results "${options[@]}" "$@")
  "${run[@]}" --jobs="$jobs" --local_test_jobs=0 --local_cpu_resources=34 //... 2>&1 | tee "$log" || true
  again=$(grep -oE '^//\S+ +(FAILED|TIMEOUT)' "$log" | cut -d ' ' -f 1 | sort -u) || true
  if [ -n "$again" ] && [ "$(wc -l <<<"$again")" -le 5 ]; then
    # shellcheck disable=SC2086
    "${run[@]}" --jobs=1 --local_test_jobs=1 $again 2>&1 | tee -a "$log" || true
    for label in $again; do
      ! grep -qE "^$label +PASSED" "$log" || echo "failed beside other tests, passed alone: $label"
    done
  fi
  while read -r label; do
    folder=bazel-testlogs/${label#//}
    folder=${folder/://}
    mapfile -t reports < <(compgen -G "$folder/test.xml" || compgen -G "$folder/shard_*/test.xml")
    good=0
    bad=0
    idle=0
    if grep -qE "^$label +(\(cached\) )?PASSED" "$log"; then
      read -r good bad idle < <(count_cases /dev/null "${reports[@]}")
    elif grep -qE "^$label +(\(cached\) )?(FAILED|TIMEOUT|FLAKY)" "$log" && [ "${#reports[@]}" -gt 0 ]; then
      read -r good bad idle < <(count_cases /dev/null "${reports[@]}")
      [ "$bad" -gt 0 ] || bad=1  # it ended badly after its last case
    else
      bad=1  # it did not run
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    skipped=$((skipped + idle))
  done < <(bazel query "${quiet[@]}" 'tests(//...) except attr(tags, "\bmanual\b", //...)' 2>/dev/null)
}

took "building everything"
# No result may depend on the order of a kernel's blocks and threads. So the emulator runs the kernels in reverse order
# (under AddressSanitizer), training steps in a shuffled order, and whole models forward. With --sanitizers it has run the
# kernels in a shuffled order, too.
run_tests
took "all tests"
for level in ${levels[@]+"${levels[@]}"}; do
  settings=$(tests/with_isa.sh --settings "$level")
  if [ -z "$settings" ]; then
    echo "this processor lacks level $level, so the tests are not run at it"
    skipped=$((skipped + 1))
    continue
  fi
  if [ -z "$(tests/with_isa.sh --settings $((level + 1)))" ]; then
    echo "level $level is this processor's own, so the tests have run at it"
    continue
  fi
  echo "== as a processor of level $level: ${settings//$'\n'/, }"
  # shellcheck disable=SC2086
  run_tests $(printf -- '--test_env=%s ' $settings)
  took "all tests at level $level"
done

# Builds the pages and the API reference. //tests:docs_test checks what the pages say.
if tools/docs.sh; then
  passed=$((passed + 1))
else
  echo "FAILED: tools/docs.sh"
  failed=$((failed + 1))
fi
took "the pages"

# A separate workspace embeds Lathe. The program that uses all of Lathe has been built and run above, as
# //tests/embedding. Here Bazel finds all that this program needs, makes the headers that are generated, and builds
# and runs a program that needs the tokenizers only. With --embedding it builds and runs the first program, too, which
# compiles all of Lathe once more, and faster where nothing is optimized but the CPU's kernels. It uses no GPU.
embed() {
  local generated
  generated=$(bazel query "${quiet[@]}" 'filter("^@lathe//", kind(genrule, deps(//:embedding)))' 2>/dev/null) || return
  [ -n "$generated" ] || return
  # shellcheck disable=SC2086
  bazel build "${quiet[@]}" "$@" --nobuild //:embedding && bazel build "${quiet[@]}" "$@" //:tokenize $generated && bazel-bin/tokenize || return
  [ -z "$embedding" ] || { bazel build "${quiet[@]}" "$@" //:embedding && bazel-bin/embedding; }
}
if (cd tests/embedding && embed -c fastbuild --define=lathe_kernels=unoptimized); then
  passed=$((passed + 1))
else
  echo "FAILED: tests/embedding"
  failed=$((failed + 1))
fi
(cd tests/embedding && bazel shutdown >/dev/null 2>&1) || true
took "the workspace that embeds Lathe"

echo "-- all together: $total s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
