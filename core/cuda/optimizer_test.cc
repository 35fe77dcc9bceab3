// The device's optimizer kernels against the host's.
#include "lathe/core/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe {
namespace {

constexpr Device kGpu = {DeviceType::kCUDA, 0};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;

class DeviceOptimizer : public testing::Test {
 protected:
  void SetUp() override {
    DeviceBackend* backend = FindDeviceBackend();
    if (backend == nullptr) GTEST_SKIP() << "built without CUDA";
    if (backend->Count() == 0) GTEST_SKIP() << "no GPU: " << backend->WhyNone();
  }

  static const DeviceOptimizerKernels& Kernels() { return DeviceKernels<DeviceOptimizerKernels>(); }
  static Tensor ToDevice(const Floats& values) { return Tensor::FromVector(values).To(kGpu); }
  static Tensor Scalar(float value) { return Tensor::Full({}, value, DType::kF32, kGpu); }

  static Floats Waves(size_t n, double step, double from = 0) {
    Floats values(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = static_cast<float>(from + std::sin(step * static_cast<double>(i)));
    }
    return values;
  }

  static void ExpectClose(const Floats& actual, const Floats& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 1e-6 * (1 + std::fabs(expected[i]))) << "element " << i;
    }
  }

  static float Norm(const Tensor& g) {
    const int64_t bytes = Kernels().norm_scratch_bytes(g.numel());
    const Tensor scratch = Tensor::Empty({bytes}, DType::kU8, kGpu), norm = Scalar(-1);
    Kernels().norm(norm.data<float>(), g.data<float>(), g.numel(), scratch.raw_data(), bytes);
    return static_cast<float>(norm.Item());
  }
};

// Stretches of an arena of kSize elements, with gaps, of odd lengths and begins, and longer than a
// chunk; one of none.
constexpr int64_t kSize = 12000;
std::vector<DeviceRange> Ranges() {
  std::vector<DeviceRange> ranges = {{.begin = 0, .n = 1, .decay = 0.9f, .step_size = 0.1f},
                                     {.begin = 16, .n = 4103, .decay = 1, .step_size = 0.2f},
                                     {.begin = 4128, .n = 0},
                                     {.begin = 4128, .n = 4096, .decay = 0.5f, .step_size = 0.3f},
                                     {.begin = 8225, .n = 37, .decay = 0, .step_size = 0.4f},
                                     {.begin = 8288, .n = 3702, .decay = 0.7f, .step_size = 1}};
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].inverse_bias2 = 1 + 0.5f * static_cast<float>(i);
    ranges[i].take = i % 2 == 0 ? 1 : 0.75f;
  }
  return ranges;
}

// The ranges in device memory, every other one with a narrow copy.
struct DeviceRanges {
  std::vector<Tensor> narrow;  // undefined: none
  Tensor memory;
  int64_t count, chunks;

  DeviceRanges(std::vector<DeviceRange> ranges, DType type) : count(std::ssize(ranges)) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      narrow.emplace_back();
      if (i % 2 == 0) continue;
      narrow[i] = Tensor::Zeros({ranges[i].n}, type, kGpu);
      ranges[i].narrow = narrow[i].raw_data();
    }
    chunks = NumberChunks(ranges);
    std::vector<uint8_t> bytes(ranges.size() * sizeof(DeviceRange));
    std::memcpy(bytes.data(), ranges.data(), bytes.size());
    memory = Tensor::FromVector(bytes).To(kGpu);
  }
  const DeviceRange* data() const { return static_cast<const DeviceRange*>(memory.raw_data()); }
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
  const AdamWConstants constants = {.rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, .eps = 1e-6f};
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool clipped : {false, true}) {
      const std::vector<DeviceRange> ranges = Ranges();
      const DeviceRanges on_device(ranges, type);
      Floats p = Waves(kSize, 0.7), m = Waves(kSize, 0.3), v = Waves(kSize, 0.2, 1.5);
      const Floats g = Waves(kSize, 1.3);
      const Tensor dp = ToDevice(p), dm = ToDevice(m), dv = ToDevice(v), dg = ToDevice(g);
      const Tensor clip = Scalar(0.25f);
      Kernels().adamw(dp.data<float>(), dm.data<float>(), dv.data<float>(), dg.data<float>(),
                      on_device.data(), on_device.count, on_device.chunks, type, constants,
                      clipped ? clip.data<float>() : nullptr);
      for (const DeviceRange& range : ranges) {
        std::vector<uint8_t> active(
            static_cast<size_t>((range.n + cpu::kAdamWBlock - 1) / cpu::kAdamWBlock), 1);
        cpu::Kernels<cpu::OptimizerKernels>().adamw(p.data() + range.begin, m.data() + range.begin,
                                                    v.data() + range.begin, nullptr, active.data(),
                                                    false, g.data() + range.begin, range.n,
                                                    {.decay = range.decay,
                                                     .beta2 = constants.beta2,
                                                     .rest1 = constants.rest1,
                                                     .rest2 = constants.rest2,
                                                     .step_size = range.step_size,
                                                     .inverse_bias2 = range.inverse_bias2,
                                                     .eps = constants.eps,
                                                     .grad_scale = clipped ? 0.25f : 1});
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
                    ranges.data(), ranges.count, ranges.chunks, DType::kBF16,
                    {.rest1 = 0.1f, .beta2 = 0.9f, .rest2 = 0.1f, .eps = 1e-8f},
                    clip.data<float>());
    Kernels().sgd(p.data<float>(), m.data<float>(), g.data<float>(), ranges.data(), ranges.count,
                  ranges.chunks, DType::kBF16, {.momentum = 0.9f, .nesterov = false},
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

// PyTorch's formula, in double.
TEST_F(DeviceOptimizer, Sgd) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const int method : {0, 1, 2}) {  // plain, momentum, Nesterov
      const std::vector<DeviceRange> ranges = Ranges();
      const DeviceRanges on_device(ranges, type);
      Floats p = Waves(kSize, 0.7), b = Waves(kSize, 0.3);
      const Floats g = Waves(kSize, 1.3);
      const Tensor dp = ToDevice(p), db = ToDevice(b), dg = ToDevice(g), clip = Scalar(0.5f);
      Kernels().sgd(dp.data<float>(), method > 0 ? db.data<float>() : nullptr, dg.data<float>(),
                    on_device.data(), on_device.count, on_device.chunks, type,
                    {.momentum = 0.875f, .nesterov = method == 2}, clip.data<float>());
      for (const DeviceRange& range : ranges) {
        for (int64_t i = range.begin; i < range.begin + range.n; ++i) {
          const double d = 0.5 * g[i] + static_cast<double>(range.decay) * p[i];
          double step = d;
          if (method > 0) {
            const double buffer = 0.875 * b[i] + range.take * d;
            b[i] = static_cast<float>(buffer);
            step = method == 2 ? d + 0.875 * buffer : buffer;
          }
          p[i] = static_cast<float>(p[i] - range.step_size * step);
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
    g[n / 2] = 3e38f;  // whose square is no float
    EXPECT_FLOAT_EQ(Norm(ToDevice(g)), 3e38f);
  }
}

TEST_F(DeviceOptimizer, ClipFactor) {
  const auto factor_of = [](float norm_value, float max_norm) {
    const Tensor norm = Scalar(norm_value), factor = Scalar(-1);
    Kernels().clip_factor(factor.data<float>(), norm.data<float>(), max_norm);
    return static_cast<float>(factor.Item());
  };
  EXPECT_EQ(factor_of(0.5f, 1), 1);
  EXPECT_EQ(factor_of(0, 1), 1);
  EXPECT_FLOAT_EQ(factor_of(4, 1), 1 / (4 + 1e-6f));
  EXPECT_EQ(factor_of(3, 0), 0);
  EXPECT_TRUE(std::isnan(factor_of(kInf, 1)));
  EXPECT_TRUE(std::isnan(factor_of(kInf, kInf)));
  EXPECT_TRUE(std::isnan(factor_of(kNaN, 1)));
}

TEST_F(DeviceOptimizer, Clamp) {
  const Tensor g = ToDevice({-3, -0.5f, 0, 0.5f, 3, kInf, -kInf, kNaN});
  Kernels().clamp(g.data<float>(), g.numel(), 2);
  Floats clamped = g.ToVector<float>();
  EXPECT_TRUE(std::isnan(clamped.back()));
  clamped.pop_back();
  EXPECT_EQ(clamped, (Floats{-2, -0.5f, 0, 0.5f, 2, 2, -2}));
}

TEST_F(DeviceOptimizer, UnscaleAndCheck) {
  const auto check = [](Floats values, float inverse_scale) {
    const Tensor g = ToDevice(values), found = Scalar(0);
    Kernels().unscale_and_check(g.data<float>(), g.numel(), inverse_scale, found.data<float>());
    const Floats unscaled = g.ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = values[i] * inverse_scale;
      EXPECT_TRUE(unscaled[i] == expected || (std::isnan(unscaled[i]) && std::isnan(expected)));
    }
    return found.Item();
  };
  Floats values = Waves(1000, 0.4);
  EXPECT_EQ(check(values, 0.125f), 0);
  EXPECT_EQ(check({}, 0.125f), 0);
  values[700] = kInf;
  EXPECT_EQ(check(values, 0.125f), 1);
  values[700] = -kInf;
  EXPECT_EQ(check(values, 0.125f), 1);
  values[700] = kNaN;
  EXPECT_EQ(check(values, 0.125f), 1);
}

}  // namespace
}  // namespace lathe
