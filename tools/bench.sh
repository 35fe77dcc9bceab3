#!/usr/bin/env bash
# Measures this machine: kernels one by one, then whole training steps with a breakdown by op. Prints the
# results; docs/performance.md explains them. Arguments go to the kernels' benchmark, e.g.
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
# Compares two threads with one, in turn, so that the machine's other work affects both.
milliseconds() { OMP_NUM_THREADS=$1 "$bin/training_step" --size "$2" --precision "$3" --steps "$4" | awk '/^step /{print $2}'; }
for setting in "minilm no 20" "minilm bf16 30" "base no 3" "base bf16 5"; do
  read -r size precision steps <<<"$setting"
  for round in 1 2 3; do
    echo "$(milliseconds 1 "$size" "$precision" "$steps") $(milliseconds 2 "$size" "$precision" "$steps")"
  done | awk -v name="$size, mixed_precision $precision" \
    '{ one += $1; two += $2 } END { printf "== 2 threads against 1: %s: %.1f and %.1f ms a step, ratio %.2f\n", name, two / NR, one / NR, one / two }'
done
for precision in no bf16; do
  echo "== Training step: base, mixed_precision $precision, 512 tokens"
  "$bin/training_step" --size base --precision "$precision" --length 512 --batch 8 --steps 3
done
