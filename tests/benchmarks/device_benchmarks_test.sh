#!/usr/bin/env bash
# The GPU's benchmarks run on the emulated device and print what tools/gpu_check_speed.sh reads. Their times mean
# nothing here.
set -euo pipefail

fail() {
  echo "FAILED: $1" >&2
  exit 1
}
expect() { # expect PATTERN FILE
  grep -qE -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in $2"; }
}

bin=tests/benchmarks
out=${TEST_TMPDIR:?}/out
number='[0-9]+(\.[0-9]+)?'

$bin/device_kernels_emulated --tokens 64 --hidden 64 --copy_mib 1 --parameters 10000 --milliseconds 0 >"$out"
expect '^emulated device.*; 64 tokens, hidden size 64$' "$out"
expect "^copy of 1 MiB +$number us +$number GB/s +100.0 % of a copy$" "$out"
for kernel in 'f32  GELU' 'bf16 dropout, sum, layer norm' 'f16  sum, layer norm'; do
  for passes in forward 'both passes'; do expect "^$kernel, $passes +$number us +$number GB/s +$number % of a copy$" "$out"; done
done
expect "^bf16 attention, 64 tokens, both passes +$number us +$number TFLOP/s$" "$out"
for dtype in bf16 'f16 '; do
  for kernel in '' ' of cuDNN' ' without dropout' ' of cuDNN without dropout'; do
    for passes in forward 'both passes'; do
      expect "^$dtype attention$kernel, 64 tokens, $passes +$number us +$number TFLOP/s$" "$out"
    done
  done
done
for dtype in 'f32 ' bf16 'f16 '; do expect "^$dtype weight gradient 64 to 256 +$number us +$number TFLOP/s$" "$out"; done
expect '^f32  AdamW +' "$out"
! $bin/device_kernels_emulated --device cpu >"$out" 2>&1 || fail "it is no GPU"
expect '^error: --device must be a GPU' "$out"

for precision in no bf16 fp16; do
  $bin/training_step_emulated --device cuda --size tiny --precision $precision --batch 2 --length 16 --steps 2 >"$out"
  expect "^tiny, (f32|bf16|fp16), batch 2, 32 tokens a batch, emulated device" "$out"
  expect "^step $number ms$" "$out"
  expect "^$number tokens/s, $number samples/s; products $number of $number GFLOP/s: $number % of the ceiling$" "$out"
  expect "^peak memory of tensors $number GB$" "$out"
done
$bin/training_step_emulated --size tiny --batch 2 --length 16 --steps 1 >"$out"
expect '^step .* ms: passes .*, clip .*, AdamW ' "$out"
! $bin/training_step_emulated --precision fp8 x >"$out" 2>&1 || fail "there is no fp8"
expect '^error: --precision must be' "$out"
echo passed
