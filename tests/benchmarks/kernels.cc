// Measures the kernels of a BERT's training step at its shapes. Products are reported in GFLOP/s,
// other kernels in bytes that must be moved a second. `fraction` is relative to a large product of
// the same type, or to copying what no cache holds. Kernels whose data a cache holds may be faster
// than that.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/activation.h"
#include "lathe/core/cpu/attention.h"
#include "lathe/core/cpu/layer_norm.h"
#include "lathe/core/cpu/optimizer.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/dropout.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/losses.h"
#include "lathe/tests/benchmarks/ceilings.h"

namespace lathe {
namespace {

template <typename T>
void Forward(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor x = Filled<T>({kRows, in}), w = Filled<T>({out, in}), y = Filled<T>({kRows, out});
  const Tensor bias = Filled<float>({out});
  for (auto _ : state) {
    Gemm({.b = true}, kRows, out, in, x.data<T>(), in, w.data<T>(), in, 0.0f, y.data<T>(), out,
         bias.data<float>());
  }
  Operations<T>(state, 2.0 * static_cast<double>(kRows * in * out));
}
template <typename T>
void InputGradient(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor dx = Filled<T>({kRows, in}), w = Filled<T>({out, in}), dy = Filled<T>({kRows, out});
  for (auto _ : state) {
    Gemm({}, kRows, in, out, dy.data<T>(), out, w.data<T>(), in, 0.0f, dx.data<T>(), in);
  }
  Operations<T>(state, 2.0 * static_cast<double>(kRows * in * out));
}
template <typename T>
void WeightGradient(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1);
  const Tensor x = Filled<T>({kRows, in}), dy = Filled<T>({kRows, out});
  const Tensor dw = Filled<float>({out, in});
  for (auto _ : state) {
    Gemm({.a = true}, out, in, kRows, dy.data<T>(), out, x.data<T>(), in, 1.0f, dw.data<float>(),
         in);
  }
  Operations<T>(state, 2.0 * static_cast<double>(kRows * in * out));
}
void Shapes(benchmark::internal::Benchmark* b) {
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {768, 768}, {768, 3072}, {3072, 768}, {384, 384}, {384, 1536}, {1536, 384}}) {
    b->Args({in, out});
  }
  b->ArgNames({"in", "out"})->UseRealTime();
}
BENCHMARK(Forward<float>)->Apply(Shapes);
BENCHMARK(InputGradient<float>)->Apply(Shapes);
BENCHMARK(WeightGradient<float>)->Apply(Shapes);
BENCHMARK(Forward<BFloat16>)->Apply(Shapes);
BENCHMARK(InputGradient<BFloat16>)->Apply(Shapes);
BENCHMARK(WeightGradient<BFloat16>)->Apply(Shapes);

void Copy(benchmark::State& state) {
  const int64_t n = state.range(0);
  const Tensor a = Filled<float>({n}), b = Filled<float>({n});
  for (auto _ : state) CopyAll(b, a);
  Bytes(state, 8.0 * static_cast<double>(n));
}
BENCHMARK(Copy)->Arg(1 << 20)->Arg(1 << 26)->UseRealTime();

template <typename T>
void GeluForward(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 3072}), y = Filled<T>({kRows, 3072});
  for (auto _ : state) {
    KernelsOf<T, cpu::ActivationKernels>(Device{}).forward(y.data<T>(), x.data<T>(), x.numel(),
                                                           ActivationKind::kGelu);
  }
  Bytes(state, 2.0 * static_cast<double>(x.bytes()));
}
template <typename T>
void GeluBackward(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 3072}), dy = Filled<T>({kRows, 3072});
  const Tensor dx = Filled<T>({kRows, 3072});
  for (auto _ : state) {
    KernelsOf<T, cpu::ActivationKernels>(Device{}).backward(dx.data<T>(), dy.data<T>(), x.data<T>(),
                                                            x.numel(), ActivationKind::kGelu);
  }
  Bytes(state, 3.0 * static_cast<double>(x.bytes()));
}
// The backward pass of feed-forward layers uses this form.
template <typename T>
void GeluBackwardAndValue(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 3072}), dy = Filled<T>({kRows, 3072});
  const Tensor y = Filled<T>({kRows, 3072});
  for (auto _ : state) {
    KernelsOf<T, cpu::ActivationKernels>(Device{}).backward_and_value(
        dy.data<T>(), y.data<T>(), dy.data<T>(), x.data<T>(), x.numel(), ActivationKind::kGelu);
  }
  Bytes(state, 4.0 * static_cast<double>(x.bytes()));
}
template <typename T>
void ColumnSums(benchmark::State& state) {
  const Tensor x = Filled<T>({kRows, 3072}), sums = Filled<float>({3072});
  for (auto _ : state) {
    KernelsOf<T, cpu::ActivationKernels>(Device{}).column_sums(sums.data<float>(), x.data<T>(),
                                                               kRows, 3072, 3072);
  }
  Bytes(state, static_cast<double>(x.bytes()));
}
BENCHMARK(GeluForward<float>)->UseRealTime();
BENCHMARK(GeluForward<BFloat16>)->UseRealTime();
BENCHMARK(GeluBackward<float>)->UseRealTime();
BENCHMARK(GeluBackward<BFloat16>)->UseRealTime();
BENCHMARK(GeluBackwardAndValue<float>)->UseRealTime();
BENCHMARK(GeluBackwardAndValue<BFloat16>)->UseRealTime();
BENCHMARK(ColumnSums<float>)->UseRealTime();
BENCHMARK(ColumnSums<BFloat16>)->UseRealTime();

struct NormCase {
  std::vector<int32_t> samples = std::vector<int32_t>(kRows, 1);
  std::vector<int32_t> positions = std::vector<int32_t>(kRows, 2);
  cpu::LayerNormArgs args;
  NormCase(int64_t columns, bool dropout) : args{kRows, columns, 1e-12, {}} {
    if (dropout) args.mask.threshold = 429496730;
    args.mask.row_samples = samples.data();
    args.mask.row_positions = positions.data();
  }
};

// Runs with a residual, with (1) and without (0) dropout.
template <typename T>
void NormForward(benchmark::State& state) {
  const int64_t columns = state.range(0);
  const NormCase c(columns, state.range(1) != 0);
  const Shape shape = {kRows, columns};
  const Tensor x = Filled<T>(shape), y = Filled<T>(shape), z = Filled<T>(shape),
               residual = Filled<T>(shape), weight = Filled<float>({columns}),
               mean = Filled<float>({kRows}), rstd = FilledPositive({kRows});
  for (auto _ : state) {
    KernelsOf<T, cpu::LayerNormKernels>(Device{}).forward(
        y.data<T>(), z.data<T>(), mean.data<float>(), rstd.data<float>(), x.data<T>(),
        residual.data<T>(), weight.data<float>(), weight.data<float>(), c.args);
  }
  Bytes(state, 4.0 * static_cast<double>(x.bytes()));
}
template <typename T>
void NormBackward(benchmark::State& state) {
  const int64_t columns = state.range(0);
  const NormCase c(columns, state.range(1) != 0);
  const Shape shape = {kRows, columns};
  const Tensor dz = Filled<T>(shape), dx = Filled<T>(shape), dy = Filled<T>(shape),
               z = Filled<T>(shape), weight = Filled<float>({columns}),
               mean = Filled<float>({kRows}), rstd = FilledPositive({kRows}),
               grads = Filled<float>({2, columns}),
               partial = Filled<float>({kRows / cpu::kLayerNormChunk + 1, 2 * columns});
  for (auto _ : state) {
    KernelsOf<T, cpu::LayerNormKernels>(Device{}).backward(
        dz.data<T>(), dx.data<T>(), grads.data<float>(), grads.data<float>() + columns,
        partial.data<float>(), dy.data<T>(), z.data<T>(), mean.data<float>(), rstd.data<float>(),
        weight.data<float>(), c.args);
  }
  Bytes(state, 4.0 * static_cast<double>(dz.bytes()));
}
void NormCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"columns", "dropout"})->ArgsProduct({{384, 768}, {0, 1}})->UseRealTime();
}
BENCHMARK(NormForward<float>)->Apply(NormCases);
BENCHMARK(NormForward<BFloat16>)->Apply(NormCases);
BENCHMARK(NormBackward<float>)->Apply(NormCases);
BENCHMARK(NormBackward<BFloat16>)->Apply(NormCases);

// Attention of 12 heads of 32 or 64 columns over about 832 tokens (or 8 x 512), with dropout.
// Measures the forward (0) or the backward (1) pass alone.
template <typename T>
void Attention(benchmark::State& state) {
  const int64_t length = state.range(0), heads = 12, H = heads * state.range(2);
  const int64_t batch = length >= 512 ? 8 : kRows / length, rows = batch * length;
  std::vector<int32_t> cu, samples;
  for (int64_t b = 0; b <= batch; ++b) cu.push_back(static_cast<int32_t>(b * length));
  for (int64_t b = 0; b < batch; ++b) samples.push_back(static_cast<int32_t>(b));
  cpu::AttentionArgs args = {.cu_seqlens = cu.data(),
                             .sample_ids = samples.data(),
                             .batch = batch,
                             .heads = heads,
                             .head_dim = state.range(2),
                             .max_seqlen = length,
                             .q_rows = rows,
                             .first_query_only = false,
                             .mask = {}};
  args.mask.threshold = 429496730;
  args.mask.scale = 1 / 0.9;
  std::vector<Tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(Filled<T>({rows, H}));
  const auto at = [&](size_t i) { return tensors[i].template data<T>(); };
  const Tensor lse = Filled<float>({rows, heads});
  const auto& kernels = KernelsOf<T, cpu::AttentionKernels>(Device{});
  const bool backward = state.range(1) != 0;
  kernels.forward(at(3), lse.data<float>(), at(0), at(1), at(2), args);
  for (auto _ : state) {
    if (backward) {
      kernels.backward(at(4), at(5), at(6), at(7), at(3), lse.data<float>(), at(0), at(1), at(2),
                       args);
    } else {
      kernels.forward(at(3), lse.data<float>(), at(0), at(1), at(2), args);
    }
  }
  // Two products forward and five backward, with two operations an element each.
  Operations<T>(state, (backward ? 10.0 : 4.0) * static_cast<double>(batch * length * length * H));
}
void AttentionCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"length", "backward", "head"})
      ->ArgsProduct({{25, 128, 512}, {0, 1}, {32, 64}})
      ->UseRealTime();
}
BENCHMARK(Attention<float>)->Apply(AttentionCases);
BENCHMARK(Attention<BFloat16>)->Apply(AttentionCases);

// Words, positions and types of 768 columns, followed by the layer norm and dropout. Runs forward
// and, if asked, backward.
template <typename T>
void Embeddings(benchmark::State& state) {
  const bool backward = state.range(0) != 0;
  constexpr int64_t kWords = 30522, kColumns = 768;
  std::vector<int32_t> words, positions, types(kRows, 0), samples(kRows, 1);
  for (int64_t i = 0; i < kRows; ++i) {
    words.push_back(static_cast<int32_t>(i * 7919 % kWords));
    positions.push_back(static_cast<int32_t>(i % 25));
  }
  const std::vector<Tensor> ids = {Tensor::FromVector(words), Tensor::FromVector(positions),
                                   Tensor::FromVector(types)};
  std::vector<Tensor> tables = {Filled<float>({kWords, kColumns}), Filled<float>({512, kColumns}),
                                Filled<float>({2, kColumns})};
  Tensor weight = Filled<float>({kColumns}), bias = Filled<float>({kColumns});
  std::vector<Tensor> parameters = {tables[0], tables[1], tables[2], weight, bias};
  if (backward) {
    for (Tensor& p : parameters) p.SetRequiresGrad(true);
  }
  DropoutSpec dropout;
  dropout.p = 0.1;
  dropout.row_samples = Tensor::FromVector(samples);
  dropout.row_positions = Tensor::FromVector(positions);
  const Tensor dout = Filled<T>({kRows, kColumns});
  const auto run = [&] {
    const Tensor out = EmbeddingLayerNorm(ids, tables, {0, -1, -1}, weight, bias, 1e-12, dropout,
                                          DTypeOf<T>::value);
    if (backward) Backward(out, dout);
  };
  run();  // finds memory for the gradients
  for (auto _ : state) run();
  // The rows of three tables and of the result are moved. Rows of gradients are read and written.
  const double once = static_cast<double>(kRows * kColumns);
  Bytes(state, once * (3 * 4 + sizeof(T) + (backward ? 3 * 8 + sizeof(T) : 0)));
}
BENCHMARK(Embeddings<float>)->ArgName("backward")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(Embeddings<BFloat16>)->ArgName("backward")->Arg(0)->Arg(1)->UseRealTime();

// Times dropout by itself in float32, as classification heads use it.
void DropoutAlone(benchmark::State& state) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < kRows; ++i) positions.push_back(static_cast<int32_t>(i % 25));
  const Tensor x = Filled<float>({kRows, 768});
  DropoutSpec dropout;
  dropout.p = 0.1;
  dropout.row_samples = Tensor::FromVector(std::vector<int32_t>(kRows, 1));
  dropout.row_positions = Tensor::FromVector(positions);
  for (auto _ : state) Dropout(x, dropout);
  Bytes(state, 2.0 * static_cast<double>(x.bytes()));
}
BENCHMARK(DropoutAlone)->UseRealTime();

// Runs forward and backward with `classes` classes. A training step has 32 rows.
void CrossEntropyLoss(benchmark::State& state) {
  const int64_t classes = state.range(0);
  std::vector<int64_t> classes_of;
  for (int64_t i = 0; i < kRows; ++i) classes_of.push_back(i % classes);
  const Tensor labels = Tensor::FromVector(classes_of);
  Tensor logits = Filled<float>({kRows, classes});
  logits.SetRequiresGrad(true);
  for (auto _ : state) Backward(CrossEntropy(logits, labels));
  Bytes(state, 3.0 * static_cast<double>(logits.bytes()));
}
BENCHMARK(CrossEntropyLoss)->ArgName("classes")->Arg(2)->Arg(1000)->UseRealTime();

// Runs with (1) and without (0) a bfloat16 copy of the values.
void AdamW(benchmark::State& state) {
  const int64_t n = 85'000'000;
  const Tensor p = Filled<float>({n}), m = Filled<float>({n}), v = FilledPositive({n}),
               g = Filled<float>({n}), narrow = Filled<BFloat16>({n});
  const bool copy = state.range(0) != 0;
  std::vector<uint8_t> active(n / cpu::kAdamWBlock + 1, 1);
  for (auto _ : state) {
    const cpu::AdamWRange range = {.p = p.data<float>(),
                                   .m = m.data<float>(),
                                   .v = v.data<float>(),
                                   .narrow = copy ? narrow.data<BFloat16>() : nullptr,
                                   .active = active.data(),
                                   .marked = false,
                                   .g = g.data<float>(),
                                   .n = n,
                                   .step = {.decay = 1,
                                            .beta2 = 0.999f,
                                            .one_minus_beta1 = 0.1f,
                                            .one_minus_beta2 = 0.001f,
                                            .step_size = 1e-5f,
                                            .inverse_bias2 = 1,
                                            .eps = 1e-8f,
                                            .grad_scale = 0.5f}};
    cpu::Kernels<cpu::OptimizerKernels>().adamw(&range, 1);
  }
  Bytes(state, (copy ? 30.0 : 28.0) * static_cast<double>(n));
}
void SumOfSquares(benchmark::State& state) {
  const Tensor g = Filled<float>({85'000'000});
  std::vector<cpu::FloatRange> ranges;
  for (int64_t i = 0; i + 16384 <= g.numel(); i += 16384) {
    ranges.push_back({g.data<float>() + i, 16384});
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        cpu::Kernels<cpu::OptimizerKernels>().sum_of_squares(ranges.data(), std::ssize(ranges)));
  }
  Bytes(state, static_cast<double>(g.bytes()));
}
BENCHMARK(AdamW)->ArgName("bf16_copy")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(SumOfSquares)->UseRealTime();

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  if (const std::string slow = lathe::SlowPrecisionNote("bf16", lathe::Device{}); !slow.empty())
    std::fprintf(stderr, "note: %s; fractions are of such products\n", slow.c_str());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
