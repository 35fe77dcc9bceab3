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
  is_half_done_ = adopted_ != nullptr;
  if (values.impl()->storage->is_writable_by_others()) adopted_->barrier();
}

void ShardedUpdate::Gather(const Tensor& values, const std::vector<ElementRange>& changed) const {
  if (adopted_ == nullptr) return;
  if (values.impl()->storage->is_writable_by_others()) return adopted_->barrier();
  adopted_->gather(values.values<float>(), changed);
}

}  // namespace lathe
