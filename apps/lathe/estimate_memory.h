// `lathe estimate-memory`: what training and inference will take, from a model's configuration.
//
//   auto model = AutoModelForSequenceClassification::WithoutValues(config);
//   EstimateMemory(*model, {.batch_size = 32, .max_seq_length = 128}).Training();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/core/dtype.h"
#include "lathe/models/pretrained.h"

namespace lathe {

struct MemoryOptions {
  int64_t batch_size = 8;        // texts that a process has at once
  int64_t max_seq_length = 128;  // tokens of each text
  DType compute_dtype = DType::kF32;
  bool gradient_checkpointing = false;
  bool on_gpu = false;
  int64_t num_processes = 1;
  // AcceleratorOptions's. Processes on several machines share out all moments but the word table's.
  bool shard_optimizer = true;
};

// Bytes of tensors in one process.
struct MemoryEstimate {
  int64_t weights = 0, gradients = 0, moments = 0;
  int64_t low_precision = 0;  // copies of weights in the compute dtype
  int64_t kept = 0;           // activations that wait for the backward pass
  int64_t temporary = 0;      // the most that it needs beside them
  int64_t exchange = 0;       // for gradients of several processes
  int64_t inference = 0;      // activations without a backward pass
  int64_t workspace = 0;      // of a GPU's products

  int64_t Training() const {
    return weights + gradients + moments + low_precision + kept + temporary + exchange + workspace;
  }
  int64_t Inference() const { return weights + low_precision + inference + workspace; }
};

// For AdamW and batches of which all texts have max_seq_length tokens; the model needs no values.
// Throws for an architecture whose activations it doesn't know.
MemoryEstimate EstimateMemory(const SequenceClassifier& model, const MemoryOptions& options);

// The command, without its name; returns the exit code.
int RunEstimateMemory(const std::vector<std::string>& args);

}  // namespace lathe
