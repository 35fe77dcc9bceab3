// The launches of an optimizer's update on a device as CUDA graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/device_backend.h"
#include "lathe/core/device_kernels.h"

namespace lathe {

// An update, or a part of it: all that its launches depend on. What else changes from step to step
// lies on the device, where the pointers lead.
struct DeviceUpdate {
  struct Unscale {
    float* grads;  // (n)
    int64_t n;
    const ScalerState* scaler;
    ScaledSteps* steps;
    bool operator==(const Unscale&) const = default;
  };
  struct Clip {
    float* grads;  // (n)
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
    float *p, *m, *v;  // SGD: m is the momentum's buffer, or null
    const float* grads;
    const float* factor;  // null: 1
    const DeviceRange* ranges;
    DeviceRates* rates;
    int64_t* counters;
    int64_t count, chunks;
    const RateValues* values;
    const double* lrs;
    ScaledStep scaled;
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

struct UpdateGraphStatistics {
  int64_t recorded = 0, replayed = 0, eager = 0;  // as StepGraphStatistics
};

// Updates that come again: the first time they run as they are, the second time they are recorded,
// and from then on repeated with one call of the host's. Where they can't be recorded they run as
// they are, and LogDebug says why.
class UpdateGraphs {
 public:
  explicit UpdateGraphs(DeviceBackend& backend) : backend_(backend) {}
  void Run(const DeviceUpdate& update);
  // Off, as at first: all updates run as they are.
  void Use(bool on);
  const UpdateGraphStatistics& statistics() const { return statistics_; }

 private:
  struct Entry {
    DeviceUpdate update;
    std::unique_ptr<RecordedWork> work;  // null: not recorded yet
  };
  static constexpr size_t kMost = 16;

  DeviceBackend& backend_;
  bool on_ = false;
  bool given_up_ = false;
  std::vector<Entry> entries_;  // the last one used is the last
  UpdateGraphStatistics statistics_;
};

}  // namespace lathe
