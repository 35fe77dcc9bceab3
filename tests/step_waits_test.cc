// Training steps on the emulated device. The host waits for nothing, and graphs that can't be made
// change nothing.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/schedules.h"
#include "lathe/tests/emulator/emulator.h"
#include "lathe/tests/tiny_bert.h"

namespace lathe {
namespace {

TEST(StepOnADevice, WaitsForNothing) {
  for (const std::string precision : {"no", "bf16", "fp16"}) {
    for (const int launches : {0, 2, 3}) {  // of graphs in each step
      SCOPED_TRACE(precision + ", graph launches: " + std::to_string(launches));
      const bool graphs = launches > 0;
      Accelerator accelerator(
          {.mixed_precision = precision,
           .grad_scaler = {.init_scale = 1e10, .growth_interval = 2},  // some steps are skipped
           .device = "cuda",
           .step_graphs = graphs});
      const auto model = TinyBert();
      AdamW optimizer(DecayGroups(model->Parameters(), 0.1), {.lr = 1e-2});
      DataLoader loader(TinyData(160, 9), {.batch_size = 8, .shuffle = true});
      const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 100});
      accelerator.Prepare(loader, *model, optimizer, *scheduler);
      model->Train();
      StepGuard guard;
      Tensor norm;
      int64_t step = 0, waits = 0, graph_launches = 0, other_launches = 0;
      for (const Batch& batch : loader) {
        if (step++ == 4) {
          waits = emulator::NumWaits();
          graph_launches = emulator::NumGraphLaunches();
          other_launches = emulator::NumLaunches() - emulator::NumLaunchesByGraphs();
        }
        accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
        if (launches == 2) {
          norm = guard.ClipAndStep(optimizer, 1.0, accelerator.LastLosses());
        } else {
          norm = guard.Clip(optimizer, 1.0, accelerator.LastLosses());
          optimizer.Step();
        }
        scheduler->Step();
        optimizer.ZeroGrad();
      }
      EXPECT_EQ(emulator::NumWaits(), waits);
      EXPECT_EQ(emulator::NumGraphLaunches() - graph_launches, 16 * launches);
      if (graphs) {
        EXPECT_EQ(emulator::NumLaunches() - emulator::NumLaunchesByGraphs(), other_launches);
      }
      EXPECT_FALSE(norm.Item() <= 0);  // NaN if the step was skipped
      EXPECT_GT(emulator::NumWaits(), waits);
      EXPECT_EQ(accelerator.TakeLosses().size(), 20u);
      const GradScaler* const scaler = accelerator.scaler();
      EXPECT_EQ(scaler != nullptr, precision == "fp16");
      const int64_t skipped = scaler == nullptr ? 0 : scaler->num_skipped_steps();
      EXPECT_EQ(skipped > 2, precision == "fp16");
      EXPECT_LT(skipped, 20);
      EXPECT_EQ(optimizer.step_count(), 20 - skipped);
      EXPECT_DOUBLE_EQ(optimizer.lr(), 1e-2 * static_cast<double>(80 + skipped) / 100);
    }
  }
}

// The device keeps a table of rates for steps whose outcome the host has not read. It has 64
// entries.
TEST(StepOnADevice, ALongLoopInFloat16WaitsOnceIn64Steps) {
  Tensor x = Tensor::Zeros({5}, DType::kF32, {DeviceType::kCUDA, 0}).SetRequiresGrad(true);
  SGD optimizer(std::vector<Parameter>{{.name = "x", .tensor = x}}, {.lr = 1});
  const auto scaler = std::make_shared<GradScaler>();
  optimizer.UseGradScaler(scaler);
  const auto scheduler = GetScheduler("linear", optimizer, {.num_training_steps = 1000});
  const int64_t waits = emulator::NumWaits();
  double moved = 0;
  for (int i = 0; i < 300; ++i) {
    scaler->Backward(Sum(x));
    optimizer.Step();
    scheduler->Step();
    optimizer.ZeroGrad();
    moved -= 1 - i / 1000.0;
  }
  EXPECT_EQ(emulator::NumWaits() - waits, 300 / 64);
  EXPECT_NEAR(x.ToVector<float>()[4], moved, 1e-3);
  EXPECT_EQ(optimizer.step_count(), 300);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.7);
}

// A step has used the gradients even if only the device knows that it was skipped.
TEST(StepOnADevice, StatesAreSavedBetweenStepsInFloat16) {
  Accelerator accelerator(
      {.mixed_precision = "fp16", .grad_scaler = {.init_scale = 1e38}, .device = "cuda"});
  const auto model = TinyBert();
  AdamW optimizer(model->Parameters(), {.lr = 1e-2});
  DataLoader loader(TinyData(16, 9), {.batch_size = 8});
  accelerator.Prepare(loader, *model, optimizer);
  const std::string dir = testing::TempDir() + "states_between_steps";
  for (const char* suffix : {"", "1", "2"}) std::filesystem::remove_all(dir + suffix);
  int step = 0;
  for (const Batch& batch : loader) {
    accelerator.Backward(*model, batch, [&](const Batch& b) { return model->Forward(b).loss; });
    EXPECT_THROW(accelerator.SaveState(dir), Error);
    optimizer.Step();
    accelerator.SaveState(dir + std::to_string(++step));
    optimizer.ZeroGrad();
  }
  EXPECT_EQ(step, 2);
  EXPECT_LT(optimizer.step_count(), 2);
  EXPECT_FALSE(std::filesystem::exists(dir));
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> values;
  GraphStatistics statistics;
  bool operator==(const Outcome& other) const {
    return losses == other.losses && values == other.values;
  }
};

// `before` is called with the number of each step, `after_forward` within passes.
Outcome Train(
    bool graphs, const std::function<void(int)>& before = [](int) {},
    const std::function<void()>& after_forward = [] {}) {
  Accelerator accelerator({.mixed_precision = "bf16", .device = "cuda", .step_graphs = graphs});
  const auto model = TinyBert({{"hidden_size", 64}});
  AdamW optimizer(model->Parameters(), {.lr = 1e-2});
  DataLoader loader(TinyData(160, 9), {.batch_size = 16, .shuffle = true});
  accelerator.Prepare(loader, *model, optimizer);
  optimizer.ZeroGrad();
  model->Train();
  int step = 0;
  for (const Batch& batch : loader) {
    before(step++);
    accelerator.Backward(*model, batch, [&](const Batch& b) {
      Tensor loss = model->Forward(b).loss;
      after_forward();
      return loss;
    });
    optimizer.Step();
    optimizer.ZeroGrad();
  }
  return {accelerator.TakeLosses(), optimizer.arena().values().ToVector<float>(),
          accelerator.graph_statistics()};
}

// Batches are copied ahead of the steps. If copies are late, each step still reads its own batch.
TEST(StepOnADevice, LateCopiesChangeNothing) {
  const Outcome expected = Train(false);
  for (const bool graphs : {false, true}) {
    EXPECT_TRUE(Train(graphs,
                      [](int step) {
                        emulator::Enqueue(cuda::CopyStream(), [step] {
                          std::this_thread::sleep_for(std::chrono::milliseconds(step % 3 * 10));
                        });
                      }) == expected)
        << graphs;
  }
}

TEST(StepOnADevice, AGraphThatCannotBeMadeIsDoneWithout) {
  const Outcome expected = Train(false);
  EXPECT_TRUE(Train(true) == expected);
  const Outcome without = Train(true, [](int) { emulator::FailNextInstantiate(); });
  EXPECT_TRUE(without == expected);
  EXPECT_EQ(without.statistics.replayed, 0);
  EXPECT_EQ(without.statistics.eager, 10);
  Tensor::Zeros({1}, DType::kF32, {DeviceType::kCUDA, 0}).To(Device{});  // no error is left
}

// Memory may run out in the first pass of a shape, or while it is recorded. Then the memory of
// graphs is given up and training goes on.
TEST(StepOnADevice, GraphsGiveWayWhereMemoryIsShort) {
  const Outcome expected = Train(false);
  for (const int short_call : {1, 2}) {
    int calls = 0;
    const Outcome outcome = Train(
        true, [](int) {},
        [&] {
          if (++calls == short_call) {
            throw Error(absl::StatusCode::kResourceExhausted, "no room", "");
          }
        });
    EXPECT_TRUE(outcome == expected) << short_call;
    EXPECT_EQ(outcome.statistics.replayed, 0) << short_call;
    EXPECT_EQ(calls, 11) << short_call;  // one of the ten steps runs twice
  }
}

}  // namespace
}  // namespace lathe
