// Compares the device's kernels of optimizer updates with the host's.
#include "lathe/core/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lathe/core/cuda/optimizer_testing.h"

namespace lathe {
namespace {

constexpr int64_t kSize = 12000;  // elements of the arena

// Returns ranges of the arena. There are gaps between them, odd lengths and beginnings, one range
// that is empty, and some that are longer than a chunk.
std::vector<DeviceRange> Ranges() {
  return {{.begin = 0, .n = 1},       {.begin = 16, .n = 4103}, {.begin = 4128, .n = 0},
          {.begin = 4128, .n = 4096}, {.begin = 8225, .n = 37}, {.begin = 8288, .n = 3702}};
}
std::vector<DeviceRates> RatesOf(const std::vector<DeviceRange>& ranges) {
  std::vector<DeviceRates> rates = {{.decay = 0.9f, .step_size = 0.1f},
                                    {.decay = 1, .step_size = 0.2f},
                                    {},
                                    {.decay = 0.5f, .step_size = 0.3f},
                                    {.decay = 0, .step_size = 0.4f},
                                    {.decay = 0.7f, .step_size = 1}};
  for (size_t i = 0; i < ranges.size(); ++i) {
    rates[i].inverse_bias2 = 1 + 0.5f * static_cast<float>(i);
    rates[i].take = i % 2 == 0 ? 1 : 0.75f;
  }
  return rates;
}

// The ranges and their rates in device memory. Every other range has a narrow copy.
struct DeviceRanges {
  std::vector<Tensor> narrow;  // undefined for ranges without a copy
  Tensor memory, rates_memory;
  int64_t count, chunks;

  DeviceRanges(std::vector<DeviceRange> ranges, DType type) : count(std::ssize(ranges)) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      narrow.emplace_back();
      if (i % 2 == 0) continue;
      narrow[i] = Tensor::Zeros({ranges[i].n}, type, kGpu);
      ranges[i].narrow = narrow[i].raw_data();
    }
    chunks = NumberChunks(ranges);
    memory = BytesToDevice(ranges);
    rates_memory = BytesToDevice(RatesOf(ranges));
  }
  const DeviceRange* data() const { return static_cast<const DeviceRange*>(memory.raw_data()); }
  const DeviceRates* rates() const {
    return static_cast<const DeviceRates*>(rates_memory.raw_data());
  }
};

void ExpectNarrow(const DeviceRanges& on_device, const std::vector<DeviceRange>& ranges,
                  const Tensor& p) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Tensor& narrow = on_device.narrow[i];
    if (!narrow.defined()) continue;
    const Tensor expected = p.Slice(ranges[i].begin, ranges[i].begin + ranges[i].n);
    EXPECT_EQ(narrow.To(Device{}).To(DType::kF32).ToVector<float>(),
              expected.To(narrow.dtype()).To(DType::kF32).ToVector<float>());
  }
}

TEST_F(DeviceOptimizer, NumberChunks) {
  std::vector<DeviceRange> ranges = Ranges();
  EXPECT_EQ(NumberChunks(ranges), 6);
  EXPECT_EQ(ranges[2].first_chunk, 3);
  EXPECT_EQ(ranges[3].first_chunk, 3);
  EXPECT_EQ(ranges[5].first_chunk, 5);
}

TEST_F(DeviceOptimizer, AdamW) {
  const AdamWConstants constants = {
      .one_minus_beta1 = 0.1f, .beta2 = 0.99f, .one_minus_beta2 = 0.01f, .eps = 1e-6f};
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool clipped : {false, true}) {
      const std::vector<DeviceRange> ranges = Ranges();
      const DeviceRanges on_device(ranges, type);
      Floats p = Waves(kSize, 0.7), m = Waves(kSize, 0.3), v = Waves(kSize, 0.2, 1.5);
      const Floats g = Waves(kSize, 1.3);
      const Tensor dp = ToDevice(p), dm = ToDevice(m), dv = ToDevice(v), dg = ToDevice(g);
      const Tensor clip = Scalar(0.25f);
      Kernels().adamw(dp.data<float>(), dm.data<float>(), dv.data<float>(), dg.data<float>(),
                      on_device.data(), on_device.rates(), on_device.count, on_device.chunks, type,
                      constants, clipped ? clip.data<float>() : nullptr);
      for (size_t r = 0; r < ranges.size(); ++r) {
        const DeviceRange& range = ranges[r];
        const DeviceRates rates = RatesOf(ranges)[r];
        std::vector<uint8_t> active(
            static_cast<size_t>((range.n + cpu::kAdamWBlock - 1) / cpu::kAdamWBlock), 1);
        const cpu::AdamWRange host_range = {.p = p.data() + range.begin,
                                            .m = m.data() + range.begin,
                                            .v = v.data() + range.begin,
                                            .narrow = nullptr,
                                            .active = active.data(),
                                            .marked = false,
                                            .g = g.data() + range.begin,
                                            .n = range.n,
                                            .step = {.decay = rates.decay,
                                                     .beta2 = constants.beta2,
                                                     .one_minus_beta1 = constants.one_minus_beta1,
                                                     .one_minus_beta2 = constants.one_minus_beta2,
                                                     .step_size = rates.step_size,
                                                     .inverse_bias2 = rates.inverse_bias2,
                                                     .eps = constants.eps,
                                                     .grad_scale = clipped ? 0.25f : 1}};
        cpu::Kernels<cpu::OptimizerKernels>().adamw(&host_range, 1);
      }
      ExpectClose(dp.ToVector<float>(), p);  // the gaps, too
      ExpectClose(dm.ToVector<float>(), m);
      ExpectClose(dv.ToVector<float>(), v);
      ExpectNarrow(on_device, ranges, dp.To(Device{}));
    }
  }
}

TEST_F(DeviceOptimizer, NothingChangesIfTheClipFactorIsNotFinite) {
  const DeviceRanges ranges(Ranges(), DType::kBF16);
  const Floats x = Waves(kSize, 0.7, 2);
  for (const float factor : {kNaN, kInf, -kInf}) {
    const Tensor clip = Scalar(factor);
    const Tensor p = ToDevice(x), m = ToDevice(x), v = ToDevice(x), g = ToDevice(x);
    Kernels().adamw(p.data<float>(), m.data<float>(), v.data<float>(), g.data<float>(),
                    ranges.data(), ranges.rates(), ranges.count, ranges.chunks, DType::kBF16,
                    {.one_minus_beta1 = 0.1f, .beta2 = 0.9f, .one_minus_beta2 = 0.1f, .eps = 1e-8f},
                    clip.data<float>());
    Kernels().sgd(p.data<float>(), m.data<float>(), g.data<float>(), ranges.data(), ranges.rates(),
                  ranges.count, ranges.chunks, DType::kBF16, {.momentum = 0.9f, .nesterov = false},
                  clip.data<float>());
    EXPECT_EQ(p.ToVector<float>(), x);
    EXPECT_EQ(m.ToVector<float>(), x);
    EXPECT_EQ(v.ToVector<float>(), x);
    for (const Tensor& narrow : ranges.narrow) {
      if (!narrow.defined()) continue;
      EXPECT_EQ(narrow.To(DType::kF32).ToVector<float>(),
                Floats(static_cast<size_t>(narrow.numel()), 0));
    }
  }
}

// SGD follows PyTorch's formula, computed here in double.
TEST_F(DeviceOptimizer, Sgd) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const int method : {0, 1, 2}) {  // plain, momentum, Nesterov
      const std::vector<DeviceRange> ranges = Ranges();
      const DeviceRanges on_device(ranges, type);
      Floats p = Waves(kSize, 0.7), b = Waves(kSize, 0.3);
      const Floats g = Waves(kSize, 1.3);
      const Tensor dp = ToDevice(p), db = ToDevice(b), dg = ToDevice(g), clip = Scalar(0.5f);
      Kernels().sgd(dp.data<float>(), method > 0 ? db.data<float>() : nullptr, dg.data<float>(),
                    on_device.data(), on_device.rates(), on_device.count, on_device.chunks, type,
                    {.momentum = 0.875f, .nesterov = method == 2}, clip.data<float>());
      for (size_t r = 0; r < ranges.size(); ++r) {
        const DeviceRange& range = ranges[r];
        const DeviceRates rates = RatesOf(ranges)[r];
        for (int64_t i = range.begin; i < range.begin + range.n; ++i) {
          const double d = 0.5 * g[i] + static_cast<double>(rates.decay) * p[i];
          double step = d;
          if (method > 0) {
            const double buffer = 0.875 * b[i] + rates.take * d;
            b[i] = static_cast<float>(buffer);
            step = method == 2 ? d + 0.875 * buffer : buffer;
          }
          p[i] = static_cast<float>(p[i] - rates.step_size * step);
        }
      }
      ExpectClose(dp.ToVector<float>(), p);
      ExpectClose(db.ToVector<float>(), b);
      ExpectNarrow(on_device, ranges, dp.To(Device{}));
    }
  }
}

TEST_F(DeviceOptimizer, Norm) {
  for (const size_t n : {0, 1, 3, 4, 257, 4097, 20001}) {
    Floats g = Waves(n, 0.9);
    double squares = 0;
    for (const float x : g) squares += static_cast<double>(x) * x;
    EXPECT_FLOAT_EQ(Norm(ToDevice(g)), static_cast<float>(std::sqrt(squares))) << n;
    if (n < 2) continue;
    const Tensor rest = ToDevice(g).Slice(1, static_cast<int64_t>(n));  // not 16-byte aligned
    squares -= static_cast<double>(g[0]) * g[0];
    EXPECT_FLOAT_EQ(Norm(rest), static_cast<float>(std::sqrt(squares))) << n;
    g[n / 2] = kNaN;
    EXPECT_TRUE(std::isnan(Norm(ToDevice(g))));
    g[n / 2] = 3e38f;  // its square overflows a float
    EXPECT_FLOAT_EQ(Norm(ToDevice(g)), 3e38f);
  }
}

}  // namespace
}  // namespace lathe
