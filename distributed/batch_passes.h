// Runs training passes over packed batches, and repeats them as CUDA graphs (StepGraphs). Batches
// of similar shapes share a graph.
//
//   BatchPasses passes(device);
//   Tensor loss =
//       passes.Run(model, batch, 1, [&](const Batch& b) { return model.Forward(b).loss; });
//
// The number of rows, the number of sequences and the length of the longest sequence are rounded
// up, so that few shapes occur. Rows and sequences beyond the batch's (surplus) don't count in any
// result. There are surplus sequences only if the loss leaves them out. A model's own loss does.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/datasets/batch.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"
#include "lathe/optim/graphs/step_graphs.h"

namespace lathe {

// Returns the number of rows that stands for up to `tokens` tokens: at most 1/16 more, or the next
// multiple of 128.
int64_t GraphRows(int64_t tokens);
// Returns the length that stands for sequences of up to `max_seqlen` tokens: a power of two, at
// least 64.
int64_t GraphLength(int64_t max_seqlen);
// Returns the number of sequences that stands for up to `sequences` ones: at most 1/16 more, or the
// next multiple of 8.
int64_t GraphSequences(int64_t sequences);

// Runs the backward pass of `loss` from the gradient `seed` times the scaler's scale. `scaler`:
// null for none; the caller calls its BeginPass before.
void BackwardFrom(const Tensor& loss, double seed, GradScaler* scaler);

class BatchPasses {
 public:
  using Forward = std::function<Tensor(const Batch&)>;

  // `device` is not the host. With a scaler, the gradients of losses are multiplied by its scale;
  // the caller calls its BeginPass before each pass. `most`: as for StepGraphs.
  explicit BatchPasses(Device device, std::shared_ptr<GradScaler> scaler = nullptr,
                       size_t most = 128);

  // loss = forward(batch), followed by its backward pass from `grad_seed` on. Returns the loss, []
  // float32 on the device.
  // `forward` is not called for each batch. Its work must follow from nothing but the batch's
  // shapes, the numbers in Batch::on_device, the model with its modes, and the settings of
  // products. It must use no parameters but the model's. Tensors that it keeps are valid until the
  // next Run. The numbers are those of Backward(forward(batch)) with the same number of rows and
  // sequences.
  Tensor Run(const Module& model, const Batch& batch, float grad_seed, const Forward& forward);

  const GraphStatistics& statistics() const { return graphs_.statistics(); }

 private:
  // The largest numbers of a batch that host code checks: the input id, token type, position and
  // label. Then two flags: sequences don't start at position 0, positions are left out between
  // tokens. -1: there is none.
  using LargestNumbers = std::array<int64_t, 6>;
  static LargestNumbers LargestOf(const Batch& batch);
  // Facts about a model, learned in its passes.
  struct ModelFacts {
    std::weak_ptr<TensorImpl> owner;  // its first parameter
    LargestNumbers checked = {-1, -1, -1, -1, -1, -1};
    bool leaves_surplus_out = false;  // true if its loss does
    bool refuses_surplus = false;     // `forward` threw an error where there was a surplus
    bool TakesSurplus() const { return leaves_surplus_out && !refuses_surplus; }
  };
  struct Pass;

  Tensor RunWith(int64_t sequences, const Module& model, const std::vector<Parameter>& parameters,
                 Pass& pass);

  Device device_;
  std::shared_ptr<GradScaler> scaler_;  // null: none
  StepGraphs graphs_;
  std::map<const TensorImpl*, ModelFacts> facts_;
};

}  // namespace lathe
