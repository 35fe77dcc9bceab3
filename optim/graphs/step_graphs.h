// Runs training passes on a device as CUDA graphs. The forward and the backward pass are recorded
// once, and then repeated with one call of the host.
//
//   StepGraphs graphs(device);
//   GraphPass pass = {.model = model, .parameters = parameters, .key = {rows}, ...};
//   pass.numbers = [&] { return indices; };
//   pass.run = [&](const Tensor& there) {
//     Tensor loss = model.Loss(there);
//     Backward(loss);
//     return loss;
//   };
//   Tensor loss = graphs.Run(pass);
//
// The first pass of a key runs eagerly, and the second one is recorded. Falls back to eager
// execution for what can't be recorded; LogDebug says why.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/base/gemm_options.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/tensor.h"
#include "lathe/nn/module.h"
#include "lathe/optim/graphs/graph_recorder.h"

namespace lathe {

// One training pass, and what a graph must know about it.
struct GraphPass {
  const Module& model;
  const std::vector<Parameter>& parameters;  // the model's; the pass uses no others
  // Passes of one key queue the same work, whatever their numbers are. The model with its modes,
  // its parameters and the settings of products count besides; StepGraphs looks at them itself.
  std::vector<int64_t> key;
  // False: the pass runs eagerly, since host code must check numbers such as indices. Recorded work
  // doesn't check its own.
  bool numbers_were_checked;
  // Returns all that differs between passes of one key: [bytes] u8 on the host. Called at most
  // once, and not for passes that can't be recorded.
  std::function<Tensor()> numbers;
  // The forward and the backward pass, which read `numbers` on the device. Returns the loss, []
  // float32. A graph repeats its work without calling it.
  std::function<Tensor(const Tensor& numbers)> run;
  // Does the same for what can't be recorded. It gets its numbers in its own way.
  std::function<Tensor()> run_eagerly;
  // What is recorded, for the log: "128 rows of 8 sequences of up to 64 tokens".
  std::function<std::string()> describe;
};

class StepGraphs {
 public:
  // `device` is not the host. `most`: the number of graphs that are kept; the least recently used
  // one gives way to a new one.
  explicit StepGraphs(Device device, size_t most = 128);

  // Returns the loss of the pass, [] float32 on the device. Tensors that `run` keeps are valid
  // until the next Run.
  Tensor Run(const GraphPass& pass);

  // Returns why Run would run a pass of these parameters eagerly; "" if nothing speaks against a
  // graph so far. A caller that asks first saves the work of preparing one.
  std::string WhyNot(const std::vector<Parameter>& parameters) const;
  // Runs a pass without a graph, for a reason of the caller's. LogDebug gives each reason once.
  Tensor RunEagerly(const std::string& why, const std::function<Tensor()>& run_eagerly);

  const GraphStatistics& statistics() const { return recorder_.statistics(); }

 private:
  struct Key {
    const Module* model;
    std::string modes;     // of all its modules
    GemmOptions products;  // recorded products keep their algorithms
    std::vector<int64_t> of_pass;
    // A hash of which parameters there are, where they lie, and the states of their gradients.
    uint64_t leaves;
    auto operator<=>(const Key&) const = default;
  };
  // The state of a gradient besides its buffer (core/leaf_gradient.h).
  struct LeafState {
    bool stale, has_rows;
  };
  struct Entry {
    std::vector<std::weak_ptr<TensorImpl>> leaves;
    std::vector<const void*> narrow;  // the parameters' copies for products, which the work reads
    Tensor numbers, loss;
    std::unique_ptr<RecordedWork> work;  // null: not recorded yet
    std::vector<LeafState> after;        // the gradients' states after it
    bool warm = false;                   // true if it has run eagerly
    std::string why_not;                 // why it can't be recorded; "" if it can
    int64_t last_use = 0;
  };
  using Entries = std::map<Key, Entry>;

  static std::vector<LeafState> StatesOf(const std::vector<Parameter>& parameters);
  static void Restore(const std::vector<Parameter>& parameters,
                      const std::vector<LeafState>& states);
  // Returns true if all gradients were stale before the pass. Then a second run overwrites what the
  // first one wrote. Otherwise it would add to sums twice.
  static bool MayRunAgain(const std::vector<LeafState>& before);
  static Key KeyOf(const GraphPass& pass);
  Entries::iterator EntryOf(const GraphPass& pass);
  // Copies the pass's numbers to where its graph reads them.
  void CopyNumbers(const GraphPass& pass, Entry& entry);
  // Runs the pass and keeps its loss, also while it is recorded.
  static void RunPass(const GraphPass& pass, Entry& entry);
  // Runs the pass eagerly, but as its graph would: with the same buffers.
  Tensor RunNow(const GraphPass& pass, Entry& entry);
  void Record(const GraphPass& pass, Entry& entry);
  Tensor Copy(const Tensor& loss);
  // From now on nothing is recorded, and no memory is kept for it.
  void GiveUp(const std::string& why);

  Device device_;
  size_t most_;
  DeviceBackend& backend_;
  GraphRecorder recorder_;
  std::shared_ptr<DeviceMemoryPool> memory_;  // used inside of recorded work
  Entries entries_;
  int64_t clock_ = 0;
};

}  // namespace lathe
