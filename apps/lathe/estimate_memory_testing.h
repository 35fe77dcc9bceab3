// Compares an estimate of memory with what tensors take in real passes, on the CPU or on a device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lathe/apps/lathe/estimate_memory.h"
#include "lathe/core/autograd.h"
#include "lathe/core/device_backend.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/optimizer.h"

namespace lathe {

inline constexpr int64_t kVocab = 1000;

inline std::shared_ptr<SequenceClassifier> MakeModel(
    const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "bert"},     {"vocab_size", kVocab},
                           {"hidden_size", 256},       {"num_hidden_layers", 4},
                           {"num_attention_heads", 4}, {"intermediate_size", 1024}};
  config.update(changes);
  return AutoModelForSequenceClassification::WithoutValues(
      PretrainedConfig::FromJson(std::move(config)));
}

inline Batch MakeBatch(const MemoryOptions& options) {
  std::vector<std::vector<int32_t>> texts;
  for (int64_t b = 0; b < options.batch_size; ++b) {
    std::vector<int32_t>& text = texts.emplace_back();
    for (int64_t t = 0; t < options.max_seq_length; ++t)
      text.push_back(static_cast<int32_t>((b * 31 + t * 17) % kVocab));
  }
  const std::vector<int64_t> labels(texts.size(), 1);
  return Batch::Pack(texts, {}, Tensor::FromVector(labels));
}

struct Peaks {
  int64_t training, inference;
};

inline Device DeviceOf(const MemoryOptions& options) {
  return options.on_gpu ? ChooseDevice("cuda") : Device{};
}

inline MemoryUse MemoryOf(Device device) {
  return device.is_cpu() ? TensorMemory() : BackendOf(device).Memory(device.index);
}

inline void ResetPeakOf(Device device) {
  device.is_cpu() ? ResetPeakMemory() : BackendOf(device).ResetPeakMemory(device.index);
}

// Returns the bytes at the peak of an evaluation, and of the second training step.
inline Peaks Measure(SequenceClassifier& model, const MemoryOptions& options) {
  const Batch batch = MakeBatch(options);
  const Device device = DeviceOf(options);
  const int64_t before = MemoryOf(device).now;
  model.Initialize(42);
  model.To(device);
  model.SetComputeDType(options.compute_dtype);
  model.SetGradientCheckpointing(options.gradient_checkpointing);
  Peaks peaks;
  model.Eval();
  {
    NoGradGuard no_grad;
    model.Forward(batch);  // makes the 16-bit copies of weights
    ResetPeakOf(device);
    model.Forward(batch);
    peaks.inference = MemoryOf(device).peak - before;
  }
  AdamW optimizer(model.Parameters(), {});
  model.Train();
  for (int step = 0; step < 2; ++step) {
    if (step == 1) ResetPeakOf(device);  // the moments exist from now on
    Backward(model.Forward(batch).loss);
    ClipGradNorm(optimizer, 1);
    optimizer.Step();
    optimizer.ZeroGrad();
  }
  peaks.training = MemoryOf(device).peak - before;
  return peaks;
}

// The largest allowed relative difference between an estimate and a measurement.
inline constexpr double kLimit = 0.03;

inline void Compare(const MemoryOptions& options,
                    const nlohmann::json& config = nlohmann::json::object()) {
  const auto model = MakeModel(config);
  const int64_t before = TensorMemory().now;
  MemoryEstimate estimate = EstimateMemory(*model, options);
  EXPECT_EQ(TensorMemory().now, before);
  const Peaks measured = Measure(*model, options);
  const auto expect_near = [](int64_t estimated, int64_t bytes) {
    EXPECT_NEAR(static_cast<double>(estimated) / static_cast<double>(bytes), 1, kLimit)
        << estimated << " for " << bytes;
  };
  // The emulator's products need no workspace.
  estimate.workspace = 0;
  const int64_t state =
      estimate.weights + estimate.gradients + estimate.moments + estimate.low_precision;
  expect_near(estimate.Training(), measured.training);
  expect_near(estimate.Inference(), measured.inference);
  // Compares activations alone, too. The parameters of such a small model don't outweigh them.
  expect_near(estimate.Training() - state, measured.training - state);
}

}  // namespace lathe
