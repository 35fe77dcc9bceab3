#!/usr/bin/env bash
# Packs some programs, unpacks them elsewhere, and checks there what can be checked without a GPU.
set -euo pipefail

. tests/gpu_check_testing.sh

# The libraries that are packed with a program: no part of glibc, nothing of CUDA, and each library once.
tools/bundle.sh --libraries apps/finetune/finetune apps/lathe/lathe >"$temp/libraries"
expect '/libdnnl\.so' "$temp/libraries"
expect '/libstdc\+\+\.so' "$temp/libraries"
! grep -E '/(libc|libm|libpthread|ld-linux[^/]*|libcu[^/]*|libnccl)\.so' "$temp/libraries" || fail "these must not be packed"
[ -z "$(sed 's|.*/||' "$temp/libraries" | sort | uniq -d)" ] || fail "a library is listed twice"
! tools/bundle.sh --libraries "$temp/libraries" >/dev/null 2>"$temp/error" || fail "a text is no program"
expect '^error: ' "$temp/error"

# bundle.sh refuses what it can't pack, in one clear line.
for arguments in 'bundle.zip' 'a.tar.gz b.tar.gz' 'bundle.tar.gz --with /nowhere' 'bundle.tar.gz --nonsense'; do
  # shellcheck disable=SC2086
  ! (cd "$temp" && "$OLDPWD/tools/bundle.sh" $arguments --bin "$OLDPWD" --program apps/lathe/lathe) >"$temp/error" 2>&1 || fail "$arguments"
  expect '^error: ' "$temp/error"
done

mkdir -p "$temp/extra/deep"
echo hello >"$temp/extra/deep/file"
pack "$temp/one.tar.gz" --with "$temp/extra" --with "$temp/extra/deep:golden/other" >"$temp/said"
expect 'needs glibc 2\.[0-9]+ or newer' "$temp/said"

# The same files give the same bytes, here for a program without libraries. A bundle that is too large is refused.
for name in a b; do tools/bundle.sh "$temp/$name.tar.gz" --bin /usr/bin --program true >/dev/null; done
cmp "$temp/a.tar.gz" "$temp/b.tar.gz"
! tools/bundle.sh "$temp/none.tar.gz" --bin /usr/bin --program true --max_mib 0 >/dev/null 2>"$temp/error" || fail "it is larger than nothing"
expect '^error: .* would have [0-9.]+ MiB, more than the 0 ' "$temp/error"
[ ! -e "$temp/none.tar.gz" ] || fail "a file that is too large stays"

# Without xz and zstd, Python unpacks .tar.xz.
if command -v xz >/dev/null && command -v python3 >/dev/null; then
  tools/bundle.sh "$temp/true.tar.xz" --bin /usr/bin --program true >"$temp/said"
  expect 'python3 -m tarfile -e true\.tar\.xz' "$temp/said"
  mkdir "$temp/by_python"
  (cd "$temp/by_python" && python3 -m tarfile -e ../true.tar.xz) || fail "Python can't unpack .tar.xz"
  "$temp/by_python/lathe-gpu/bin/true" || fail "what Python unpacked does not run"
fi

unpack "$temp/one.tar.gz"
for file in MANIFEST bin/apps/finetune/finetune bin/core/optimizer_gpu_test lib/libdnnl.so.2 lib/fallback/libstdc++.so.6 \
  tests/golden/models data/extra/deep/file data/golden/other/file; do
  [ -e "$bundle/$file" ] || fail "$file is not packed"
done
expect '^taken from that machine: .*libcublasLt\.so\.13\|12 libcudnn\.so\.9 ' "$bundle/MANIFEST"
PATH=$temp/commands "$bundle/tools/gpu_check.sh" --quick --out "$temp/results" --stages device,tests,train,speed >"$temp/check" 2>&1 ||
  { cat "$temp/check" "$temp/results/log.txt"; fail "gpu_check.sh without a GPU"; }
expect '^skipped .*no usable GPU here' "$temp/check"
for stage in device tests train speed; do expect "^== $stage" "$temp/check"; done
expect '^# GPU check: none: no nvidia-smi here' results/results.md
expect ' 0 failed' results/results.md
for library in libcublasLt libcudnn libnccl; do expect "^- $library: (/.*|not found)$" results/results.md; done
grep -q 'built without CUDA' results/results.md || expect '^- libraries: (no )?NCCL.*cuBLASLt.*cuDNN' results/results.md
expect '\| tests \| skipped \| core/optimizer_gpu_test \|.*no usable GPU: [0-9]+ cases passed that need none, [1-9][0-9]* skipped' results/results.md
! grep -E '\| passed \| [^|]*_gpu_test' results/results.md || fail "no test of a GPU passes without one"
expect '\| train \| passed \| .*the same again on cpu, bit for bit' results/results.md
expect '"failed": 0,' results/results.json
expect '==== tests: .*/core/optimizer_gpu_test' results/log.txt
expect '^\}$' results/results.json

# A *_gpu_test doesn't pass if only cases that need no GPU have passed.
cat >"$bundle/bin/core/optimizer_gpu_test" <<'END'
#!/bin/sh
echo 'core/x_test.cc:1: Skipped'
echo 'no device'
echo '[  PASSED  ] 2 tests.'
echo '[  SKIPPED ] 7 tests, listed below:'
END
chmod +x "$bundle/bin/core/optimizer_gpu_test"
PATH=$temp/commands "$bundle/tools/gpu_check.sh" --quick --out "$temp/results" --stages tests >"$temp/check" 2>&1 || fail "skipped is not failed"
expect '^skipped +core/optimizer_gpu_test .*no usable GPU: 2 cases passed that need none, 7 skipped' "$temp/check"
expect '\| tests \| skipped \| core/optimizer_gpu_test \|.*2 cases passed .*, 7 skipped' results/results.md

# A failure is reported, and gives the exit code.
printf '#!/bin/sh\necho "core/x_test.cc:1: Failure"\necho "[  FAILED  ] Some.Case (0 ms)"\nexit 1\n' >"$bundle/bin/core/optimizer_gpu_test"
check 1 --quick --stages tests
expect '^failed .*core/optimizer_gpu_test .*failed: Some\.Case' "$temp/check"
expect '^## Failed: 1' results/results.md

# This program ends in its second case, and yet the third one's result is there. In the fourth case the process loses
# the GPU, so the cases that fail after it are repeated in a fresh process. The page shows what a failed case says, up
# to a limit.
cat >"$bundle/bin/core/optimizer_gpu_test" <<'END'
#!/usr/bin/env bash
cases=(A.One A.Two B/0.Three B/0.Four B/0.Five/1 B/0.Six)
filter=all
case ${1:-} in
  --gtest_list_tests)
    printf '%s\n' 'Running main() from x.cc' A. '  One' '  Two' '  DISABLED_Never' 'B/0.  # TypeParam = float' '  Three' '  Four' '  Five/1  # GetParam() = 3' '  Six'
    exit
    ;;
  --gtest_filter=*) filter=${1#*=} ;;
esac
echo "[==========] Running some tests."
bad=0
lost=''
for name in "${cases[@]}"; do
  [ "$filter" = all ] || [[ :$filter: == *":$name:"* ]] || continue
  echo "[ RUN      ] $name"
  [ "$name" != A.Two ] || { echo "free(): invalid pointer"; kill -ABRT $$; }
  if [ "$name" = B/0.Four ]; then
    lost=1
    echo "core/x_test.cc:7: Failure"
    echo "[cuda] cudaMemcpy: an illegal memory access was encountered"
  elif [ -n "$lost" ]; then
    echo "nothing works any more"
  elif [ "$name" = B/0.Six ]; then
    echo "core/x_test.cc:9: Failure"
    echo '	softmax [3, 5] f32 differs first at [1, 2]: 0.5 and "0.25" \ <1e-3'
    for i in {1..400}; do echo "line $i of it"; done
  else
    echo "[       OK ] $name (0 ms)"
    continue
  fi
  bad=1
  echo "[  FAILED  ] $name, where TypeParam = float (1 ms)"
done
echo "[  FAILED  ] 2 tests, listed below:"
exit $bad
END
check 1 --quick --stages tests
expect '^failed +core/optimizer_gpu_test .*exit code 134; 3 passed, 3 failed, 0 skipped; failed: A\.Two \(the program ended in it\), B/0\.Four, B/0\.Six; in 3 processes' "$temp/check"
! grep -q 'NOT RUN' results/results.md || fail "all cases have run"
! grep -q 'nothing works any more' results/results.md || fail "what a lost process says counts for nothing"
expect '^## What failed cases said' results/results.md
expect '^core/optimizer_gpu_test: A\.Two$' results/results.md
expect '^    free\(\): invalid pointer$' results/results.md
expect '^    \(the program ended here, with exit code 134\)$' results/results.md
expect '^    \[cuda\] cudaMemcpy: an illegal memory access was encountered$' results/results.md
expect '^ +softmax \[3, 5\] f32 differs first at \[1, 2\]: 0\.5 and "0\.25" \\ <1e-3$' results/results.md
expect '^    line 298 of it$' results/results.md
expect '^    \(102 more lines may be in log\.txt\)$' results/results.md
expect '"case": "A\.Two", "text": "free\(\): invalid pointer\\n\(the program ended here' results/results.json
expect '"case": "B/0\.Six", "text": "core/x_test\.cc:9: Failure\\n  softmax .* and \\"0\.25\\" \\\\ <1e-3\\nline 1 of it\\n' results/results.json
# If each case ends the program, the repetition stops at some time, and the cases that did not run are named.
cat >"$bundle/bin/core/optimizer_gpu_test" <<'END'
#!/usr/bin/env bash
case ${1:-} in
  --gtest_list_tests) echo A.; for i in {1..40}; do echo "  $i"; done; exit ;;
  --gtest_filter=*) first=${1#*=} first=${first%%:*} ;;
esac
echo "[ RUN      ] ${first:-A.1}"
kill -ABRT $$
END
check 1 --quick --stages tests
expect '^failed .*; 0 passed, 12 failed, .*; in 12 processes, one after each fault; NOT RUN: A\.13 A\.14 .*A\.40$' "$temp/check"
# With no time at all, nothing runs.
check 0 --quick --minutes 0
expect '^skipped .*no time left' "$temp/check"
echo "passed"
