#include "lathe/optim/update_graphs.h"

#include <algorithm>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/log.h"
#include "lathe/core/device_kernels.h"

namespace lathe {

void DeviceUpdate::Launch() const {
  const auto& kernels = DeviceKernels<DeviceOptimizerKernels>();
  if (unscales) kernels.unscale(unscale.grads, unscale.n, unscale.scaler, unscale.steps);
  if (clips) {
    kernels.norm(clip.norm, clip.grads, clip.n, clip.scratch, clip.scratch_bytes);
    kernels.clip(clip.factor, clip.norm, clip.values, clip.latch, clip.scaler);
  }
  if (!steps) return;
  const Step& s = step;
  kernels.rates(s.rates, s.counters, s.ranges, s.count, s.rule, s.values, s.lrs, s.scaled);
  if (s.rule.adamw) {
    kernels.adamw(s.p, s.m, s.v, s.grads, s.ranges, s.rates, s.count, s.chunks, s.narrow_type,
                  s.adamw, s.factor);
  } else {
    kernels.sgd(s.p, s.m, s.grads, s.ranges, s.rates, s.count, s.chunks, s.narrow_type, s.sgd,
                s.factor);
  }
}

void UpdateGraphs::Use(bool on) {
  on_ = on;
  if (!on) entries_.clear();
}

void UpdateGraphs::Run(const DeviceUpdate& update) {
  const auto run_eagerly = [&] {
    ++statistics_.eager;
    update.Launch();
  };
  if (!on_ || given_up_) return run_eagerly();
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.update == update; });
  if (found == entries_.end()) {
    if (entries_.size() >= kMost) entries_.erase(entries_.begin());
    entries_.push_back({update, nullptr});
    return run_eagerly();
  }
  std::rotate(found, found + 1, entries_.end());
  Entry& entry = entries_.back();
  if (entry.work == nullptr) {
    try {
      entry.work = backend_.Record([&] { update.Launch(); });
    } catch (const Error& e) {
      LogDebug("the optimizer's update can't be recorded as a CUDA graph: " + e.message());
      given_up_ = true;
      entries_.clear();
      return run_eagerly();
    }
    ++statistics_.recorded;
    LogDebug("the optimizer's update was recorded as a CUDA graph");
  }
  entry.work->Launch();
  ++statistics_.replayed;
}

}  // namespace lathe
