#include "lathe/nn/arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lathe/core/base/allocation_tag.h"

namespace lathe {
namespace {

constexpr int64_t kAlignment = 16;  // elements: a cache line

int64_t Padded(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// Returns the buffer of exactly `size` elements that holds all the tensors `get(entry)`, each at
// its entry's offset. Returns an undefined tensor if they don't lie so.
template <typename GetImpl>
Tensor CommonBuffer(const std::vector<ParameterArena::Entry>& entries, int64_t size, GetImpl get) {
  std::shared_ptr<Storage> storage;
  for (const ParameterArena::Entry& entry : entries) {
    const TensorImpl* impl = get(*entry.parameter.tensor.impl());
    if (impl == nullptr || impl->storage == nullptr || impl->offset != entry.offset) return {};
    if (storage == nullptr) storage = impl->storage;
    if (impl->storage != storage) return {};
  }
  if (storage == nullptr || storage->bytes() != size * 4) return {};
  Tensor buffer = Tensor::Unallocated({size}, DType::kF32, entries[0].parameter.tensor.device());
  buffer.impl()->storage = std::move(storage);
  return buffer;
}

}  // namespace

std::shared_ptr<ParameterArena> ParameterArena::FindOrCreate(
    const std::vector<Parameter>& parameters) {
  Check(!parameters.empty(), "arena", "expected at least one parameter but got none");
  auto arena = std::make_shared<ParameterArena>();
  int64_t size = 0;
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    Check(p->tensor.dtype() == DType::kF32, "arena", "parameter ", p->name,
          " must be float32 but is ", ToString(p->tensor.dtype()));
    arena->entries_.push_back({*p, size});
    size += Padded(p->tensor.numel());
  }
  arena->values_ =
      CommonBuffer(arena->entries_, size, [](const TensorImpl& impl) { return &impl; });
  if (arena->values_.defined()) {
    arena->grads_ = CommonBuffer(
        arena->entries_, size, [](const TensorImpl& impl) { return impl.gradient().buffer.get(); });
    return arena;
  }
  const Device device = parameters[0].tensor.device();
  const AllocationTag allocation_tag = AllocationTag::State("parameters");
  // Zeroed, because a large zeroed block gets its own pages from the system.
  arena->values_ = Tensor::Zeros({size}, DType::kF32, device);
  for (const Entry& entry : arena->entries_) {
    const Tensor& parameter = entry.parameter.tensor;
    TensorImpl& impl = *parameter.impl();
    Check(impl.device == device, "arena", "parameter ", entry.parameter.name, " is on ",
          ToString(impl.device), " but the last parameter is on ", ToString(device));
    const int64_t n = NumElements(impl.shape);
    if (impl.storage != nullptr) {
      arena->values_.Slice(entry.offset, entry.offset + n).CopyFrom(parameter.Reshape({n}));
    }
    // Frees each old buffer as soon as it is copied, so that there are never two whole copies.
    impl.storage = arena->values_.impl()->storage;
    impl.offset = entry.offset;
    Tensor(entry.parameter.tensor).SetGrad({});
  }
  return arena;
}

const Tensor& ParameterArena::grads() {
  GradsToRead();
  for (const Entry& entry : entries_) {
    Tensor(entry.parameter.tensor).MaterializeGrad();  // forgets the rows
  }
  return grads_;
}

const Tensor& ParameterArena::GradsToRead(bool scaled) {
  ReattachGradients();
  for (const Entry& entry : entries_) {
    LeafGradient& gradient = entry.parameter.tensor.impl()->mutable_gradient();
    ClearStaleGrad(gradient);
    if (scaled) ApplyGradScale(gradient);
  }
  return grads_;
}

const Tensor& ParameterArena::RawGrads() {
  ReattachGradients();
  return grads_;
}

void ParameterArena::ZeroGrads() {
  ReattachGradients();
  for (const Entry& entry : entries_) {
    LeafGradient& gradient = entry.parameter.tensor.impl()->mutable_gradient();
    gradient.is_stale = true;
    gradient.scale = 1;
    gradient.device_scale = nullptr;
    gradient.partial_hint = nullptr;
  }
}

bool ParameterArena::has_partial_grads() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.parameter.tensor.impl()->gradient().partial_hint != nullptr;
  });
}

Tensor ParameterArena::NewBuffer() const {
  const Tensor buffer = Tensor::Zeros(values_.shape(), DType::kF32, values_.device());
  for (const Entry& entry : entries_) {
    if (!entry.parameter.is_table) continue;
    buffer.impl()->storage->ExpectSparseUse(entry.offset * 4, entry.parameter.tensor.bytes());
  }
  return buffer;
}

Tensor ParameterArena::GradView(const Entry& entry) const {
  const Tensor& p = entry.parameter.tensor;
  return grads_.Slice(entry.offset, entry.offset + p.numel()).Reshape(p.shape());
}

void ParameterArena::FollowMovedParameters() {
  // This checks the storage, not the device: parameters may have moved away and back.
  if (entries_[0].parameter.tensor.impl()->storage == values_.impl()->storage) return;
  const Tensor moved =
      CommonBuffer(entries_, values_.numel(), [](const TensorImpl& impl) { return &impl; });
  if (!moved.defined()) return;
  values_ = moved;
  grads_ = Tensor();
}

void ParameterArena::ReattachGradients() {
  FollowMovedParameters();
  const bool fresh = !grads_.defined();
  if (fresh) {
    const AllocationTag allocation_tag = AllocationTag::State("gradients");
    grads_ = NewBuffer();
  }
  const std::shared_ptr<Storage>& storage = grads_.impl()->storage;
  std::vector<std::pair<const Entry*, Tensor>> arriving;  // gradients that lie elsewhere
  for (const Entry& entry : entries_) {
    const Tensor& p = entry.parameter.tensor;
    const TensorImpl& impl = *p.impl();
    if (impl.storage != values_.impl()->storage || impl.offset != entry.offset) {
      throw InvalidArgument("[arena] the values of parameter " + entry.parameter.name +
                                " have moved to another arena since the optimizer was created",
                            "create optimizers after Initialize and LoadWeights, and give each "
                            "parameter to only one of them");
    }
    const TensorImpl* const buffer = impl.gradient().buffer.get();
    if (buffer != nullptr && buffer->storage == storage && buffer->offset == entry.offset) continue;
    const Tensor own = p.grad();
    if (!own.defined()) {
      arriving.emplace_back(&entry, Tensor());
    } else {
      Check(own.shape() == p.shape(), "arena", "the gradient of parameter ", entry.parameter.name,
            " must have shape ", p.shape(), " but has ", own.shape());
      // Copy a gradient that lies in another parameter's range of the arena: that range may be
      // overwritten first.
      arriving.emplace_back(&entry, own.impl()->storage == storage ? own.Clone() : own);
    }
  }
  for (const auto& [entry, own] : arriving) {
    Tensor p = entry->parameter.tensor, view = GradView(*entry);
    if (own.defined()) view.CopyFrom(own);
    p.SetGrad(view);
    if (own.defined()) continue;
    p.impl()->mutable_gradient().is_stale = true;
    // There is nothing to clear. A scalar has no rows.
    if (fresh && p.ndim() > 0 && p.numel() > 0) p.impl()->mutable_gradient().rows.emplace();
  }
}

}  // namespace lathe
