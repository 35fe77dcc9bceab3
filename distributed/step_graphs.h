// Training passes on a device as CUDA graphs: the forward and the backward pass over a batch are
// recorded once for batches of like shapes and then repeated with one call of the host's.
//
//   StepGraphs graphs(device);
//   Tensor loss = graphs.Run(model, batch, 1, [&](const Batch& b) { return model.Forward(b).loss;
//   });
//
// Shapes are rounded up to few: the numbers of rows and of sequences, and the length of the longest
// one. Rows and sequences beyond the batch's count nowhere; there are such sequences only where the
// loss is one that leaves them out: a model's own, unchanged. The first batch of a shape runs as it
// is, the second one is recorded. What can't be recorded runs as it is, and LogDebug says why.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/gemm_options.h"
#include "lathe/core/tensor.h"
#include "lathe/data/datasets/packed_inputs.h"
#include "lathe/nn/module.h"
#include "lathe/optim/grad_scaler.h"

namespace lathe {

struct StepGraphStatistics {
  int64_t recorded = 0;  // shapes
  int64_t replayed = 0;  // passes: those of a recording count, too
  int64_t eager = 0;     // passes that ran as they are
};

// Rows that batches of `tokens` tokens share a graph with: at most 1/16 more, or the next multiple
// of 128.
int64_t GraphRows(int64_t tokens);
// The length that stands for sequences of up to `max_seqlen` tokens: a power of two, at least 64.
int64_t GraphLength(int64_t max_seqlen);

// Sequences that batches of `sequences` share a graph with: at most 1/16 more, or the next multiple
// of 8.
int64_t GraphSequences(int64_t sequences);

class StepGraphs {
 public:
  // Of a device other than the host. With a scaler, the gradients of losses are multiplied by its
  // scale; each pass begins with its BeginPass, which the caller makes. most: shapes that are kept;
  // the one that was used the longest ago gives way to a new one.
  explicit StepGraphs(Device device, std::shared_ptr<GradScaler> scaler = nullptr,
                      size_t most = 128);

  // loss = forward(batch), and its backward pass from `grad_seed` on. Returns the loss, [] float32
  // on the device. What `forward` does must follow from the shapes of the batch, the numbers in
  // Batch::inputs, the model with its modes, and the settings of products alone, and it uses no
  // other parameters than the model's: it is not called for each batch, and tensors that it keeps
  // hold until the next Run. Numbers are those of Backward(forward(batch)) with as many rows and
  // sequences.
  Tensor Run(const Module& model, const Batch& batch, float grad_seed,
             const std::function<Tensor(const Batch&)>& forward);

  const StepGraphStatistics& statistics() const { return statistics_; }

 private:
  struct Key {
    const Module* model;
    std::string modes;     // of all its modules
    GemmOptions products;  // recorded ones keep their algorithms
    int64_t rows, sequences, max_seqlen;
    int64_t label_columns;  // -1: no labels, 0: one for each sequence
    DType label_dtype;
    uint64_t leaves;  // which parameters, where they lie and what is known of their gradients
    auto operator<=>(const Key&) const = default;
  };
  // Numbers that host code has accepted: recorded work doesn't look at them.
  struct Bounds {
    int32_t input_id = -1, token_type = -1, position = -1;
    int64_t label = -1;
    bool shifted = false;  // sequences that don't start at position 0
    static Bounds Of(const Batch& batch);
    bool Cover(const Bounds& other) const;
    void Widen(const Bounds& other);
  };
  // What is known of a model.
  struct Seen {
    std::weak_ptr<TensorImpl> owner;  // its first parameter
    Bounds bounds;
    bool leaves_surplus_out = false;  // its loss
    bool refuses_surplus = false;     // `forward` threw an error where there were some
    bool TakesSurplus() const { return leaves_surplus_out && !refuses_surplus; }
  };
  // What is known of a gradient besides its buffer (core/tensor.h).
  struct LeafState {
    bool stale, has_rows;
  };
  struct Entry {
    std::vector<std::weak_ptr<TensorImpl>> leaves;
    std::vector<const void*> narrow;  // their copies for products, which the work reads
    std::shared_ptr<PackedInputs> inputs;
    Tensor loss;
    std::unique_ptr<RecordedWork> work;  // null: not recorded yet
    std::vector<LeafState> after;        // it
    bool warm = false;                   // has run as it is
    std::string why_not;                 // can't be recorded
    int64_t last_use = 0;
  };

  static std::vector<LeafState> StatesOf(const std::vector<Parameter>& parameters);
  static void Restore(const std::vector<Parameter>& parameters,
                      const std::vector<LeafState>& states);
  static std::string WhyNot(const std::vector<Parameter>& parameters, const Batch& batch);
  // sequences: at least the batch's.
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
  std::shared_ptr<DeviceMemory> memory_;  // that recorded work uses on the way
  std::map<Key, Entry> entries_;
  std::map<const TensorImpl*, Seen> seen_;
  std::string given_up_;  // why; empty: not
  std::set<std::string> told_;
  StepGraphStatistics statistics_;
  int64_t clock_ = 0;
};

}  // namespace lathe
