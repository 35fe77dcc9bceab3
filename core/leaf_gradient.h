// LeafGradient: the gradient of one leaf, and what is known of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace lathe {

struct TensorImpl;

// Only leaves that collect gradients have one. Reads go through TensorImpl::gradient(), writes
// through TensorImpl::mutable_gradient(), which makes it.
struct LeafGradient {
  // The gradient's values, with the leaf's shape, dtype and device; null if there is no gradient.
  std::shared_ptr<TensorImpl> buffer;
  // Zeroing a gradient only sets this flag. The gradient then counts as 0, whatever its buffer
  // holds, and the first write overwrites it.
  bool is_stale = false;
  // Clipping only sets this factor: the gradient is the buffer's contents times it.
  float scale = 1;
  // A further factor, on the gradient's device: [] float32; null: 1.
  std::shared_ptr<TensorImpl> device_scale;
  // If set, only a part of the buffer holds the right gradient, and Tensor::grad() throws with this
  // hint. Code that sets the whole gradient resets it.
  const char* partial_hint = nullptr;
  // The rows of the buffer that may differ from 0, if they are known; ascending, each once.
  std::optional<std::vector<int32_t>> rows;
  // Called once in each backward pass, when all parts of the gradient have arrived. Each Checkpoint
  // is a pass of its own.
  std::function<void()> on_ready;
};

// Clears the buffer if it is stale.
void ClearStaleGrad(LeafGradient& gradient);
// Multiplies the buffer by the factors, which become 1.
void ApplyGradScale(LeafGradient& gradient);

}  // namespace lathe
