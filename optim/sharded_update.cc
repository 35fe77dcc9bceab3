#include "lathe/optim/sharded_update.h"

namespace lathe {

bool ShardedUpdate::Adopt(std::span<Tensor* const> buffers) {
  std::shared_ptr<const OptimizerShards> now = source_ == nullptr ? nullptr : source_->now;
  if (now == adopted_) return false;
  if (adopted_ != nullptr) {
    for (const Tensor* buffer : buffers) {
      if (buffer->defined()) adopted_->gather(buffer->values<float>(), {{0, buffer->numel()}});
    }
  }
  adopted_ = std::move(now);
  return true;
}

std::vector<ElementRange> ShardedUpdate::OwnRangesOf(ElementRange whole) const {
  if (adopted_ == nullptr) return {whole};
  return Difference(whole, adopted_->others);
}

void ShardedUpdate::Begin(const Tensor& values) {
  values.raw_data();  // waits until the last update's values are there
  Storage& storage = *values.impl()->storage;
  storage.SetArrivals(nullptr);
  arrivals_ = nullptr;
  is_half_done_ = adopted_ != nullptr;
  if (storage.is_writable_by_others()) adopted_->barrier();
}

bool ShardedUpdate::Gather(const Tensor& values, const std::vector<ElementRange>& changed) {
  if (adopted_ == nullptr) return true;
  const Storage& storage = *values.impl()->storage;
  if (storage.is_writable_by_others()) {
    adopted_->barrier();
  } else if (adopted_->begin_gather) {
    adopted_->begin_gather(values, changed);
    arrivals_ = storage.arrivals();
  } else {
    adopted_->gather(values.values<float>(), changed);
  }
  return arrivals_ == nullptr;
}

}  // namespace lathe
