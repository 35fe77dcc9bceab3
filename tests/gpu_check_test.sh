#!/usr/bin/env bash
# Checks what tools/gpu_check.sh makes of a GPU that is only pretended, by programs that stand in for Lathe's.
set -euo pipefail

. tests/gpu_check_testing.sh

pack "$temp/one.tar.gz" >/dev/null
unpack "$temp/one.tar.gz"

# A fake nvidia-smi shows a GPU. The stages must report losses and times correctly.
cat >"$temp/commands/nvidia-smi" <<'END'
#!/usr/bin/env bash
case "$*" in
  *-lms*) while :; do echo 1234; sleep 0.1; done ;;
  *memory.used*) echo 34 ;;
  *) echo "Some GPU, 1.2, 80000 MiB" ;;
esac
END
cat >"$bundle/bin/apps/lathe/lathe" <<'END'
#!/usr/bin/env bash
[ -z "${LOG_PATHS:-}" ] || echo "$LD_LIBRARY_PATH" >>"$LOG_PATHS"
own=${0%/bin/*}/lib
[[ -z ${OLD_LIBSTDCXX:-} || $LD_LIBRARY_PATH == "$own:$own/fallback:"* ]] || exit 1
case $1 in
  env)
    device="cuda:0 is Some GPU, compute capability 9.0"
    [[ -z ${OLD_DRIVER:-} || $LD_LIBRARY_PATH == "$CUDA_PATH/compat:"* ]] || device="none (the driver is too old)"
    echo "- Devices: CPU; CUDA 13.0, kernels for sm_90: $device"
    [ -z "${NO_CUBLASLT:-}" ] || echo "- Library for GPUs: no cuBLASLt: there is none"
    ;;
  predict)
    score=0.75
    [[ $* != *"--device cuda"* ]] || score=${GPU_SCORE:-0.75001}
    while read -r _; do echo "{\"label\":\"1\",\"score\":$score,\"scores\":{\"0\":0.25,\"1\":$score}}"; done
    ;;
  test) echo "a tiny BERT, 12 steps: $*" ;;
  estimate-memory) printf '  weights      1.0 MiB\n  together     %s\n' "${ESTIMATE:-2.00 MiB}" ;;
esac
END
rm "$bundle/bin/apps/finetune/finetune"
# On the GPU the loss is $GPU_LOSS. With NOISE=some, each run without --deterministic gives other weights; with
# NOISE=always, all runs do.
cat >"$bundle/bin/apps/finetune/finetune" <<'END'
#!/usr/bin/env bash
echo "  --mixed_precision NAME  no, bf16"
weights=same
case "${NOISE:-} $*" in always* | some*) weights=$RANDOM$RANDOM ;; esac
case "${NOISE:-} $*" in some*--deterministic*) weights=same ;; esac
[ -z "${LATHE_TUNE_CACHE:-}" ] || echo '{}' >"$LATHE_TUNE_CACHE"
while [ $# -gt 0 ]; do
  case $1 in
    --output_dir) out=$2 ;;
    --max_steps) steps=$2 ;;
    --device) device=$2 ;;
  esac
  shift
done
[ -n "${out:-}" ] || exit 0
mkdir -p "$out"
sleep "${TAKES:-0}"
loss=0.7
[ "$device" = cpu ] || loss=${GPU_LOSS:-0.70001}
printf '  "loss": %s,\n' $loss >"$out/trainer_state.json"
printf '  "eval_loss": 0.6\n' >"$out/eval_results.json"
printf '  "peak_device_memory_bytes": 1048576,\n  "time_to_first_step": 1.5,\n  "train_runtime": %s.0,\n  "train_samples_per_second": 32.0,\n' "$steps" >"$out/train_results.json"
echo $weights >"$out/model.safetensors"
END
mkdir -p "$bundle/bin/tests/benchmarks"
cat >"$bundle/bin/tests/benchmarks/device_kernels" <<'END'
#!/usr/bin/env bash
echo "Some GPU; 512 tokens"
echo "copy of 64 MiB   10.0 us   3000.0 GB/s  100.0 % of a copy"
END
cat >"$bundle/bin/tests/benchmarks/training_step" <<'END'
#!/usr/bin/env bash
echo "tiny, bf16, batch 32, 4096 tokens a batch, Some GPU"
echo "step 2.500 ms"
echo "1638400 tokens/s, 12800.0 samples/s; products 150.5 of 600.0 GFLOP/s: 25.1 % of the ceiling"
echo "peak memory of tensors 1.25 GB"
END
chmod +x "$temp/commands/nvidia-smi" "$bundle"/bin/apps/*/* "$bundle"/bin/tests/benchmarks/*
printf '#!/bin/sh\necho "[  PASSED  ] 2 tests."\necho "[  SKIPPED ] 7 tests, listed below:"\n' >"$bundle/bin/core/optimizer_gpu_test"
check 0 --quick --stages tests
expect '^passed +core/optimizer_gpu_test .*2 passed, 7 skipped' "$temp/check"
check 0 --quick --stages train,speed
expect '^# GPU check: Some GPU' results/results.md
for what in 'same again on cuda with --deterministic' 'same without CUDA graphs, with --deterministic'; do
  for name in f32 bf16; do expect "\\| train \\| passed \\| $name-dropout-0\\.1: the $what, bit for bit " results/results.md; done
done
expect '\| passed \| f32-dropout-0: the same again on cuda \|.*; the same bits, too' results/results.md
expect '\| passed \| bf16-dropout-0\.1: with --gradient_checkpointing and --deterministic, bit for bit ' results/results.md
expect '\| passed \| f32-dropout-0: 2 batches of 16 in place of 1 of 32 ' results/results.md
expect '\| passed \| bf16-dropout-0: with LATHE_TUNE=1 again \|.*first step after 1\.5 s untuned, 1\.5 s tuning, 1\.5 s with' results/results.md
expect '\| passed \| bf16-dropout-0: LATHE_ATTENTION=cudnn on the GPU against the CPU ' results/results.md
expect '\| passed \| lathe predict: GPU against CPU \|.*scores of 128 texts differ by at most 1\.00e-05' results/results.md
expect '\| passed \| lathe test, bf16 \|.*a tiny BERT, 12 steps: test --num_processes 1 --mixed_precision bf16' results/results.md
expect '\| passed \| lathe estimate-memory, bf16, --no_cuda_graphs \|.*took 0\.50 of the estimate: 1048576 of 2097152 bytes' results/results.md
expect '\| f32-dropout-0.1: GPU against CPU \|.* differ by 1.43e-05 of them' results/results.md
expect '^\| tiny-sst2-32 \| Lathe \| 32 \| 1000.00 \|  \| 1.5 \| 1200 \|' results/results.md
expect '^\| tiny-sst2-32 \| Lathe, steps alone \| 12800 \| 2.500 \| 25\.1 \|' results/results.md
expect '^    copy of 64 MiB +10.0 us +3000.0 GB/s  100.0 % of a copy$' results/results.md
expect '"system": "Lathe, steps alone", "step_ms": 2.500, "samples_per_s": 12800.0, .*"products_gflops": 150.5, "ceiling_gflops": 600.0, "of_ceiling_percent": 25.1, "tensors_gb": 1.25' results/results.json
expect '"name": "kernels", "line": "copy of 64 MiB' results/results.json
expect '"system": "Lathe", "samples_per_s": 32.0, "step_ms": 1000.00' results/results.json

# CUDA's libraries are taken in one version and from one place: 13 before 12, python3's packages before the system.
cat >"$temp/commands/python3" <<'END'
#!/usr/bin/env bash
case "$*" in *sysconfig*) echo "$PACKAGES" ;; esac
END
cat >"$temp/commands/ldconfig" <<'END'
#!/usr/bin/env bash
for name in cublasLt.so.12 cudnn.so.9 nccl.so.2 nvrtc.so.12; do echo "	lib$name (libc6,x86-64) => /system/lib$name"; done
END
# This find searches a stand-in for the machine's folders, and records each search.
rm "$temp/commands/find"
printf '#!/usr/bin/env bash\necho "$*" >>"%s/searches"\nwhile [[ $1 == /* ]]; do shift; done\nexec "%s" "%s/machine" "$@"\n' \
  "$temp" "$(command -v find)" "$temp" >"$temp/commands/find"
chmod +x "$temp"/commands/{python3,ldconfig,find}
mkdir -p packages/nvidia/{cu13,cudnn}/lib cuda/{lib64,compat} machine/{deep,stubs} nvidia/{bin,lib64}
touch packages/nvidia/cu13/lib/lib{cublasLt,nvrtc}.so.13 packages/nvidia/cudnn/lib/libcudnn.so.9 cuda/lib64/lib{cublasLt.so.1{2,3},cudnn.so.9}
touch machine/{deep,stubs}/lib{cublasLt,nvrtc}.so.13
export CUDA_PATH=$temp/cuda PACKAGES=$temp/packages
check 0 --stages device
expect "^- libcublasLt: $temp/packages/nvidia/cu13/lib/libcublasLt\.so\.13$" results/results.md
expect "^- libcudnn: $temp/packages/nvidia/cudnn/lib/libcudnn\.so\.9$" results/results.md
expect "^- libnvrtc: $temp/packages/nvidia/cu13/lib/libnvrtc\.so\.13$" results/results.md
expect '^- libnccl: /system/libnccl\.so\.2$' results/results.md
[ ! -e searches ] || fail "nothing was missing, and yet it was searched for"
# A missing library is searched for once: here the libnvrtc that goes with CUDA's folder.
export PACKAGES=/nowhere
check 0 --stages device
expect "^- libcublasLt: $temp/cuda/lib64/libcublasLt\.so\.13$" results/results.md
expect "^- libcudnn: $temp/cuda/lib64/libcudnn\.so\.9$" results/results.md
expect "^- libnvrtc: $temp/machine/deep/libnvrtc\.so\.13$" results/results.md
expect '^- libnccl: /system/libnccl\.so\.2$' results/results.md
[ "$(wc -l <searches)" = 1 ] && expect '^/opt /usr ' searches || fail "one search, which begins with /opt, and not: $(cat searches)"
rm -r cuda/lib64/libcublasLt.so.13 machine/deep searches
check 0 --stages device
expect '^- libcublasLt: /system/libcublasLt\.so\.12$' results/results.md
expect '^- libnvrtc: /system/libnvrtc\.so\.12$' results/results.md
# Without cuBLASLt nothing else can be right.
export NO_CUBLASLT=1
check 1 --stages device
unset NO_CUBLASLT
expect '^failed +cuBLASLt is found .*dense layers need it: no cuBLASLt: there is none' "$temp/check"

# The packed libstdc++ comes before CUDA's folders, which may be the system's.
export OLD_LIBSTDCXX=1 LOG_PATHS=$temp/paths
check 0 --stages device
unset OLD_LIBSTDCXX
expect "^- libstdc\+\+: this machine's is too old" results/results.md
expect "^$bundle/lib:$bundle/lib/fallback:/system:" paths
# In a container the driver's own library comes at the end.
touch nvidia/lib64/libcuda.so.1
check 0 --stages device
unset LOG_PATHS
expect ":/system:$temp/nvidia/lib64$" paths
# If the driver is older than CUDA's runtime, CUDA's folder may help.
export OLD_DRIVER=1
check 1 --stages device
expect '^failed +the GPU can be used .*nvidia-smi shows a GPU, with driver 1\.2, but lathe sees: .*none \(the driver is too old\)' "$temp/check"
touch cuda/compat/libcuda.so.1
check 0 --stages device
expect "^- driver: 1\.2 alone is too old for the programs; with $temp/cuda/compat they see the GPU$" results/results.md
expect '^- lathe: .*cuda:0 is Some GPU' results/results.md
unset OLD_DRIVER

# nvidia-smi may be in a container's folder. Without one, what lathe sees counts, and memory in use is not known.
mv "$temp/commands/nvidia-smi" nvidia/bin/
check 0 --stages device
expect '^- nvidia-smi: \(name,driver_version,.*Some GPU, 1\.2' results/results.md
mv nvidia/bin/nvidia-smi "$temp/hidden-nvidia-smi"
check 0 --quick --stages speed
expect '^# GPU check: Some GPU$' results/results.md
expect '^- nvidia-smi: no nvidia-smi here, but lathe sees a GPU' results/results.md
expect '^\| tiny-sst2-32 \| Lathe \| 32 \| 1000.00 \|  \| 1.5 \|  \|' results/results.md
! grep -q 'command not found' "$temp/check" || fail "nvidia-smi was called all the same"
mv "$temp/hidden-nvidia-smi" "$temp/commands/nvidia-smi"

# All cases run, with a peer that has its own libraries. cuDNN's attention comes beside Lathe's own, and the compiled
# peers of large batches come at the end.
mkdir -p "$bundle/data/peers"
touch "$bundle/data/peers/hf_finetune.py"
cat >"$temp/commands/python3" <<'END'
#!/usr/bin/env bash
rate=5.0
[[ ${LD_LIBRARY_PATH:-} != *lathe-gpu* ]] || exit 1
case "$*" in
  -c*) echo "2.0 4.0 True"; exit ;;
  *--precision\ bf16*--group*) rate=16.0 ;;
  *--precision\ bf16*) rate=8.0 ;;
esac
echo "{\"samples_per_s\": $rate, \"seconds\": 1.0, \"first_step_s\": 2.0}"
END
chmod +x "$temp/commands/python3"
sed -i '2i echo "kernels of attention: ${LATHE_ATTENTION:-own}"' "$bundle/bin/tests/benchmarks/training_step"
check 0 --stages speed
expect "^\\| large-512-32 \\| Lathe, steps alone, attention of cuDNN's \\| 12800 \\|" results/results.md
for case in {base,large}-{sst2,512}-{32,256}; do
  expect "^\\| $case \\| Lathe, steps alone \\| 12800 \\| 2\\.500 \\| 25\\.1 \\|" results/results.md
  expect "\"case\": \"$case\", \"system\": \"Lathe, steps alone\", .*\"of_ceiling_percent\": 25\\.1" results/results.json
  expect "^\| $case \| peer, default \| 5 " results/results.md
  expect "^\| $case \| peer, default in bf16 \| 8 " results/results.md
  expect "^\| $case \| peer, grouped, fused AdamW and compiled \| 16 " results/results.md
  expect "^\| $case \| 6.40 \| 4.00 \| 2.00 \| 25\\.1 \|$" results/results.md
done
! grep -q 'not all of it was measured' results/results.md || fail "all of it was measured"
[ "$(grep -c '^kernels of attention: cudnn$' results/log.txt)" = 2 ] || fail "two of the benchmarks have cuDNN's attention"
order=$(sed -n 's/^ *\(large-512-256, Lathe\|base-sst2-256, peer.*compiled\):.*/\1/p' "$temp/check" | uniq)
[ "$order" = $'large-512-256, Lathe\nbase-sst2-256, peer, grouped, fused AdamW and compiled' ] || fail "compiled peers come last: $order"

expect "^\| case \| Lathe's slowest run \(bf16\) over the peer's default \(float32\) \| over the peer's default in bf16 \| over the peer's best \| products of its steps, % of their ceiling \|$" results/results.md

# --only runs some of the cases.
check 0 --stages speed --only 'base-512-32$|kernels-l'
[ "$(grep -c '^| base-512-32 |' results/results.md)" -ge 5 ] || fail "base-512-32 was asked for"
! grep -E '^\| (large|base-sst2|base-512-256)' results/results.md || fail "these were not asked for"
grep -q '"name": "kernels-large"' results/results.json || fail "kernels-large was asked for"
! grep -q '"name": "kernels-base"' results/results.json || fail "kernels-base was not asked for"
! grep -q 'not all of it was measured' results/results.md || fail "what was asked for was measured"
expect '^\| base-512-32 \| Lathe, steps alone \| 12800 ' results/results.md
check 1 --stages speed --only nothing
expect '^failed +speed .*nothing was measured: does a case match --only "nothing"' "$temp/check"
check 2 --stages speed --only '('
expect '^error: --only must be a regular expression but is "\("$' "$temp/check"

# If there is little time, the most telling cases come first, and the page says how to run the rest. The time is half a minute,
# and each run takes 2 s.
export TAKES=2
begun=$SECONDS
check 0 --stages speed --minutes 0.5
unset TAKES
[ $((SECONDS - begun)) -le 40 ] || fail "half a minute took $((SECONDS - begun)) s"
expect '^\| base-sst2-32 \| Lathe \| 32 ' results/results.md
expect '^\| large-512-256 \| Lathe, steps alone \| 12800 ' results/results.md
expect '\| skipped \| large-512-256 \|.*no time left' results/results.md
expect '^- speed: not all of it was measured: .* --stages speed --minutes 60' results/results.md

# Under the sanitizer's tools the program must have done its work. They look for races in Lathe's own kernels.
cat >"$temp/commands/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo "$*" >>sanitized
[ "$1" != --help ] || { echo "  $FILTER arg"; exit; }
while [[ $1 == --* ]]; do shift 2; done
[ -n "${IDLE:-}" ] || "$@"
echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
echo "========= ERROR SUMMARY: 0 errors"
END
sed -i "s|>>sanitized|>>$temp/sanitized|" "$temp/commands/compute-sanitizer"
printf '#!/bin/sh\necho "[  PASSED  ] ${CASES:-3} tests."\n' >"$bundle/bin/tests/golden_models_gpu_test"
chmod +x "$temp/commands/compute-sanitizer" "$bundle/bin/tests/golden_models_gpu_test"
for filter in --kernel-name --kernel-regex; do
  export FILTER=$filter
  rm -f sanitized
  check 0 --stages sanitizer
  [ "$(grep -c '^passed .*check of ' "$temp/check")" = 6 ] || fail "all of the sanitizer's tools pass"
  [ "$(grep -c -e '--report-api-errors no' sanitized)" = 6 ] || fail "calls that fail are no errors"
  [ "$(grep -cE -e "--tool (race|sync)check .*$filter kns=lathe " sanitized)" = 4 ] || fail "races of our own kernels"
  expect '--tool memcheck ' sanitized
  ! grep -e '--tool memcheck .*kns=' sanitized || fail "memcheck looks at all kernels"
done
export IDLE=1
check 1 --stages sanitizer
unset IDLE
[ "$(grep -c '^failed .*check of .*exit code 0, and the program did not do its work: ' "$temp/check")" = 6 ] || fail "a program that did not run has failed"
export CASES=0
check 1 --stages sanitizer
unset CASES
expect '^failed +memcheck of tests/golden_models_gpu_test .*did not do its work' "$temp/check"
expect '^passed +memcheck of apps/finetune/finetune' "$temp/check"

# A sanitizer that doesn't come to its end has failed.
cat >"$temp/commands/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo "========= COMPUTE-SANITIZER"
END
rm "$temp/commands/timeout"
cat >"$temp/commands/timeout" <<'END'
#!/usr/bin/env bash
case "$*" in *compute-sanitizer*) exit 124 ;; esac
[ "$1" != -k ] || shift 2
shift
exec "$@"
END
chmod +x "$temp"/commands/{compute-sanitizer,timeout}
! PATH=$temp/commands "$bundle/tools/gpu_check.sh" --out "$temp/results" --stages sanitizer >"$temp/check" 2>&1 ||
  fail "a sanitizer that is too slow must be the exit code"
expect '^failed +memcheck of apps/finetune/finetune .*timed out; found so far: 0 places' "$temp/check"
expect '^failed +synccheck of tests/golden_models_gpu_test .*timed out' "$temp/check"
rm "$temp/commands/timeout"
ln -s "$(command -v timeout)" "$temp/commands/timeout"

# Slow tests leave the other stages their shares of the time.
printf '#!/bin/sh\nsleep 60\n' >"$bundle/bin/core/optimizer_gpu_test"
! PATH=$temp/commands "$bundle/tools/gpu_check.sh" --quick --minutes 1 --out "$temp/results" >"$temp/check" 2>&1 ||
  fail "a test that is too slow must be the exit code"
expect '^failed +core/optimizer_gpu_test .*not done in time' "$temp/check"
expect '^== train  \(1[5-9] s so far' "$temp/check"
expect '^== speed  \((1[5-9]|2[0-9]|3[0-6]) s so far' "$temp/check"
expect '^\| tiny-sst2-32 \| Lathe \| 32' results/results.md

# If the check is stopped in the middle of a program, the program ends, and the page says so.
printf '#!/bin/sh\necho $$ >"$0.pid"\nexec sleep 60\n' >"$bundle/bin/core/optimizer_gpu_test"
PATH=$temp/commands "$bundle/tools/gpu_check.sh" --quick --stages device,tests --out "$temp/results" >"$temp/check" 2>&1 &
for _ in {1..300}; do [ -s "$bundle/bin/core/optimizer_gpu_test.pid" ] && break || sleep 0.1; done
begun=$SECONDS
kill $!
! wait $! || fail "a check that was stopped has failed"
[ $((SECONDS - begun)) -le 10 ] || fail "it took $((SECONDS - begun)) s to stop"
expect '^failed +the check itself .*stopped after [0-9]+ s, in: .*/core/optimizer_gpu_test' "$temp/check"
expect '\| the check itself \|' results/results.md
for _ in {1..100}; do kill -0 "$(cat "$bundle/bin/core/optimizer_gpu_test.pid")" 2>/dev/null && sleep 0.1 || break; done
! kill -0 "$(cat "$bundle/bin/core/optimizer_gpu_test.pid")" 2>/dev/null || fail "the program that ran is still there"

# If the check is killed in the middle of a program, the page has all results until then, and says where it was.
rm "$bundle/bin/core/optimizer_gpu_test.pid"
printf '#!/bin/sh\necho "[  PASSED  ] 1 test."\n' >"$bundle/bin/core/first_gpu_test"
chmod +x "$bundle/bin/core/first_gpu_test"
sed -i.kept 's|^program core/optimizer_gpu_test$|program core/first_gpu_test\n&|' "$bundle/MANIFEST"
PATH=$temp/commands "$bundle/tools/gpu_check.sh" --quick --stages device,tests --out "$temp/results" >"$temp/check" 2>&1 &
for _ in {1..300}; do [ -s "$bundle/bin/core/optimizer_gpu_test.pid" ] && break || sleep 0.1; done
kill -KILL $!
! wait $! || fail "a check that was killed has failed"
kill "$(cat "$bundle/bin/core/optimizer_gpu_test.pid")"
mv "$bundle/MANIFEST.kept" "$bundle/MANIFEST"
expect '^The check has not come to its end; it was in: .*/core/optimizer_gpu_test\.$' results/results.md
expect '\| tests \| passed \| core/first_gpu_test \|' results/results.md
expect '"status": "passed", "name": "core/first_gpu_test"' results/results.json
expect '^\}$' results/results.json

# The log has the beginning and the end of a program's long output, and less of it once the log is long.
printf '#!/bin/sh\necho first\nhead -c 1000000 /dev/zero | tr "\\0" x\necho\necho last\necho "[  PASSED  ] 1 test."\n' >"$bundle/bin/core/optimizer_gpu_test"
check 0 --quick --stages tests
! grep -q 'not come to its end' results/results.md || fail "it has come to its end"
expect '^==== 8000[0-9]+ bytes are left out here ====$' results/log.txt
expect '^first$' results/log.txt
expect '^last$' results/log.txt
[ "$(wc -c <results/log.txt)" -lt 300000 ] || fail "the log has $(wc -c <results/log.txt) bytes"
sed -i.kept 's/ -lt 8000000 / -lt 10 /' "$bundle/tools/gpu_check.sh"
check 0 --quick --stages tests
mv "$bundle/tools/gpu_check.sh.kept" "$bundle/tools/gpu_check.sh"
expect '^==== 9960[0-9]+ bytes are left out here ====$' results/log.txt
[ "$(wc -c <results/log.txt)" -lt 20000 ] || fail "the log has $(wc -c <results/log.txt) bytes"

export GPU_LOSS=0.701
check 1 --quick --stages train
unset GPU_LOSS
expect '^failed .*f32-dropout-0: GPU against CPU .*losses differ by 1.43e-03' "$temp/check"
expect '^passed .*bf16-dropout-0: GPU against CPU' "$temp/check"
# Only --deterministic promises the same bits.
export NOISE=some
check 0 --quick --stages train
expect '^passed +f32-dropout-0: the same again on cuda .*; not the same bits, which only --deterministic promises' "$temp/check"
expect '^passed +f32-dropout-0\.1: the same again on cuda with --deterministic, bit for bit' "$temp/check"
export NOISE=always GPU_SCORE=0.76 ESTIMATE='1.00 GiB'
check 1 --quick --stages train
unset NOISE GPU_SCORE ESTIMATE
expect '^failed +f32-dropout-0\.1: the same again on cuda with --deterministic, bit for bit' "$temp/check"
expect '^failed +bf16-dropout-0\.1: the same without CUDA graphs, with --deterministic, bit for bit' "$temp/check"
expect '^failed +lathe predict: GPU against CPU .*scores differ by 1\.00e-02, more than 1e-4' "$temp/check"
expect '^failed +lathe estimate-memory, bf16 .*took 1048576 bytes, the estimate is 1073741824' "$temp/check"
echo "passed"
