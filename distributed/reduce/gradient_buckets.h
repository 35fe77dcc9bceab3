// Which gradients travel together: parameters of arenas, cut into buckets in the arenas' order.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/distributed/reduce/reducer.h"
#include "lathe/nn/arena.h"

namespace lathe {

// A parameter that takes part.
struct GradientSlot {
  std::string name;
  Tensor tensor;
  size_t bucket;
  int parts = 0;     // of its gradient that have come in this pass
  int expected = 0;  // that came in the pass before; 0: not known
};

struct GradientBucket {
  std::span<float> grads;  // on the arenas' device, with the gaps between parameters
  size_t arena;
  int64_t offset;  // of its first element in the arena
  std::vector<size_t> slots;
  size_t shared_out = 0;  // so many of its first elements
  size_t waiting = 0;     // slots that are not ready

  // Of those elements, in the arena.
  ElementRange SharedPart() const { return {offset, offset + static_cast<int64_t>(shared_out)}; }
};

struct GradientBuckets {
  // Buckets don't go across arenas or frozen parameters. `shared_out`: whether each arena is.
  // Throws if no parameter requires a gradient, or if the arenas lie on different devices.
  GradientBuckets(const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                  const ReducerOptions& options, const std::vector<bool>& shared_out);

  // Elements at the bucket's end that go to everybody if it is the last one.
  static size_t TailOf(const GradientBucket& bucket);
  GradientBucket& last() { return buckets.back(); }
  TensorImpl& last_tensor() { return *slots.back().tensor.impl(); }
  bool IsLast(const GradientBucket& bucket) const { return &bucket == &buckets.back(); }

  std::vector<GradientSlot> slots;
  std::vector<GradientBucket> buckets;
  absl::flat_hash_map<const TensorImpl*, bool> was_trained;
  Device device;               // of all of them
  bool table_is_last = false;  // and has a bucket of its own
};

}  // namespace lathe
