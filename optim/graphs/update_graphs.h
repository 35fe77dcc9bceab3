// CUDA graphs of the kernel launches of an optimizer's update.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/kernels/optimizer_kernels.h"
#include "lathe/core/kernels/update_rules.h"
#include "lathe/optim/graphs/graph_recorder.h"

namespace lathe {

// All values on which the launches of an update, or of a part of it, depend. Values that change
// from step to step lie on the device, behind these pointers.
struct DeviceUpdate {
  struct Unscale {
    float* grads;  // [n]
    int64_t n;
    const ScalerState* scaler;
    DeviceStepCounts* steps;
    bool operator==(const Unscale&) const = default;
  };
  struct Clip {
    float* grads;  // [n]
    int64_t n;
    void* scratch;
    int64_t scratch_bytes;
    float *norm, *factor;  // one element each
    const ClipValues* values;
    float* latch;               // null: none
    const ScalerState* scaler;  // null: none
    bool operator==(const Clip&) const = default;
  };
  struct Step {
    RateRule rule;
    AdamWConstants adamw;
    SgdConstants sgd;
    update_rules::Rule update;  // replaces the two above if it holds a rule
    float *p, *m, *v, *last;    // for SGD m is the momentum's buffer or null; see DeviceMethod
    void* scratch;              // of `update`
    const float* grads;
    const float* factor;  // null: 1
    const DeviceRange* ranges;
    DeviceRates* rates;
    int64_t* counters;
    int64_t count, chunks;
    const RateValues* values;
    const double* lrs;
    SkippableStep scaled;
    DType narrow_type;
    bool operator==(const Step&) const = default;
  };
  bool unscales = false, clips = false, steps = false;
  Unscale unscale = {};
  Clip clip = {};
  Step step = {};

  void Launch() const;
  bool operator==(const DeviceUpdate&) const = default;
};

// Repeats recurring updates as CUDA graphs. An update runs eagerly the first time and is recorded
// the second time. From then on one call of the host repeats it. If an update can't be recorded,
// all updates run eagerly from then on, and LogDebug says why.
class UpdateGraphs {
 public:
  explicit UpdateGraphs(DeviceBackend& backend) : recorder_(backend, "the optimizer's update") {}
  void Run(const DeviceUpdate& update);
  // Turns the graphs on or off. While they are off, as at first, all updates run eagerly.
  void Use(bool on);
  const GraphStatistics& statistics() const { return recorder_.statistics(); }

 private:
  struct Entry {
    DeviceUpdate update;
    std::unique_ptr<RecordedWork> work;  // null: not recorded yet
  };
  static constexpr size_t kMost = 16;

  GraphRecorder recorder_;
  bool on_ = false;
  std::vector<Entry> entries_;  // in the order of their last use
};

}  // namespace lathe
