// Measures batched products, convolutions along sequences, and pooling. `fraction` is that of
// kernels.cc, whose program runs these, too.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/math/extremes.h"
#include "lathe/core/ops/math/matmul.h"
#include "lathe/core/ops/windows/conv1d.h"
#include "lathe/core/ops/windows/pool1d.h"
#include "lathe/tests/benchmarks/ceilings.h"

namespace lathe {
namespace {

// Matrices of size x size, so many that all sizes have the same number of operations.
template <typename T>
void BatchedProducts(benchmark::State& state) {
  const int64_t size = state.range(0), batch = (int64_t{1} << 28) / (size * size * size);
  const Tensor a = Filled<T>({batch, size, size}), b = Filled<T>({batch, size, size});
  for (auto _ : state) Matmul(a, b);
  Operations<T>(state, 2.0 * static_cast<double>(batch * size * size * size));
}
BENCHMARK(BatchedProducts<float>)
    ->ArgName("size")
    ->Arg(32)
    ->Arg(64)
    ->Arg(128)
    ->Arg(512)
    ->UseRealTime();
BENCHMARK(BatchedProducts<BFloat16>)->ArgName("size")->Arg(64)->Arg(512)->UseRealTime();

// 32 sequences of 64 tokens with 128 channels, and as many outputs. Runs forward and backward, with
// the gradients of the input and of the parameters.
template <typename T>
void Convolution(benchmark::State& state) {
  const int64_t taps = state.range(0);
  constexpr int64_t kBatch = 32, kChannels = 128, kLength = 64;
  Tensor x = Filled<T>({kBatch, kChannels, kLength});
  Tensor weight = Filled<float>({kChannels, kChannels, taps}), bias = Filled<float>({kChannels});
  for (Tensor* leaf : {&x, &weight, &bias}) leaf->SetRequiresGrad(true);
  Tensor dy;
  for (auto _ : state) {
    const Tensor y = Conv1d(x, weight, bias, {.padding = taps / 2});
    if (!dy.defined()) dy = Filled<T>(y.shape());
    Backward(y, dy);
  }
  Operations<T>(state, 6.0 * static_cast<double>(dy.numel() * kChannels * taps));
}
BENCHMARK(Convolution<float>)->ArgName("taps")->Arg(3)->Arg(4)->Arg(5)->UseRealTime();
BENCHMARK(Convolution<BFloat16>)->ArgName("taps")->Arg(3)->UseRealTime();

// The same over packed sequences.
void PackedConvolution(benchmark::State& state) {
  const int64_t taps = state.range(0);
  constexpr int32_t kBatch = 32, kChannels = 128, kLength = 64;
  std::vector<int32_t> ends;
  for (int32_t b = 0; b <= kBatch; ++b) ends.push_back(b * kLength);
  PackedSequences sequences;
  sequences.cu_seqlens = Tensor::FromVector(ends);
  Tensor x = Filled<float>({kBatch * kLength, kChannels});
  Tensor weight = Filled<float>({kChannels, kChannels, taps}), bias = Filled<float>({kChannels});
  for (Tensor* leaf : {&x, &weight, &bias}) leaf->SetRequiresGrad(true);
  const Tensor dy = Filled<float>({kBatch * kLength, kChannels});
  for (auto _ : state) Backward(PackedConv1d(x, weight, bias, sequences), dy);
  Operations<float>(state, 6.0 * static_cast<double>(dy.numel() * kChannels * taps));
}
BENCHMARK(PackedConvolution)->ArgName("taps")->Arg(3)->Arg(5)->UseRealTime();

void MaxPooling(benchmark::State& state) {
  Tensor x = Filled<float>({32, 128, 64});
  x.SetRequiresGrad(true);
  const Tensor dy = Filled<float>({32, 128, 32});
  for (auto _ : state) Backward(MaxPool1d(x, {.kernel_size = 2}), dy);
  Bytes(state, 3.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(MaxPooling)->UseRealTime();

void MaximumOfRows(benchmark::State& state) {
  const Tensor x = Filled<float>({kRows, 3072});
  for (auto _ : state) ArgMax(x, -1);
  Bytes(state, static_cast<double>(x.bytes()));
}
BENCHMARK(MaximumOfRows)->UseRealTime();

}  // namespace
}  // namespace lathe
