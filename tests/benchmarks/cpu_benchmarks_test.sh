#!/usr/bin/env bash
# The CPU's benchmarks run and print what tools/bench.sh and docs/performance.md read. Their numbers mean nothing here.
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

$bin/kernels --benchmark_min_time=0.001 >"$out" 2>&1
for kernel in Forward InputGradient WeightGradient GeluForward GeluBackward ColumnSums NormForward NormBackward Attention Embeddings \
  AddTo GatedForward GatedBackward Rotary; do
  for type in float BFloat16; do expect "^$kernel<$type>.* fraction=" "$out"; done
done
for kernel in ConvertToBFloat16 ConvertToFloat32 Copy CrossEntropyLoss DropoutAlone AdamW SumOfSquares; do expect "^$kernel/.* fraction=" "$out"; done
! grep -E 'ERROR|fraction=(0 |-|inf|nan)' "$out" >&2 || fail "a kernel has no fraction"

$bin/tensor_ops sum_to >"$out"
for op in sum_to_row sum_to_few; do expect "^$op +$number +$number +$number$" "$out"; done
printf '%s\n' clone none | $bin/tensor_ops --serve >"$out"
expect '^[0-9.e-]+ [0-9.e+]+$' "$out"
expect '^0 0$' "$out"

for precision in no bf16; do
  $bin/training_step --size tiny --precision $precision --batch 2 --length 16 --steps 1 >"$out"
  expect "^tiny, (f32|bf16), batch 2, 32 tokens a batch" "$out"
  expect '^step .* ms: passes .*, clip .*, AdamW ' "$out"
  expect "^$number tokens/s, $number samples/s; products $number of $number GFLOP/s: $number % of the ceiling$" "$out"
done
mkdir "$TEST_TMPDIR/config"
for config in '"distilbert", "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 2' \
  '"modernbert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2'; do
  echo "{\"model_type\": $config}" >"$TEST_TMPDIR/config/config.json"
  $bin/training_step --config_name "$TEST_TMPDIR/config" --batch 2 --length 16 --steps 1 >"$out"
  expect "^$TEST_TMPDIR/config, f32, batch 2, 32 tokens a batch" "$out"
  expect "products $number of $number GFLOP/s: $number % of the ceiling$" "$out"
done

printf '%s\n' '[UNK]' '[CLS]' '[SEP]' '[PAD]' '[MASK]' good film >"$TEST_TMPDIR/vocab.txt"
printf 'a good film\nbad bytes: \xe4\n' >"$TEST_TMPDIR/texts"
$bin/tokenizers "$TEST_TMPDIR" "$TEST_TMPDIR/texts" 2 >"$out"
expect "^$number texts/s, $number tokens/s$" "$out"
! $bin/tokenizers "$TEST_TMPDIR/none" "$TEST_TMPDIR/texts" >"$out" 2>&1 || fail "there is no such tokenizer"
expect '^error: ' "$out"
echo passed
