// Training loops of a library's user on a device, compared with the same loops on the CPU. They
// cover loops with and without the Accelerator, and optimizers made before and after a model moves.
// They also cover clipping, frozen parameters, own ops, checkpoints and loss scaling.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/nn/module.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

class TrainingOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
    device_ = CheckedDevice();
  }

  static void ExpectNear(const Floats& a, const Floats& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
  }

  Device device_;
};

// The loop of examples/training_loop.cc. Returns the losses of all steps, then that of the
// evaluation.
Floats TrainingLoop(Device device, const std::string& precision) {
  Accelerator accelerator({.gradient_accumulation_steps = 1,
                           .mixed_precision = precision,
                           .device = device.is_cpu() ? "cpu" : "cuda"});
  EXPECT_EQ(accelerator.device(), device);
  EXPECT_EQ(accelerator.scaler() != nullptr, precision == "fp16");
  const auto model = TinyBert({{"num_hidden_layers", 2}});
  AdamW optimizer(model->Parameters(), {.lr = 1e-2});
  DataLoader train(TinyData(40), {.batch_size = 8, .shuffle = true});
  DataLoader eval(TinyData(12), {.batch_size = 5});
  const auto scheduler =
      GetScheduler("linear", optimizer, {.num_training_steps = 2 * train.size()});
  accelerator.Prepare(train, eval, *model, optimizer, *scheduler);
  Floats losses;
  for (int epoch = 0; epoch < 2; ++epoch) {
    model->Train();
    for (const Batch& batch : train) {
      const SequenceClassifierOutput outputs = model->Forward(batch);
      EXPECT_EQ(outputs.loss.device(), device);
      EXPECT_EQ(outputs.loss.dtype(), DType::kF32);
      accelerator.Backward(outputs.loss);
      accelerator.ClipGradNorm(optimizer, 1.0);
      optimizer.Step();
      EXPECT_FALSE(accelerator.optimizer_step_was_skipped());
      scheduler->Step();
      optimizer.ZeroGrad();
      losses.push_back(static_cast<float>(accelerator.last_loss()));
    }
  }
  model->Eval();
  NoGradGuard no_grad;
  double loss_sum = 0;
  for (const Batch& batch : eval) {
    loss_sum += model->Forward(batch).loss.Item() * batch.share->weight;
  }
  losses.push_back(
      static_cast<float>(accelerator.Reduce(Tensor::FromVector<double>({loss_sum})).Item() / 12));
  return losses;
}

TEST_F(TrainingOnDevice, TheAcceleratorsLoop) {
  const Floats on_cpu = TrainingLoop({}, "no");
  ExpectNear(TrainingLoop(device_, "no"), on_cpu, 1e-5);
  ExpectNear(TrainingLoop(device_, "bf16"), on_cpu, 0.05);
  if (device_.is_cpu()) {
    EXPECT_THROW(TrainingLoop(device_, "fp16"), Error);
  } else {
    ExpectNear(TrainingLoop(device_, "fp16"), on_cpu, 0.01);
  }
}

TEST_F(TrainingOnDevice, TheAcceleratorSkipsWindowsThatOverflow) {
  if (device_.is_cpu()) GTEST_SKIP() << "float16 is for GPUs";
  Accelerator accelerator({.gradient_accumulation_steps = 2,
                           .mixed_precision = "fp16",
                           .grad_scaler = {.init_scale = 1e8, .growth_interval = 1000},
                           .device = "cuda"});
  const auto model = TinyBert({{"num_hidden_layers", 2}});
  AdamW optimizer(model->Parameters(), {.lr = 1e-2});
  DataLoader train(TinyData(18), {.batch_size = 4, .shuffle = true});  // 3 windows, the last short
  const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 30});
  accelerator.Prepare(train, *model, optimizer, *scheduler);
  model->Train();
  int64_t windows = 0, skipped = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (const Batch& batch : train) {
      const auto accumulation = accelerator.Accumulate();
      const double rate = optimizer.lr();
      accelerator.Backward(model->Forward(batch).loss);
      EXPECT_EQ(accelerator.scaler()->scale(), std::ldexp(1e8f, -static_cast<int>(skipped)));
      const Tensor norm = accelerator.ClipGradNorm(optimizer, 1.0);
      optimizer.Step();
      scheduler->Step();
      optimizer.ZeroGrad();
      if (!accelerator.sync_gradients()) {
        EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
        continue;
      }
      const bool finite = std::isfinite(norm.Item());
      ++windows;
      skipped += !finite;
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), !finite);
      EXPECT_EQ(accelerator.scaler()->num_skipped_steps(), skipped);
      EXPECT_EQ(optimizer.step_count(), windows - skipped);
      EXPECT_EQ(optimizer.lr() < rate, finite);
    }
  }
  EXPECT_EQ(windows, 15);
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 14);
}

// Here a window is a batch in two halves. Only the second half's call divides the gradients.
TEST_F(TrainingOnDevice, TheAcceleratorDividesGradientsByTheScale) {
  const bool is_gpu = !device_.is_cpu();
  for (const std::string precision : {"no", "fp16"}) {
    if (precision == "fp16" && !is_gpu) continue;
    Accelerator accelerator({.gradient_accumulation_steps = 2,
                             .mixed_precision = precision,
                             .grad_scaler = {.init_scale = 1024},
                             .device = is_gpu ? "cuda" : "cpu"});
    const auto model = TinyBert({});
    AdamW optimizer(model->Parameters(), {.lr = 1e-2});
    DataLoader train(TinyData(8), {.batch_size = 4});
    accelerator.Prepare(train, *model, optimizer);
    model->Eval();  // no dropout
    const float scale = precision == "fp16" ? 1024 : 1;
    const Tensor weight = model->Parameters().back().tensor;
    Floats before;
    for (const Batch& batch : train) {
      const auto accumulation = accelerator.Accumulate();
      accelerator.Backward(model->Forward(batch).loss);
      before = weight.grad().ToVector<float>();
      accelerator.UnscaleGradients(optimizer);
      if (!accelerator.sync_gradients()) {
        EXPECT_EQ(weight.grad().ToVector<float>(), before);
      }
    }
    EXPECT_TRUE(std::any_of(before.begin(), before.end(), [](float g) { return g != 0; }));
    for (float& g : before) g /= scale;
    EXPECT_EQ(weight.grad().ToVector<float>(), before);
    // Gradients are divided once: clipping doesn't divide again.
    accelerator.ClipGradNorm(optimizer, 1e6);
    EXPECT_EQ(weight.grad().ToVector<float>(), before);
  }
}

// Two layers and their input.
struct Net : Module {
  Net() {
    first = RegisterParameter("first", {9, 5}, Init::Zeros());
    second = RegisterParameter("second", {3, 9}, Init::Zeros());
    Initialize(1);
    float v = 0;
    for (Tensor* p : {&first, &second}) {
      for (float& w : p->values<float>()) w = std::sin(v += 1.7f) / 2;
    }
    Floats values(7 * 5);
    for (float& w : values) w = std::cos(v += 0.9f);
    x = Tensor::FromVector(values, {7, 5});
  }
  Tensor Loss(const std::function<Tensor(const Tensor&)>& act = Tanh) const {
    const Tensor on = x.To(first.device());
    const Tensor y = Linear(act(Linear(on, first, {})), second, {});
    return Mean(Mul(y, y));
  }
  Floats Values() const {
    Floats all = first.ToVector<float>();
    const Floats more = second.ToVector<float>();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Tensor first, second, x;
};

enum class When { kBefore, kAfter };

// Returns the parameters after four steps. `step` does what a loop does in each step.
Floats Train(Device device, When made,
             const std::function<std::unique_ptr<Optimizer>(Net&)>& make_optimizer,
             const std::function<void(Net&, Optimizer&)>& step) {
  Net net;
  if (made == When::kAfter) net.To(device);
  const auto optimizer = make_optimizer(net);
  if (made == When::kBefore) net.To(device);
  for (int i = 0; i < 4; ++i) step(net, *optimizer);
  EXPECT_EQ(optimizer->arena().values().device(), device);
  return net.Values();
}

std::unique_ptr<Optimizer> MakeAdamW(Net& net) {
  return std::make_unique<AdamW>(net.Parameters(), AdamWOptions{.lr = 0.05});
}
std::unique_ptr<Optimizer> MakeSgd(Net& net) {
  return std::make_unique<SGD>(net.Parameters(),
                               SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}

TEST_F(TrainingOnDevice, OptimizersMadeBeforeAndAfterTheModelMoves) {
  const auto step = [](Net& net, Optimizer& optimizer) {
    Backward(net.Loss());
    optimizer.Step();
    optimizer.ZeroGrad();
  };
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    const Floats on_cpu = Train({}, When::kAfter, make, step);
    EXPECT_NE(on_cpu, Net().Values());
    for (const When when : {When::kBefore, When::kAfter}) {
      ExpectNear(Train(device_, when, make, step), on_cpu, 2e-6);
    }
  }
}

// Without decay AdamW skips parameters that never had a gradient.
std::unique_ptr<Optimizer> MakeAdamWWithoutDecay(Net& net) {
  return std::make_unique<AdamW>(net.Parameters(), AdamWOptions{.lr = 0.05, .weight_decay = 0});
}

TEST_F(TrainingOnDevice, AModelThatMovesWhileItIsTrained) {
  for (const auto& make : {MakeAdamWWithoutDecay, MakeSgd}) {
    for (const Device begins : {Device{}, device_}) {
      Net net, stays;
      const auto optimizer = make(net), other = make(stays);
      for (int step = 0; step < 4; ++step) {
        net.To(begins.is_cpu() == (step % 2 == 0) ? Device{} : device_);
        for (const auto& [n, o] : {std::pair(&net, &*optimizer), std::pair(&stays, &*other)}) {
          Backward(n->Loss());
          o->Step();
          o->ZeroGrad();
        }
        ExpectNear(net.Values(), stays.Values(), 2e-6);
      }
    }
  }
}

// The model moves away and back before or after a backward pass. Its gradients come along.
TEST_F(TrainingOnDevice, AModelThatMovesAwayAndBack) {
  if (device_.is_cpu()) GTEST_SKIP() << "there is one device";
  const DeterministicGemms deterministic;
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    const auto train = [&](bool moves) {
      int count = 0;
      return Train(device_, When::kAfter, make, [&](Net& net, Optimizer& optimizer) {
        const auto away_and_back = [&, at = count++ % 2](int when) {
          if (!moves || at != when) return;
          net.To(Device{});
          net.To(device_);
        };
        away_and_back(0);
        Backward(net.Loss());
        away_and_back(1);
        ClipGradNorm(optimizer, 0.05);
        optimizer.Step();
        optimizer.ZeroGrad();
      });
    };
    EXPECT_EQ(train(true), train(false));
  }
}

TEST_F(TrainingOnDevice, SeveralPassesClippingAndReadingGradients) {
  const auto step = [](Net& net, Optimizer& optimizer) {
    Backward(net.Loss());
    Backward(net.Loss(Sigmoid), Tensor::Full({}, 0.5, DType::kF32, net.first.device()));
    ClipGradValue(optimizer, 0.02);
    const double norm = ClipGradNorm(optimizer, 0.05).Item();
    EXPECT_GT(norm, 0.05);
    double squares = 0;
    for (const Tensor& p : {net.first, net.second}) {
      for (const float g : p.grad().ToVector<float>()) squares += static_cast<double>(g) * g;
    }
    EXPECT_NEAR(std::sqrt(squares), 0.05, 1e-6);
    EXPECT_NEAR(GradNorm(optimizer).Item(), 0.05, 1e-6);
    optimizer.Step();
    optimizer.ZeroGrad();
    EXPECT_FALSE(net.first.grad().defined());
    EXPECT_EQ(net.first.MaterializeGrad().ToVector<float>(), Floats(45));
    EXPECT_EQ(GradNorm(optimizer).Item(), 0);
  };
  ExpectNear(Train(device_, When::kAfter, MakeSgd, step), Train({}, When::kAfter, MakeSgd, step),
             2e-6);
}

TEST_F(TrainingOnDevice, OneGradientMaterializedAfterClipping) {
  const auto step = [](Net& net, Optimizer& optimizer) {
    Backward(net.Loss());
    ClipGradNorm(optimizer, 0.01);
    net.second.MaterializeGrad();
    optimizer.Step();
    optimizer.ZeroGrad();
  };
  ExpectNear(Train(device_, When::kAfter, MakeSgd, step), Train({}, When::kAfter, MakeSgd, step),
             2e-6);
}

TEST_F(TrainingOnDevice, FrozenAndThawedParameters) {
  const auto step = [count = 0](Net& net, Optimizer& optimizer) mutable {
    net.first.SetRequiresGrad(count++ % 4 >= 2);
    const Floats before = net.first.ToVector<float>();
    Backward(net.Loss());
    optimizer.Step();
    optimizer.ZeroGrad();
    EXPECT_EQ(net.first.ToVector<float>() == before, !net.first.requires_grad());
  };
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    ExpectNear(Train(device_, When::kAfter, make, step), Train({}, When::kAfter, make, step), 2e-6);
  }
}

TEST_F(TrainingOnDevice, CopiesForProductsStayRight) {
  Net net;
  net.To(device_);
  net.first.SetRequiresGrad(false);
  const auto optimizer = MakeAdamW(net);
  const auto copy = [](const Tensor& p) {
    return LowPrecisionCopy(p, DType::kBF16).To(DType::kF32).ToVector<float>();
  };
  const Floats first = copy(net.first), second = copy(net.second);
  Backward(net.Loss());
  optimizer->Step();
  for (const Tensor& p : {net.first, net.second}) {  // neither copy is made anew
    EXPECT_EQ(p.impl()->low_precision_version, p.impl()->storage->version());
    EXPECT_EQ(copy(p), p.To(DType::kBF16).To(DType::kF32).ToVector<float>());
  }
  EXPECT_EQ(copy(net.first), first);
  EXPECT_NE(copy(net.second), second);
}

TEST_F(TrainingOnDevice, NothingThatIsTrained) {
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    for (const bool scaled : {false, true}) {
      const auto train = [&](Device device) {
        const auto scaler = std::make_shared<GradScaler>();
        int count = 0;
        return Train(device, When::kAfter, make, [&](Net& net, Optimizer& optimizer) {
          if (scaled && count == 0) optimizer.UseGradScaler(scaler);
          const bool frozen = count++ != 2;
          for (Tensor p : {net.first, net.second}) p.SetRequiresGrad(!frozen);
          const Floats before = net.Values();
          if (!frozen) {
            scaled ? scaler->Backward(net.Loss()) : Backward(net.Loss());
          } else if (scaled) {
            scaler->BeginPass();
          }
          optimizer.Step();
          optimizer.ZeroGrad();
          EXPECT_EQ(net.Values() == before, frozen);
          EXPECT_EQ(optimizer.step_count(), count);
        });
      };
      ExpectNear(train(device_), train({}), 2e-6);
    }
  }
}

// As long as no pass is scaled, gradients are taken as they are.
TEST_F(TrainingOnDevice, StepsBeforeAnyScaledPass) {
  const auto train = [](Device device) {
    int count = 0;
    return Train(device, When::kAfter, MakeSgd, [&](Net& net, Optimizer& optimizer) {
      if (count == 0) optimizer.UseGradScaler(std::make_shared<GradScaler>());
      Backward(net.Loss());
      optimizer.Step();
      optimizer.ZeroGrad();
      EXPECT_FALSE(optimizer.step_was_skipped());
      EXPECT_EQ(optimizer.step_count(), ++count);
    });
  };
  ExpectNear(train(device_), train({}), 2e-6);
}

// x * sigmoid(x), made of elementwise ops.
struct Swish : Function {
  Tensor Forward(const std::vector<Tensor>& x) override {
    Save({x[0]});
    return Mul(x[0], Sigmoid(x[0]));
  }
  std::vector<Tensor> Backward(const Tensor& dy) override {
    const Tensor s = Sigmoid(saved(0));
    const Tensor slope = Add(s, Mul(Mul(saved(0), s), AddScalar(Scale(s, -1), 1)));
    return {Mul(dy, slope)};
  }
};

TEST_F(TrainingOnDevice, OwnOpsAndCheckpoints) {
  const std::function<Tensor(const Tensor&)> swish = [](const Tensor& x) {
    return Apply<Swish>({x});
  };
  const auto step_with = [](std::function<Tensor(const Tensor&)> act) {
    return [act](Net& net, Optimizer& optimizer) {
      Backward(net.Loss(act));
      ClipGradNorm(optimizer, 1.0);
      optimizer.Step();
      optimizer.ZeroGrad();
    };
  };
  const auto plain = step_with(swish);
  const auto again = step_with([swish](const Tensor& x) { return Checkpoint(swish, x); });
  const Floats on_device = Train(device_, When::kAfter, MakeAdamW, plain);
  ExpectNear(on_device, Train({}, When::kAfter, MakeAdamW, plain), 5e-6);
  EXPECT_EQ(Train(device_, When::kAfter, MakeAdamW, again), on_device);
}

// The gradients are infinite or NaN, or finite with a norm that float32 can't hold.
TEST_F(TrainingOnDevice, ANormThatIsNotFiniteLeavesParametersAlone) {
  if (device_.is_cpu()) GTEST_SKIP() << "on the CPU they are spoiled, as with PyTorch";
  for (const float bad :
       {std::numeric_limits<float>::infinity(), 3e38f, std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto& make : {MakeAdamW, MakeSgd}) {
      const Floats after = Train(device_, When::kAfter, make, [&](Net& net, Optimizer& optimizer) {
        Backward(net.Loss());
        net.first.MaterializeGrad().Fill(bad);
        const double norm = ClipGradNorm(optimizer, 1.0).Item();
        EXPECT_FALSE(std::isfinite(norm)) << norm;
        optimizer.Step();
        optimizer.ZeroGrad();
      });
      EXPECT_EQ(after, Net().Values());
    }
  }
}

// The host reads the bad step's norm only after later steps were queued.
TEST_F(TrainingOnDevice, AGuardHoldsBackWhatComesAfterABadStep) {
  if (device_.is_cpu()) GTEST_SKIP() << "on the CPU each step is looked at";
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    for (const double max_norm : {0.0, 0.02}) {
      const auto train = [&](int bad_step, bool bad_loss) {
        StepGuard guard;
        Floats after_two;
        int count = 0;
        const Floats after =
            Train(device_, When::kAfter, make, [&](Net& net, Optimizer& optimizer) {
              if (count == 2) after_two = net.Values();
              Backward(net.Loss());
              const bool bad = count++ == bad_step;
              if (bad && !bad_loss) net.first.MaterializeGrad().Fill(inf);
              const Tensor losses = Tensor::FromVector<float>({1, bad && bad_loss ? inf : 2});
              guard.Clip(optimizer, max_norm, losses.To(device_));
              optimizer.Step();
              optimizer.ZeroGrad();
            });
        return std::pair(after_two, after);
      };
      const auto [two_steps, all_steps] = train(-1, false);
      EXPECT_NE(two_steps, all_steps);
      EXPECT_EQ(train(2, false), std::pair(two_steps, two_steps));
      EXPECT_EQ(train(2, true), std::pair(two_steps, two_steps));
      ExpectNear(all_steps,
                 Train({}, When::kAfter, make,
                       [&](Net& net, Optimizer& optimizer) {
                         Backward(net.Loss());
                         if (max_norm > 0) ClipGradNorm(optimizer, max_norm);
                         optimizer.Step();
                         optimizer.ZeroGrad();
                       }),
                 5e-6);
    }
  }
}

TEST_F(TrainingOnDevice, LossScaling) {
  const auto step_with = [](double init_scale, double factor = 1) {
    auto scaler = std::make_shared<GradScaler>(GradScalerOptions{.init_scale = init_scale});
    return [scaler, factor](Net& net, Optimizer& optimizer) {
      optimizer.UseGradScaler(scaler);
      scaler->Backward(net.Loss(), factor);
      scaler->Backward(net.Loss(Sigmoid), 0.5);
      ClipGradNorm(optimizer, 0.05);
      optimizer.Step();
      optimizer.ZeroGrad();
    };
  };
  for (const auto& make : {MakeAdamW, MakeSgd}) {
    const Floats on_cpu = Train({}, When::kAfter, make, step_with(1));
    ExpectNear(Train(device_, When::kAfter, make, step_with(65536)), on_cpu, 2e-6);
    ExpectNear(Train(device_, When::kAfter, make, step_with(3e38)), on_cpu, 2e-6);
    // All four steps overflow.
    EXPECT_EQ(Train(device_, When::kAfter, make, step_with(3e38, 1e4)), Net().Values());
  }
}

}  // namespace
}  // namespace lathe
