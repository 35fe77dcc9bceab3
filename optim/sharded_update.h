// ShardedUpdate: an optimizer's side of an update that is sharded over ranks
// (optim/optimizer_shards.h).
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lathe/core/base/element_range.h"
#include "lathe/core/tensor.h"
#include "lathe/optim/optimizer_shards.h"

namespace lathe {

class ShardedUpdate {
 public:
  // Sets where the division in force is found. The next Adopt adopts it.
  void Use(std::shared_ptr<const CurrentShards> shards) { source_ = std::move(shards); }
  // The division in force; null unless the update is sharded.
  const OptimizerShards* current() const {
    return source_ == nullptr ? nullptr : source_->now.get();
  }
  // Returns the division that the optimizer's buffers correspond to; null: the update is not
  // sharded.
  const OptimizerShards* adopted() const { return adopted_.get(); }
  // Adopts the division in force. First every rank gets the moments that other ranks
  // have kept for their old stripes: `buffers`, each undefined or as large as the arena. Returns
  // false if there was nothing to do.
  bool Adopt(std::span<Tensor* const> buffers);
  // Returns which elements of `whole` this rank updates.
  std::vector<ElementRange> OwnRangesOf(ElementRange whole) const;

  // Begins an update of the arena's values. If they lie in shared memory, waits for all ranks:
  // ranks change each other's parameters there.
  void Begin(const Tensor& values);
  // Gets the other ranks' stripes of the values. Only elements in `changed` (see OptimizerShards)
  // can have been updated. Returns false if some of them may still be under way
  // (core/tensor.h).
  bool Gather(const Tensor& values, const std::vector<ElementRange>& changed);
  void End() { is_half_done_ = false; }
  // Returns true from Begin until all values are there, if the update is sharded: it stays true
  // after an error.
  bool is_half_done() const { return is_half_done_ || lacks_values(); }
  // Returns true if the update has ended, and values of other ranks have not come yet.
  bool lacks_values() const {
    return !is_half_done_ && arrivals_ != nullptr && !arrivals_->complete();
  }

 private:
  std::shared_ptr<const CurrentShards> source_;
  std::shared_ptr<const OptimizerShards> adopted_;
  bool is_half_done_ = false;
  std::shared_ptr<Arrivals> arrivals_;  // those of the last update; null: all came at once
};

}  // namespace lathe
