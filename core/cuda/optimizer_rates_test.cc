// Compares what surrounds the optimizer's updates on a device with the same on the host: rates,
// clipping and loss scaling.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/cuda/optimizer_testing.h"

namespace lathe {
namespace {

// Rates follow the host's formulas, computed here in double. The ranges have had different numbers
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
    const RateRule rule = {.kind = adamw ? RateKind::kAdamW : RateKind::kSgd,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .dampening = 0.2};
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
    // No other pass has begun, so the state says "skipped" from the first skipped step on.
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
