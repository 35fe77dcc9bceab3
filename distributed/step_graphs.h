// Training passes on a device as CUDA graphs. Batches of similar shapes share a graph: the forward
// and the backward pass are recorded once, and then repeated with one call of the host.
//
//   StepGraphs graphs(device);
//   Tensor loss =
//       graphs.Run(model, batch, 1, [&](const Batch& b) { return model.Forward(b).loss; });
//
// Shapes are rounded up to a few: the number of rows, the number of sequences, and the length of
// the longest sequence. Rows and sequences beyond the batch's (surplus) don't count in any result.
// Surplus sequences are used only where the loss leaves them out, as a model's own, unchanged loss
// does.
// The first batch of a shape runs eagerly, and the second one is recorded. Falls back to eager
// execution for what can't be recorded; LogDebug says why.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/tensor.h"
#include "lathe/data/datasets/packed_inputs.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"

namespace lathe {

struct StepGraphStatistics {
  int64_t recorded = 0;  // shapes that were recorded
  int64_t replayed = 0;  // passes by a graph, including the one that recorded it
  int64_t eager = 0;     // passes that ran without a graph
};

// The number of rows that stands for up to `tokens` tokens: at most 1/16 more, or the next multiple
// of 128.
int64_t GraphRows(int64_t tokens);
// The length that stands for sequences of up to `max_seqlen` tokens: a power of two, at least 64.
int64_t GraphLength(int64_t max_seqlen);

// The number of sequences that stands for up to `sequences` ones: at most 1/16 more, or the next
// multiple of 8.
int64_t GraphSequences(int64_t sequences);

class StepGraphs {
 public:
  // `device` is not the host. With a scaler, the gradients of losses are multiplied by its scale;
  // the caller calls its BeginPass before each pass. `most`: the number of shapes that are kept;
  // the least recently used one gives way to a new one.
  explicit StepGraphs(Device device, std::shared_ptr<GradScaler> scaler = nullptr,
                      size_t most = 128);

  // loss = forward(batch), followed by its backward pass from `grad_seed` on. Returns the loss, []
  // float32 on the device.
  // `forward` is not called for each batch. Its work must follow from nothing but the batch's
  // shapes, the numbers in Batch::on_device, the model with its modes, and the settings of
  // products. It must use no parameters but the model's. Tensors that it keeps are valid until the
  // next Run. The numbers are those of Backward(forward(batch)) with the same number of rows and
  // sequences.
  Tensor Run(const Module& model, const Batch& batch, float grad_seed,
             const std::function<Tensor(const Batch&)>& forward);

  const StepGraphStatistics& statistics() const { return statistics_; }

 private:
  struct Key {
    const Module* model;
    std::string modes;     // of all its modules
    GemmOptions products;  // recorded products keep their algorithms
    int64_t rows, sequences, max_seqlen;
    int64_t label_columns;  // -1: no labels, 0: one for each sequence
    DType label_dtype;
    // A hash of which parameters there are, where they lie, and the states of their gradients.
    uint64_t leaves;
    auto operator<=>(const Key&) const = default;
  };
  // The largest numbers that host code has checked: recorded work doesn't check its own.
  struct Bounds {
    int32_t input_id = -1, token_type = -1, position = -1;
    int64_t label = -1;
    bool shifted = false;  // true if sequences don't start at position 0
    static Bounds Of(const Batch& batch);
    bool Cover(const Bounds& other) const;
    void Widen(const Bounds& other);
  };
  // Facts about a model, learned in its passes.
  struct Seen {
    std::weak_ptr<TensorImpl> owner;  // its first parameter
    Bounds bounds;
    bool leaves_surplus_out = false;  // true if its loss does
    bool refuses_surplus = false;     // `forward` threw an error where there was a surplus
    bool TakesSurplus() const { return leaves_surplus_out && !refuses_surplus; }
  };
  // The state of a gradient besides its buffer (core/leaf_gradient.h).
  struct LeafState {
    bool stale, has_rows;
  };
  struct Entry {
    std::vector<std::weak_ptr<TensorImpl>> leaves;
    std::vector<const void*> narrow;  // the parameters' copies for products, which the work reads
    std::shared_ptr<PackedInputs> inputs;
    Tensor loss;
    std::unique_ptr<RecordedWork> work;  // null: not recorded yet
    std::vector<LeafState> after;        // the gradients' states after it
    bool warm = false;                   // true if it has run eagerly
    std::string why_not;                 // why it can't be recorded; "" if it can
    int64_t last_use = 0;
  };

  static std::vector<LeafState> StatesOf(const std::vector<Parameter>& parameters);
  static void Restore(const std::vector<Parameter>& parameters,
                      const std::vector<LeafState>& states);
  static std::string WhyNot(const std::vector<Parameter>& parameters, const Batch& batch);
  // `sequences`: at least the batch's.
  Key KeyOf(const Module& model, const std::vector<Parameter>& parameters, const Batch& batch,
            int64_t sequences) const;
  Entry& EntryOf(const Key& key, const std::vector<Parameter>& parameters);
  Seen& SeenBy(const std::vector<Parameter>& parameters);
  Tensor Copy(const Tensor& loss);
  // From now on nothing is recorded, and no memory is kept for it.
  void GiveUp(const std::string& why);
  Tensor RunEagerly(const std::string& why, const Batch& batch, float grad_seed,
                    const std::function<Tensor(const Batch&)>& forward);

  Device device_;
  size_t most_;
  DeviceBackend& backend_;
  std::shared_ptr<GradScaler> scaler_;    // null: none
  std::shared_ptr<DeviceMemory> memory_;  // used inside of recorded work
  std::map<Key, Entry> entries_;
  std::map<const TensorImpl*, Seen> seen_;
  std::string given_up_;  // the reason; empty if nothing was given up
  std::set<std::string> told_;
  StepGraphStatistics statistics_;
  int64_t clock_ = 0;
};

}  // namespace lathe
