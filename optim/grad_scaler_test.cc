#include "lathe/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

TEST(GradScaler, Rule) {
  GradScaler scaler(
      {.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  // One character for each step: '.' is a good step, '!' an overflow. `scales` has the scale after
  // each.
  const std::string steps =
      "..."
      "..!"
      "..."
      ".!."
      "..!"
      "!";
  const std::vector<float> scales = {8, 8, 32, 32, 32, 8, 8, 8, 32, 32, 8, 8, 8, 32, 8, 2};
  // The count of good steps restarts after growth and after an overflow: ".!." leaves a count of 1.
  for (size_t i = 0; i < steps.size(); ++i) {
    scaler.Update(steps[i] == '!');
    EXPECT_EQ(scaler.scale(), scales[i]) << i;
  }
}

TEST(GradScaler, RuleAgainstAModelOfIt) {
  GradScaler scaler({.growth_interval = 7});
  double scale = 65536;
  int good = 0;
  for (uint32_t i = 0, random = 1; i < 2000; ++i) {
    random = random * 1664525u + 1013904223u;
    const bool found = random >> 28 == 0;
    scaler.Update(found);
    if (found) {
      scale /= 2;
      good = 0;
    } else if (++good == 7) {
      if (scale * 2 <= std::numeric_limits<float>::max()) scale *= 2;
      good = 0;
    }
    ASSERT_EQ(scaler.scale(), scale) << i;
  }
}

TEST(GradScaler, NeverZeroNorInfinite) {
  GradScaler large({.init_scale = 3e38, .growth_interval = 1});
  large.Update(false);
  EXPECT_EQ(large.scale(), 3e38f);
  GradScaler small({.init_scale = 1e-37});
  for (int i = 0; i < 20; ++i) small.Update(true);
  EXPECT_GT(small.scale(), 0);
  EXPECT_LT(small.scale(), 1e-37f);
}

TEST(GradScaler, Options) {
  EXPECT_EQ(GradScaler().scale(), 65536);
  EXPECT_THROW(GradScaler({.init_scale = 0}), Error);
  EXPECT_THROW(GradScaler({.init_scale = 1e39}), Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), Error);
}

// A model with one parameter x and the loss factor * sum x, whose gradient is `factor`.
struct Line {
  Tensor x = Tensor::FromVector<float>({1, 2, 3}).SetRequiresGrad(true);
  SGD optimizer = SGD(std::vector<Parameter>{{.name = "x", .tensor = x}}, {.lr = 0.5});
  std::shared_ptr<GradScaler> scaler;

  explicit Line(GradScalerOptions options = {}) : scaler(std::make_shared<GradScaler>(options)) {
    optimizer.UseGradScaler(scaler);
  }
  Tensor Loss(double factor) { return Scale(Sum(x), factor); }
  std::vector<float> Grad() { return x.grad().ToVector<float>(); }
};

TEST(GradScaler, AStepBeforeAnyScaledPassTakesGradientsAsTheyAre) {
  Line line;
  Backward(Sum(line.x));
  line.optimizer.Step();
  EXPECT_EQ(line.x.ToVector<float>(), (std::vector<float>{0.5f, 1.5f, 2.5f}));
  EXPECT_FALSE(line.scaler->step_was_skipped());
}
using Floats = std::vector<float>;

TEST(GradScaler, GradientsAreDividedOnce) {
  Line line;
  line.scaler->Backward(line.Loss(3));
  EXPECT_EQ(line.Grad(), Floats(3, 3 * 65536));
  line.scaler->Backward(line.Loss(1), 0.5);
  EXPECT_EQ(line.Grad(), Floats(3, 3.5f * 65536));
  EXPECT_FLOAT_EQ(static_cast<float>(GradNorm(line.optimizer).Item()), 3.5f * std::sqrt(3.0f));
  EXPECT_EQ(line.Grad(), Floats(3, 3.5f));
  EXPECT_THROW(line.scaler->Backward(line.Loss(1)),
               Error);  // would add scaled gradients to divided ones
  ClipGradValue(line.optimizer, 2);
  EXPECT_EQ(line.Grad(), Floats(3, 2));
  line.optimizer.Step();
  EXPECT_EQ(line.x.ToVector<float>(), (Floats{0, 1, 2}));
  line.optimizer.ZeroGrad();
  line.scaler->Backward(line.Loss(1));
  ClipGradNorm(line.optimizer, std::sqrt(3.0) / 2);
  line.optimizer.Step();
  EXPECT_NEAR(line.x.ToVector<float>()[0], -0.25, 1e-6);
  EXPECT_FALSE(line.scaler->step_was_skipped());
  EXPECT_EQ(line.scaler->num_skipped_steps(), 0);
}

TEST(GradScaler, AnOverflowSkipsTheStepAndLowersTheNextScale) {
  Line line({.init_scale = 1e30});
  const auto scheduler = GetScheduler("linear", line.optimizer, {.num_training_steps = 10});
  for (int overflow = 0; overflow < 2; ++overflow) {
    line.scaler->Backward(line.Loss(1e9));
    ClipGradNorm(line.optimizer, 1.0);
    line.optimizer.Step();
    scheduler->Step();
    EXPECT_TRUE(line.optimizer.step_was_skipped());
    EXPECT_TRUE(line.scaler->step_was_skipped());
    EXPECT_EQ(line.scaler->num_skipped_steps(), overflow + 1);
    EXPECT_EQ(line.optimizer.step_count(), 0);
    EXPECT_EQ(line.optimizer.lr(), 0.5);
    EXPECT_EQ(line.x.ToVector<float>(), (Floats{1, 2, 3}));
    line.optimizer.ZeroGrad();
  }
  line.scaler->Backward(line.Loss(2));
  EXPECT_EQ(line.scaler->scale(), 0.25f * 1e30f);
  line.optimizer.Step();
  scheduler->Step();
  EXPECT_FALSE(line.optimizer.step_was_skipped());
  EXPECT_EQ(line.optimizer.step_count(), 1);
  EXPECT_LT(line.optimizer.lr(), 0.5);
  EXPECT_EQ(line.x.ToVector<float>(), (Floats{0, 1, 2}));
}

// During gradient accumulation the scale stays, and an overflow in any pass skips the step at the
// end.
TEST(GradScaler, TheScaleStaysWithinAWindow) {
  Line line({.init_scale = 1e30, .growth_interval = 1});
  const auto may_step = std::make_shared<bool>(false);
  line.optimizer.StepOnlyIf(may_step);
  const auto pass = [&](double factor, bool last) {
    *may_step = last;
    line.scaler->Backward(line.Loss(factor));
    EXPECT_EQ(line.optimizer.may_step(), last);
    line.optimizer.Step();
    line.optimizer.ZeroGrad();
  };
  pass(1e9, false);
  pass(1, false);
  EXPECT_EQ(line.scaler->scale(), 1e30f);
  pass(1, true);
  EXPECT_EQ(line.scaler->num_skipped_steps(), 1);
  EXPECT_EQ(line.scaler->scale(), 1e30f);
  for (const bool last : {false, false, true}) {
    pass(1, last);
    EXPECT_EQ(line.scaler->scale(), 0.5e30f);
  }
  EXPECT_EQ(line.scaler->num_skipped_steps(), 1);
  pass(1, false);
  EXPECT_EQ(line.scaler->scale(), 1e30f);  // one good step was enough to grow
}

TEST(GradScaler, OneOfTwoOptimizersOverflows) {
  Line good({.init_scale = 1e30});
  Tensor y = Tensor::FromVector<float>({4}).SetRequiresGrad(true);
  SGD other(std::vector<Parameter>{{.name = "y", .tensor = y}}, {.lr = 1});
  other.UseGradScaler(good.scaler);
  good.scaler->Backward(Add(good.Loss(1), Scale(Sum(y), 1e9)));
  other.Step();
  good.optimizer.Step();
  EXPECT_TRUE(other.step_was_skipped());
  EXPECT_FALSE(good.optimizer.step_was_skipped());
  EXPECT_TRUE(good.scaler->step_was_skipped());
  EXPECT_EQ(good.x.ToVector<float>(), (Floats{0.5, 1.5, 2.5}));
  EXPECT_EQ(y.ToVector<float>(), Floats{4});
  good.optimizer.ZeroGrad();
  other.ZeroGrad();
  good.scaler->Backward(good.Loss(1));
  EXPECT_EQ(good.scaler->scale(), 0.5e30f);
}

}  // namespace
}  // namespace lathe
