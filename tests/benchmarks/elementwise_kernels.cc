// Measures conversions to and from bfloat16, gated activations and rotary positions. `fraction` is
// that of kernels.cc, whose program runs these, too.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/cpu/gated/gated.h"
#include "lathe/core/cpu/rotary/rotary.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/tests/benchmarks/ceilings.h"

namespace lathe {
namespace {

constexpr int64_t kColumns = 3072;

void ConvertToBFloat16(benchmark::State& state) {
  const Tensor from = Filled<float>({kRows, kColumns}), to = Filled<BFloat16>({kRows, kColumns});
  for (auto _ : state) {
    cpu::Kernels<cpu::ConvertKernels>().to_bf16(to.data<BFloat16>(), from.data<float>(),
                                                from.numel());
  }
  Bytes(state, static_cast<double>(from.bytes() + to.bytes()));
}
void ConvertToFloat32(benchmark::State& state) {
  const Tensor from = Filled<BFloat16>({kRows, kColumns}), to = Filled<float>({kRows, kColumns});
  for (auto _ : state) {
    cpu::Kernels<cpu::ConvertKernels>().to_f32(to.data<float>(), from.data<BFloat16>(),
                                               from.numel());
  }
  Bytes(state, static_cast<double>(from.bytes() + to.bytes()));
}
BENCHMARK(ConvertToBFloat16)->UseRealTime();
BENCHMARK(ConvertToFloat32)->UseRealTime();

template <typename T>
void AddTo(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, kColumns}), to = Filled<T>({kRows, kColumns});
  const cpu::ConvertKernels& kernels = cpu::Kernels<cpu::ConvertKernels>();
  for (auto _ : state) {
    if constexpr (std::is_same_v<T, float>) {
      kernels.add_f32(to.data<T>(), x.data<T>(), x.numel());
    } else {
      kernels.add_bf16(to.data<T>(), x.data<T>(), x.numel());
    }
  }
  Bytes(state, 3.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(AddTo<float>)->UseRealTime();
BENCHMARK(AddTo<BFloat16>)->UseRealTime();

// GeGLU, with both halves side by side.
constexpr cpu::GatedArgs kGated = {kRows, kColumns, 2 * kColumns, ActivationKind::kGelu};

template <typename T>
void GatedForward(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 2 * kColumns}), y = Filled<T>({kRows, kColumns});
  for (auto _ : state) {
    KernelsOf<T, cpu::GatedKernels>(Device{}).forward(y.data<T>(), x.data<T>(),
                                                      x.data<T>() + kColumns, kGated);
  }
  Bytes(state, static_cast<double>(x.bytes() + y.bytes()));
}
template <typename T>
void GatedBackward(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 2 * kColumns}), dx = Filled<T>({kRows, 2 * kColumns});
  const Tensor dy = Filled<T>({kRows, kColumns});
  for (auto _ : state) {
    KernelsOf<T, cpu::GatedKernels>(Device{}).backward(dx.data<T>(), dx.data<T>() + kColumns,
                                                       dy.data<T>(), x.data<T>(),
                                                       x.data<T>() + kColumns, kGated);
  }
  Bytes(state, static_cast<double>(x.bytes() + dx.bytes() + dy.bytes()));
}
BENCHMARK(GatedForward<float>)->UseRealTime();
BENCHMARK(GatedForward<BFloat16>)->UseRealTime();
BENCHMARK(GatedBackward<float>)->UseRealTime();
BENCHMARK(GatedBackward<BFloat16>)->UseRealTime();

// Turns 12 heads of 64 columns, pairs of which are neighbours (1) or not (0). The gradient is the
// same kernel.
template <typename T>
void Rotary(benchmark::State& state) {
  constexpr int64_t kHeads = 12, kHeadDim = 64, kPositions = 512;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < kRows; ++i) positions.push_back(static_cast<int32_t>(i % 25));
  const Tensor x = Filled<T>({kRows, kHeads * kHeadDim}), y = Filled<T>({kRows, kHeads * kHeadDim});
  const Tensor table = Filled<float>({kPositions, kHeadDim});
  const cpu::RotaryArgs args = {.rows = kRows,
                                .heads = kHeads,
                                .head_dim = kHeadDim,
                                .table = table.data<float>(),
                                .table_rows = kPositions,
                                .positions = positions.data(),
                                .num_positions = kRows,
                                .neighbours = state.range(0) != 0,
                                .back = false};
  for (auto _ : state) {
    KernelsOf<T, cpu::RotaryKernels>(Device{}).turn(y.data<T>(), x.data<T>(), args);
  }
  Bytes(state, 2.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(Rotary<float>)->ArgName("neighbours")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(Rotary<BFloat16>)->ArgName("neighbours")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace lathe
