// Compares the device's optimizer kernels with the host's.
#include "lathe/core/cpu/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/optimizer_kernels.h"
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
    if (backend->Count() == 0) GTEST_SKIP() << "no GPU: " << backend->UnavailableReason();
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

// Returns slices of an arena of kSize elements. There are gaps between them, odd lengths and
// beginnings, one slice that is empty, and some that are longer than a chunk.
constexpr int64_t kSize = 12000;
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

template <typename T>
Tensor BytesToDevice(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return Tensor::FromVector(bytes).To(kGpu);
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
        const cpu::AdamWPart part = {.p = p.data() + range.begin,
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
        cpu::Kernels<cpu::OptimizerKernels>().adamw(&part, 1);
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

// Rates follow the host's formulas, computed here in double. The slices have had different numbers
// of updates.
TEST_F(DeviceOptimizer, Rates) {
  const std::vector<DeviceRange> ranges = {
      {.begin = 0, .n = 5, .weight_decay = 0.1, .group = 1, .counter = 3},
      {.begin = 8, .n = 5, .weight_decay = 0, .group = 0, .counter = 0},
      {.begin = 16, .n = 5, .weight_decay = 0.25, .group = 2, .counter = 1}};
  const std::vector<double> lrs = {0.5, 3e-5, 0.01};
  const Tensor ranges_there = BytesToDevice(ranges), lrs_there = BytesToDevice(lrs);
  const Tensor values_there = BytesToDevice(std::vector<RateValues>(1));
  const Tensor rates = Tensor::Empty({3 * int64_t{sizeof(DeviceRates)}}, DType::kU8, kGpu);
  for (const bool adamw : {true, false}) {
    const RateRule rule = {.adamw = adamw, .beta1 = 0.9, .beta2 = 0.999, .dampening = 0.2};
    std::vector<int64_t> counters = {0, 99999, 7, 4};
    const Tensor counters_there = Tensor::FromVector(counters).To(kGpu);
    for (int round = 0; round < 3; ++round) {
      Kernels().rates(static_cast<DeviceRates*>(rates.raw_data()), counters_there.data<int64_t>(),
                      static_cast<const DeviceRange*>(ranges_there.raw_data()), 3, rule,
                      static_cast<const RateValues*>(values_there.raw_data()),
                      static_cast<const double*>(lrs_there.raw_data()), {});
      const std::vector<uint8_t> bytes = rates.ToVector<uint8_t>();
      for (size_t i = 0; i < ranges.size(); ++i) {
        DeviceRates got;
        std::memcpy(&got, bytes.data() + i * sizeof(got), sizeof(got));
        const double t = static_cast<double>(++counters[static_cast<size_t>(ranges[i].counter)]);
        const double lr = lrs[static_cast<size_t>(ranges[i].group)];
        if (adamw) {
          EXPECT_FLOAT_EQ(got.decay, static_cast<float>(1 - lr * ranges[i].weight_decay));
          EXPECT_FLOAT_EQ(got.step_size, static_cast<float>(lr / (1 - std::pow(0.9, t))));
          EXPECT_FLOAT_EQ(got.inverse_bias2,
                          static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, t))));
        } else {
          EXPECT_EQ(got.decay, static_cast<float>(ranges[i].weight_decay));
          EXPECT_EQ(got.step_size, static_cast<float>(lr));
          EXPECT_EQ(got.take, t == 1 ? 1 : 0.8f);
        }
      }
      EXPECT_EQ(counters_there.ToVector<int64_t>(), counters);
    }
  }
}

// With a loss scaler, rates follow the schedule, which advances only after steps that were taken.
TEST_F(DeviceOptimizer, RatesOfStepsThatAreSkipped) {
  const Tensor range = BytesToDevice(std::vector<DeviceRange>{{.begin = 0, .n = 5, .group = 1}});
  const Tensor rates = BytesToDevice(std::vector<DeviceRates>(1));
  const Tensor counter = Tensor::Zeros({1}, DType::kI64, kGpu);
  const Tensor scaler = BytesToDevice(std::vector<ScalerState>{{.scale = 8}});
  const Tensor steps = BytesToDevice(std::vector<DeviceStepCounts>(1));
  const Tensor clip = Scalar(0.5f), factor = Scalar(-1);
  const auto get = [](const Tensor& bytes, auto value) {
    const std::vector<uint8_t> there = bytes.ToVector<uint8_t>();
    std::memcpy(&value, there.data(), sizeof(value));
    return value;
  };
  const auto set_found_inf = [&](bool found) {
    DeviceStepCounts now = get(steps, DeviceStepCounts());
    now.found_inf = found;
    Tensor(steps).CopyFrom(BytesToDevice(std::vector<DeviceStepCounts>{now}));
  };
  // Each letter is a step: '.' is good, '!' overflows. A step of the schedule follows each.
  const std::string letters = "..!.!!.";
  int64_t taken = 0, advanced = 0;
  for (size_t i = 0; i < letters.size(); ++i) {
    const bool good = letters[i] == '.';
    set_found_inf(!good);
    std::vector<double> lrs;
    const auto columns = static_cast<int64_t>(i) + 1;
    for (int group = 0; group < 2; ++group) {
      for (int64_t k = 0; k < columns; ++k) lrs.push_back(100 * group + static_cast<double>(k));
    }
    const Tensor lrs_there = BytesToDevice(lrs);
    const Tensor values = BytesToDevice(
        std::vector<RateValues>{{.advance = i > 0, .advanced = 0, .num_rates = columns}});
    if (i > 0 && letters[i - 1] == '.') ++advanced;
    const float before = get(rates, DeviceRates()).step_size;
    Kernels().rates(static_cast<DeviceRates*>(rates.raw_data()), counter.data<int64_t>(),
                    static_cast<const DeviceRange*>(range.raw_data()), 1, {},
                    static_cast<const RateValues*>(values.raw_data()),
                    static_cast<const double*>(lrs_there.raw_data()),
                    {.scaler = static_cast<ScalerState*>(scaler.raw_data()),
                     .steps = static_cast<DeviceStepCounts*>(steps.raw_data()),
                     .clip = i % 2 == 0 ? clip.data<float>() : nullptr,
                     .factor = factor.data<float>()});
    taken += good;
    const DeviceStepCounts now = get(steps, DeviceStepCounts());
    EXPECT_EQ(now.taken, taken);
    EXPECT_EQ(now.advanced, advanced);
    EXPECT_EQ(now.skipped, !good);
    EXPECT_EQ(counter.ToVector<int64_t>()[0], taken);
    EXPECT_EQ(get(rates, DeviceRates()).step_size,
              good ? 100 + static_cast<float>(advanced) : before);
    const double expected = i % 2 == 0 ? 0.5 : 1;
    EXPECT_TRUE(good ? factor.Item() == expected : std::isnan(factor.Item()));
    const ScalerState state = get(scaler, ScalerState());
    EXPECT_EQ(state.num_skipped, static_cast<int64_t>(i) + 1 - taken);
    EXPECT_EQ(state.stepped, 1);
    // No other pass has begun, so the state is skipped as soon as one of the steps is.
    EXPECT_EQ(state.skipped, taken < static_cast<int64_t>(i) + 1);
  }
}

struct Clipped {
  float factor, norm, scale, latch;
};

TEST_F(DeviceOptimizer, Clip) {
  const Tensor scaler = BytesToDevice(std::vector<ScalerState>{{.scale = 8}});
  const auto clip = [&](float norm_value, float max_norm, Floats loss_values = {},
                        float latch_value = 0, bool latched = true, float smallest_scale = 0) {
    const Tensor norm = Scalar(norm_value), factor = Scalar(-1), out = ToDevice({-1, -1});
    const Tensor losses = ToDevice(loss_values), latch = Scalar(latch_value);
    const Tensor values = BytesToDevice(std::vector<ClipValues>{{.max_norm = max_norm,
                                                                 .smallest_scale = smallest_scale,
                                                                 .results = out.data<float>(),
                                                                 .losses = losses.data<float>(),
                                                                 .num_losses = losses.numel()}});
    Kernels().clip(
        factor.data<float>(), norm.data<float>(), static_cast<const ClipValues*>(values.raw_data()),
        latched ? latch.data<float>() : nullptr,
        smallest_scale == 0 ? nullptr : static_cast<const ScalerState*>(scaler.raw_data()));
    const Floats results = out.ToVector<float>();
    return Clipped{static_cast<float>(factor.Item()), results[0], results[1],
                   static_cast<float>(latch.Item())};
  };
  EXPECT_EQ(clip(0.5f, 1).factor, 1);
  EXPECT_EQ(clip(0, 1).factor, 1);
  EXPECT_FLOAT_EQ(clip(4, 1).factor, 1 / (4 + 1e-6f));
  EXPECT_EQ(clip(4, 1).norm, 4);
  EXPECT_EQ(clip(4, 1).scale, 1);
  EXPECT_EQ(clip(3, 0).factor, 0);
  for (const float bad : {kInf, kNaN}) {
    for (const bool latched : {false, true}) {
      const Clipped clipped = clip(bad, kInf, {}, 0, latched);
      EXPECT_TRUE(std::isnan(clipped.factor));
      EXPECT_FALSE(std::isfinite(clipped.norm));
      EXPECT_EQ(std::isnan(clipped.latch), latched);
    }
    Floats losses(70, 1);
    losses[69] = bad;
    for (const float smallest : {0.0f, 1.0f}) {
      EXPECT_TRUE(std::isnan(clip(2, 1, losses, 0, true, smallest).factor));
      EXPECT_TRUE(std::isnan(clip(2, 1, losses, 0, true, smallest).latch));
    }
    EXPECT_EQ(clip(2, 1, losses).norm, 2);
    EXPECT_EQ(clip(0.5f, 1, losses, 0, false).factor, 1);
    // The scaler's scale is 8.
    for (const float smallest : {7.0f, 8.0f, 9.0f}) {
      const Clipped clipped = clip(bad, 1, {1, 2}, 0, true, smallest);
      EXPECT_TRUE(std::isnan(clipped.factor));
      EXPECT_EQ(std::isnan(clipped.latch), smallest > 8);
      EXPECT_EQ(clipped.scale, 8);
    }
  }
  EXPECT_TRUE(std::isnan(clip(0.5f, 1, {1, 2}, kNaN).factor));
  EXPECT_TRUE(std::isnan(clip(0.5f, 1, {1, 2}, kNaN, true, 1).factor));
  EXPECT_EQ(clip(0.5f, 1, Floats(70, 1)).factor, 1);
  EXPECT_EQ(clip(0.5f, 1, Floats(70, 1)).latch, 0);
}

TEST_F(DeviceOptimizer, Clamp) {
  const Tensor g = ToDevice({-3, -0.5f, 0, 0.5f, 3, kInf, -kInf, kNaN});
  Kernels().clamp(g.data<float>(), g.numel(), 2);
  Floats clamped = g.ToVector<float>();
  EXPECT_TRUE(std::isnan(clamped.back()));
  clamped.pop_back();
  EXPECT_EQ(clamped, (Floats{-2, -0.5f, 0, 0.5f, 2, 2, -2}));
}

TEST_F(DeviceOptimizer, Unscale) {
  const Tensor scaler = BytesToDevice(std::vector<ScalerState>{{.scale = 8}});
  const auto check = [&](Floats values) {
    const Tensor g = ToDevice(values);
    const Tensor steps = BytesToDevice(std::vector<DeviceStepCounts>{{.found_inf = 1, .taken = 3}});
    Kernels().unscale(g.data<float>(), g.numel(),
                      static_cast<const ScalerState*>(scaler.raw_data()),
                      static_cast<DeviceStepCounts*>(steps.raw_data()));
    const Floats unscaled = g.ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = values[i] * 0.125f;
      EXPECT_TRUE(unscaled[i] == expected || (std::isnan(unscaled[i]) && std::isnan(expected)));
    }
    DeviceStepCounts now;
    std::memcpy(&now, steps.ToVector<uint8_t>().data(), sizeof(now));
    EXPECT_EQ(now.taken, 3);
    return now.found_inf;
  };
  Floats values = Waves(1000, 0.4);
  EXPECT_EQ(check(values), 0);
  EXPECT_EQ(check({}), 0);
  for (const float bad : {kInf, -kInf, kNaN}) {
    values[700] = bad;
    EXPECT_EQ(check(values), 1);
  }
}

// The scale follows the scaler's rule, computed here on the host.
TEST_F(DeviceOptimizer, BeginPass) {
  const ScalerRule rule = {.growth_factor = 3, .backoff_factor = 0.5f, .growth_interval = 4};
  Tensor scaler = BytesToDevice(std::vector<ScalerState>{{.scale = 1e-38f}});
  float scale = 1e-38f;
  int64_t good = 0;
  for (uint32_t i = 0, random = 1; i < 1200; ++i) {
    random = random * 1664525u + 1013904223u;
    const uint32_t case_of = random >> 28;
    const bool stepped = case_of % 4 != 1, skipped = i < 3 || i % 100 == 50;
    ScalerState state;
    std::memcpy(&state, scaler.ToVector<uint8_t>().data(), sizeof(state));
    state.stepped = stepped;
    state.skipped = skipped;
    scaler.CopyFrom(BytesToDevice(std::vector<ScalerState>{state}));
    Kernels().begin_pass(static_cast<ScalerState*>(scaler.raw_data()), rule);
    if (stepped && skipped) {
      scale = std::max(scale * 0.5f, std::numeric_limits<float>::min());
      good = 0;
    } else if (stepped && ++good == 4) {
      if (std::isfinite(scale * 3)) scale *= 3;
      good = 0;
    }
    std::memcpy(&state, scaler.ToVector<uint8_t>().data(), sizeof(state));
    ASSERT_EQ(state.scale, scale) << i;
    ASSERT_EQ(state.growth_tracker, good) << i;
    ASSERT_EQ(state.stepped, 0);
    ASSERT_EQ(state.skipped, skipped);
  }
  EXPECT_GT(scale, 1e30f);
}

}  // namespace
}  // namespace lathe
