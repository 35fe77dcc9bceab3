// Training loops with an Accelerator on a device, compared with the same loops on the CPU. They
// cover all precisions, and loss scaling over windows of several batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/losses.h"
#include "lathe/data/loading/data_loader.h"
#include "lathe/data/loading/tensor_dataset.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/nn/layers.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/check_op.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

class AcceleratorOnDevice : public testing::Test {
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

// Runs the loop of examples/training_loop.cc. Returns the losses of all steps, then that of the
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

TEST_F(AcceleratorOnDevice, ItsLoop) {
  const Floats on_cpu = TrainingLoop({}, "no");
  ExpectNear(TrainingLoop(device_, "no"), on_cpu, 1e-5);
  ExpectNear(TrainingLoop(device_, "bf16"), on_cpu, 0.05);
  if (device_.is_cpu()) {
    EXPECT_THROW(TrainingLoop(device_, "fp16"), Error);
  } else {
    ExpectNear(TrainingLoop(device_, "fp16"), on_cpu, 0.01);
  }
}

struct TwoLayers : Module {
  TwoLayers()
      : first(Register<nn::Linear>("first", 4, 8, Init::Normal(1), ActivationKind::kGelu)),
        second(Register<nn::Linear>("second", 8, 3, Init::Normal(1))) {}
  std::shared_ptr<nn::Linear> first, second;
};

// Runs the loop of any model and any data set. The loader brings the tensors to the device.
Floats GeneralLoop(Device device) {
  Accelerator accelerator({.device = device.is_cpu() ? "cpu" : "cuda"});
  TwoLayers model;
  model.Initialize(7);
  SGD optimizer(model.Parameters(), {.lr = 0.1});
  Tensor rows = Tensor::Empty({22, 4});
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < rows.numel(); ++i)
    rows.data<float>()[i] = std::sin(static_cast<float>(i));
  for (int64_t i = 0; i < 22; ++i) classes.push_back(i * i % 3);
  DataLoader train(TensorDataset(rows, Tensor::FromVector(classes)),
                   {.batch_size = 4, .shuffle = true});
  accelerator.Prepare(model, optimizer, train);
  Floats losses;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [inputs, targets] : train) {
      EXPECT_EQ(inputs.device(), device);
      EXPECT_EQ(targets.device(), device);
      const Tensor outputs = model.second->Forward(model.first->Forward(inputs));
      accelerator.Backward(CrossEntropy(outputs, targets));
      EXPECT_EQ(accelerator.GatherForMetrics(targets).device(), device);
      optimizer.Step();
      optimizer.ZeroGrad();
      losses.push_back(static_cast<float>(accelerator.last_loss()));
    }
  }
  return losses;
}

TEST_F(AcceleratorOnDevice, ALoopOverTensors) {
  ExpectNear(GeneralLoop(device_), GeneralLoop({}), 1e-5);
}

// Without an Accelerator, too, a loader brings its batches to a device, and so does ToDevice.
TEST_F(AcceleratorOnDevice, BatchesOfOnesOwn) {
  using Named = std::map<std::string, Tensor>;
  struct Numbers : Dataset<float> {
    int64_t Size() const override { return 4; }
    float Get(int64_t i) const override { return static_cast<float>(i); }
  };
  const auto collate = [](const std::vector<float>& all) {
    return std::pair(Named{{"x", Tensor::FromVector(all)}, {"none", Tensor()}},
                     std::vector<Tensor>(2, Tensor::FromVector(all)));
  };
  DataLoader loader(Numbers(), {.batch_size = 4}, collate);
  const auto on_host = *loader.begin();
  EXPECT_TRUE(on_host.first.at("x").device().is_cpu());
  loader.SetDevice(device_);
  for (const auto& there : {*loader.begin(), ToDevice(on_host, device_)}) {
    EXPECT_EQ(there.first.at("x").device(), device_);
    EXPECT_FALSE(there.first.at("none").defined());
    EXPECT_EQ(there.second.at(1).device(), device_);
    EXPECT_EQ(there.second.at(1).ToVector<float>(), (Floats{0, 1, 2, 3}));
  }
}

// Lathe's models take packed text on the host and on their device, with the same results.
TEST_F(AcceleratorOnDevice, PackedTextOnTheDevice) {
  DataLoader loader(TinyData(6), {.batch_size = 6});
  const Batch batch = *loader.begin();
  const Batch there = batch.To(device_);
  EXPECT_EQ(there.is_on_host(), device_.is_cpu());
  EXPECT_EQ(there.input_ids.device(), device_);
  EXPECT_EQ(there.labels.device(), device_);
  EXPECT_FALSE(there.sample_weights.defined());
  EXPECT_EQ(there.To(Device{}).cu_seqlens.ToVector<int32_t>(),
            batch.cu_seqlens.ToVector<int32_t>());
  std::vector<Floats> results;
  for (const Batch& given : {batch, there}) {
    Accelerator accelerator({.device = device_.is_cpu() ? "cpu" : "cuda"});
    const auto model = TinyBert({});
    AdamW optimizer(model->Parameters(), {.lr = 1e-2});
    accelerator.Prepare(*model, optimizer);
    model->Train();
    const SequenceClassifierOutput outputs = model->Forward(given);
    Floats numbers = outputs.logits.ToVector<float>();
    numbers.push_back(static_cast<float>(outputs.loss.Item()));
    accelerator.Backward(outputs.loss);
    optimizer.Step();
    optimizer.ZeroGrad();
    const Tensor loss = accelerator.Backward(
        *model, given, [&](const Batch& each) { return model->Forward(each).loss; });
    numbers.push_back(static_cast<float>(loss.Item()));
    const Floats gradients = model->Parameters().front().tensor.grad().ToVector<float>();
    numbers.insert(numbers.end(), gradients.begin(), gradients.end());
    results.push_back(numbers);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(AcceleratorOnDevice, SkipsWindowsThatOverflow) {
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
TEST_F(AcceleratorOnDevice, DividesGradientsByTheScale) {
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

}  // namespace
}  // namespace lathe
