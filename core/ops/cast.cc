#include "lathe/core/ops/cast.h"

#include <optional>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/device_backend.h"

namespace lathe {

Tensor Cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Check(IsFloating(x.dtype()) && IsFloating(dtype), "cast",
        "expected floating-point dtypes but got a cast from ", ToString(x.dtype()), " to ",
        ToString(dtype));
  const AllocationTag allocation_tag = AllocationTag::Op("cast");
  return Record("cast", x.To(dtype), {x}, {}, [from = x.dtype()](BackwardContext& context) {
    context.SetGrad(0, context.grad_output().To(from));
  });
}

Tensor LowPrecisionCopy(const Tensor& leaf, DType dtype) {
  TensorImpl& impl = *leaf.impl();
  const int64_t version = impl.storage->version();
  // Other ranks still write to a copy in shared memory. A leaf that is no longer shared needs its
  // own copy.
  const bool is_others = impl.low_precision != nullptr &&
                         impl.low_precision->storage->is_writable_by_others() &&
                         !impl.storage->is_writable_by_others();
  if (impl.low_precision == nullptr || impl.low_precision->dtype != dtype || is_others) {
    std::optional<LeafMemoryScope> scope;
    if (leaf.is_leaf()) scope.emplace(impl);  // only a leaf's copy outlives the pass
    const AllocationTag allocation_tag =
        AllocationTag::State("parameters' copies of low precision");
    impl.low_precision = Tensor::Empty(leaf.shape(), dtype, leaf.device()).impl();
    impl.low_precision_version = -1;
  }
  Tensor copy(impl.low_precision);
  if (impl.low_precision_version != version) {
    copy.CopyFrom(leaf);
    impl.low_precision_version = version;
  }
  return copy;
}

}  // namespace lathe
