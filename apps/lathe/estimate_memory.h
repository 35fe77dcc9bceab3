// Estimates the memory that training and inference take, from a model's configuration.
//
//   auto model = AutoModelForSequenceClassification::WithoutValues(config);
//   EstimateMemory(*model, {.batch_size = 32, .max_seq_length = 128}).Training();
#pragma once

#include <cstdint>

#include "lathe/models/pass_memory.h"
#include "lathe/models/pretrained.h"

namespace lathe {

// The bytes of tensors in one process.
struct MemoryEstimate {
  int64_t weights = 0, gradients = 0, moments = 0;
  int64_t low_precision = 0;  // copies of weights in the compute dtype
  int64_t kept = 0;           // activations kept for the backward pass
  int64_t temporary = 0;      // the most that the backward pass holds beside them
  int64_t exchange = 0;       // buffers to exchange gradients between processes
  int64_t inference = 0;      // activations without a backward pass
  int64_t workspace = 0;      // a GPU's workspace for products
  // The copy of weights and moments that is being written to a checkpoint; 0 on a GPU, whose copy
  // lies in the host's memory. Training() leaves it out.
  int64_t checkpoint_copy = 0;

  int64_t Training() const {
    return weights + gradients + moments + low_precision + kept + temporary + exchange + workspace;
  }
  int64_t Inference() const { return weights + low_precision + inference + workspace; }
};

// Estimates for AdamW and batches whose texts all have max_seq_length tokens. The model needs no
// values. Throws for a family that doesn't declare its passes' memory (Architecture::pass_memory).
MemoryEstimate EstimateMemory(const SequenceClassifier& model, const MemoryOptions& options);

}  // namespace lathe
