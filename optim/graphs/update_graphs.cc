#include "lathe/optim/graphs/update_graphs.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <variant>

#include "lathe/core/base/error.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/update_kernels.h"

namespace lathe {
namespace {

void LaunchRule(const DeviceUpdate::Step& s) {
  const UpdateMemory memory = {.p = s.p,
                               .moments = {s.m, s.v, s.last},
                               .g = s.grads,
                               .ranges = s.ranges,
                               .rates = s.rates,
                               .count = s.count,
                               .chunks = s.chunks,
                               .narrow_type = s.narrow_type,
                               .clip = s.factor,
                               .scratch = s.scratch};
  std::visit(
      [&]<typename Rule>(const Rule& rule) {
        if constexpr (!std::is_same_v<Rule, std::monostate>) {
          DeviceKernels<UpdateKernel<Rule>>().run(memory, rule);
        }
      },
      s.update);
}

}  // namespace

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
  if (!std::holds_alternative<std::monostate>(s.update)) {
    LaunchRule(s);
  } else if (s.rule.kind == RateKind::kAdamW) {
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
  const auto run_eagerly = [&](const std::string& why = "") {
    recorder_.CountEager(why);
    update.Launch();
  };
  if (!on_ || !recorder_.given_up().empty()) return run_eagerly();
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
      entry.work = recorder_.Record("the optimizer's update", [&] { update.Launch(); });
    } catch (const Error& e) {
      recorder_.GiveUp(e.message());
      entries_.clear();
      return run_eagerly(e.message());
    }
  }
  recorder_.Replay(*entry.work);
}

}  // namespace lathe
