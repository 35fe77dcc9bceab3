#include "lathe/core/ops/compare/compare.h"

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/check_holds.h"
#include "lathe/core/kernels/compare/compare_kernels.h"
#include "lathe/core/ops/shaping/operand_runs.h"

namespace lathe {
namespace {

// Returns the number as which an element is compared.
template <typename T>
auto NumberOf(const T& x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return cpu::Load(x);
  }
}

template <typename T>
void CompareOnHost(Comparison comparison, uint8_t* y, const void* a_data, const void* b_data,
                   const OperandWalk<2>& walk) {
  const T* const a = static_cast<const T*>(a_data);
  const T* const b = static_cast<const T*>(b_data);
  const int last = std::max(walk.count - 1, 0);
  WithComparison(comparison, [&](auto f) {
    WithConstantStride(walk.strides[0][last], [&](auto a_stride) {
      WithConstantStride(walk.strides[1][last], [&](auto b_stride) {
        ForRuns(walk, [=](const int64_t* offsets, int64_t place, int64_t n) {
          const T* const left = a + offsets[0];
          const T* const right = b + offsets[1];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) {
            y[place + i] = f(NumberOf(left[i * a_stride]), NumberOf(right[i * b_stride]));
          }
        });
      });
    });
  });
}

Tensor Compare(const char* op, Comparison comparison, const Tensor& a, const Tensor& b) {
  Check(a.dtype() == b.dtype(), op, "expected operands of one dtype but got ", ToString(a.dtype()),
        " and ", ToString(b.dtype()));
  Check(a.device() == b.device(), op, "expected operands on one device but got ",
        ToString(a.device()), " and ", ToString(b.device()));
  const Shape shape = BroadcastShape(op, a.shape(), b.shape());
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const Tensor y = Tensor::Empty(shape, DType::kBool, a.device());
  const OperandWalk<2> walk = MergedWalk<2>(
      op, shape, {BroadcastStrides(a.shape(), shape), BroadcastStrides(b.shape(), shape)});
  if (!a.device().is_cpu()) {
    Check(a.dtype() != DType::kF64, op, "float64 works on the CPU only");
    DeviceKernels<CompareKernels>().compare(comparison, y.raw_data(), a.raw_data(), b.raw_data(),
                                            a.dtype(), walk);
  } else {
    DispatchAll(a.dtype(), [&](auto tag) {
      using T = std::conditional_t<std::is_same_v<decltype(tag), bool>, uint8_t, decltype(tag)>;
      CompareOnHost<T>(comparison, static_cast<uint8_t*>(y.raw_data()), a.raw_data(), b.raw_data(),
                       walk);
    });
  }
  return Record(op, y, {}, {}, nullptr);
}

// Returns the number as a scalar that compares with a.
Tensor ScalarLike(const char* op, const Tensor& a, double value) {
  if (!IsFloating(a.dtype())) CheckHoldsWhole(op, value, a.dtype());
  Check(a.dtype() != DType::kBool || value == 0 || value == 1, op, "bool can't hold ", value);
  Tensor scalar = Tensor::Empty({}, a.dtype(), a.device());
  scalar.Fill(value);  // a large one becomes infinity, where Tensor::Full throws
  return scalar;
}

void CheckMask(const char* op, const Tensor& x) {
  Check(x.dtype() == DType::kBool || x.dtype() == DType::kU8, op, "expected bool or uint8 but got ",
        ToString(x.dtype()));
}

}  // namespace

Tensor Equal(const Tensor& a, const Tensor& b) {
  return Compare("equal", Comparison::kEqual, a, b);
}
Tensor NotEqual(const Tensor& a, const Tensor& b) {
  return Compare("not_equal", Comparison::kNotEqual, a, b);
}
Tensor Less(const Tensor& a, const Tensor& b) { return Compare("less", Comparison::kLess, a, b); }
Tensor LessEqual(const Tensor& a, const Tensor& b) {
  return Compare("less_equal", Comparison::kLessEqual, a, b);
}
Tensor Greater(const Tensor& a, const Tensor& b) {
  return Compare("greater", Comparison::kLess, b, a);
}
Tensor GreaterEqual(const Tensor& a, const Tensor& b) {
  return Compare("greater_equal", Comparison::kLessEqual, b, a);
}

Tensor Equal(const Tensor& a, double b) { return Equal(a, ScalarLike("equal", a, b)); }
Tensor NotEqual(const Tensor& a, double b) { return NotEqual(a, ScalarLike("not_equal", a, b)); }
Tensor Less(const Tensor& a, double b) { return Less(a, ScalarLike("less", a, b)); }
Tensor LessEqual(const Tensor& a, double b) { return LessEqual(a, ScalarLike("less_equal", a, b)); }
Tensor Greater(const Tensor& a, double b) { return Greater(a, ScalarLike("greater", a, b)); }
Tensor GreaterEqual(const Tensor& a, double b) {
  return GreaterEqual(a, ScalarLike("greater_equal", a, b));
}

Tensor LogicalAnd(const Tensor& a, const Tensor& b) {
  CheckMask("logical_and", a);
  return Compare("logical_and", Comparison::kAnd, a, b);
}
Tensor LogicalOr(const Tensor& a, const Tensor& b) {
  CheckMask("logical_or", a);
  return Compare("logical_or", Comparison::kOr, a, b);
}
Tensor LogicalNot(const Tensor& x) {
  CheckMask("logical_not", x);
  return Compare("logical_not", Comparison::kEqual, x, ScalarLike("logical_not", x, 0));
}

}  // namespace lathe
