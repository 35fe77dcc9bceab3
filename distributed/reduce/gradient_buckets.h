// The division of arenas into buckets. The gradients of a bucket travel together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/nn/arena.h"

namespace lathe {

struct ReducerOptions {
  // The first bucket is small: the sooner it is full, the sooner the ranks can begin.
  int64_t first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;
  // True to reduce during the backward pass, on a thread or a GPU stream of its own.
  bool overlap = true;
  // "no", or "bf16": gradients travel in bfloat16. On the CPU only those do that travel between
  // machines, and they are added in float32 (ProcessGroup::AllReduceCompressed). On GPUs all do and
  // are added in bfloat16, and the bfloat16 copies take half as much memory again as the gradients.
  std::string compression = "no";
};

// A parameter whose gradient is exchanged.
struct GradientSlot {
  std::string name;
  Tensor tensor;
  size_t bucket;
  int parts = 0;     // parts of its gradient that have arrived in this pass
  int expected = 0;  // parts that arrived in the pass before; 0: unknown
};

struct GradientBucket {
  std::span<float> grads;  // on the arenas' device, with the gaps between parameters
  size_t arena;
  int64_t offset;  // of its first element in the arena
  std::vector<size_t> slots;
  // Its first elements, which are sharded: each rank updates its stripe of them.
  size_t num_sharded_elements = 0;
  size_t waiting = 0;  // number of slots that are not ready

  // Returns the range of the sharded elements in the arena.
  ElementRange ShardedRange() const {
    return {offset, offset + static_cast<int64_t>(num_sharded_elements)};
  }
};

struct GradientBuckets {
  // Cuts the arenas into buckets, in their order. No bucket spans two arenas or contains a frozen
  // parameter. `sharded[a]` is true if the update of arena a is sharded. Throws if no parameter
  // requires a gradient, or if the arenas lie on different devices.
  GradientBuckets(const std::vector<std::shared_ptr<ParameterArena>>& arenas,
                  const ReducerOptions& options, const std::vector<bool>& sharded);

  // The number of elements at the bucket's end that all ranks get if it is the last bucket.
  static size_t TailOf(const GradientBucket& bucket);
  GradientBucket& last() { return buckets.back(); }
  TensorImpl& last_tensor() const { return *slots.back().tensor.impl(); }
  bool IsLast(const GradientBucket& bucket) const { return &bucket == &buckets.back(); }

  std::vector<GradientSlot> slots;
  std::vector<GradientBucket> buckets;
  Device device;               // of all arenas
  bool table_is_last = false;  // the last parameter is a large table, in a bucket of its own
};

}  // namespace lathe
