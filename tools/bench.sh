#!/usr/bin/env bash
# Measures this machine: kernels one by one, then whole training steps with a breakdown by op. Prints what
# it finds; docs/performance.md says how to read it. Arguments go to the kernels' benchmark, e.g.
#   tools/bench.sh --benchmark_filter=Norm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/setup.sh
bazel build --color=no --noshow_progress //tests/benchmarks:kernels //tests/benchmarks:training_step
bin=bazel-bin/tests/benchmarks

echo "== Machine"
lscpu | grep -E '^(Model name|CPU\(s\)|L2|L3)'
echo "== Kernels"
"$bin/kernels" --benchmark_counters_tabular=true "$@"
for size in minilm base; do
  for precision in no bf16; do
    echo "== Training step: $size, mixed_precision $precision"
    "$bin/training_step" --size "$size" --precision "$precision"
  done
done
for precision in no bf16; do
  echo "== Training step: base, mixed_precision $precision, 512 tokens"
  "$bin/training_step" --size base --precision "$precision" --length 512 --batch 8 --steps 3
done
