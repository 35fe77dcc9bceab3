#include "lathe/core/ops/compare/where.h"

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/check_holds.h"
#include "lathe/core/kernels/compare/compare_kernels.h"
#include "lathe/core/ops/shaping/operand_runs.h"

namespace lathe {
namespace {

template <typename T>
void SelectOnHost(void* y_data, const void* condition_data, const void* a_data, const void* b_data,
                  const OperandWalk<3>& walk) {
  T* const y = static_cast<T*>(y_data);
  const uint8_t* const condition = static_cast<const uint8_t*>(condition_data);
  const T* const a = static_cast<const T*>(a_data);
  const T* const b = static_cast<const T*>(b_data);
  const int last = std::max(walk.count - 1, 0);
  WithConstantStride(walk.strides[0][last], [&](auto condition_stride) {
    WithConstantStride(walk.strides[1][last], [&](auto a_stride) {
      WithConstantStride(walk.strides[2][last], [&](auto b_stride) {
        ForRuns(walk, [=](const int64_t* offsets, int64_t place, int64_t n) {
          const uint8_t* const chooses_left = condition + offsets[0];
          const T* const left = a + offsets[1];
          const T* const right = b + offsets[2];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            // Both are loaded, so that the compiler needs no branch.
            const T from_left = left[i * a_stride], from_right = right[i * b_stride];
            y[place + i] = chooses_left[i * condition_stride] != 0 ? from_left : from_right;
          }
        });
      });
    });
  });
}

// Chooses without a record; all arguments are checked.
Tensor Select(const char* op, const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Shape shape =
      BroadcastShape(op, BroadcastShape(op, condition.shape(), a.shape()), b.shape());
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  const OperandWalk<3> walk =
      MergedWalk<3>(op, shape,
                    {BroadcastStrides(condition.shape(), shape), BroadcastStrides(a.shape(), shape),
                     BroadcastStrides(b.shape(), shape)});
  const int64_t size = SizeOf(a.dtype());
  const auto run = [&](auto select) {
    select(y.raw_data(), condition.raw_data(), a.raw_data(), b.raw_data(), walk);
  };
  if (!a.device().is_cpu()) {
    DeviceKernels<CompareKernels>().select(y.raw_data(), condition.raw_data(), a.raw_data(),
                                           b.raw_data(), size, walk);
  } else if (size == 1) {
    run(SelectOnHost<uint8_t>);
  } else if (size == 2) {
    run(SelectOnHost<uint16_t>);
  } else if (size == 4) {
    run(SelectOnHost<uint32_t>);
  } else {
    run(SelectOnHost<uint64_t>);
  }
  return y;
}

// y = c ? a : b;  da = c ? dy : 0,  db = c ? 0 : dy
Tensor SelectAndRecord(const char* op, const Tensor& condition, const Tensor& a, const Tensor& b) {
  const bool is_mask = condition.dtype() == DType::kBool || condition.dtype() == DType::kU8;
  Check(is_mask, op, "the condition must be bool or uint8 but is ", ToString(condition.dtype()));
  Check(a.dtype() == b.dtype(), op, "expected operands of one dtype but got ", ToString(a.dtype()),
        " and ", ToString(b.dtype()));
  CheckSameDevice(op, a.device(), {condition, b});
  return Record(op, Select(op, condition, a, b), {a, b}, {condition},
                [op, condition](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  const Tensor zero = Tensor::Zeros({}, dy.dtype(), dy.device());
                  if (context.NeedsInputGrad(0))
                    context.SetGrad(0, Select(op, condition, dy, zero));
                  if (context.NeedsInputGrad(1))
                    context.SetGrad(1, Select(op, condition, zero, dy));
                });
}

}  // namespace

Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return SelectAndRecord("where", condition, a, b);
}

Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value) {
  Check(BroadcastShape("masked_fill", mask.shape(), x.shape()) == x.shape(), "masked_fill",
        "a mask of shape ", mask.shape(), " can't be broadcast to ", x.shape());
  CheckHoldsWhole("masked_fill", value, x.dtype());
  const Tensor scalar = Tensor::Full({}, value, x.dtype(), x.device());
  return SelectAndRecord("masked_fill", mask, scalar, x);
}

}  // namespace lathe
