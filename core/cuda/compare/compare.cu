// Comparisons and the choice between two tensors. CompareKernels in
// core/kernels/compare/compare_kernels.h describes the kernels.

#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/shaping/operand_offsets.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/compare/compare_kernels.h"

namespace lathe::cuda {
namespace {

// Returns the number as which an element is compared.
template <typename T>
__device__ auto NumberOf(const T& x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return x;
  } else {
    return Load(x);
  }
}

template <typename Index, typename T, typename F>
__global__ void CompareKernel(F f, uint8_t* y, const T* a, const T* b, OperandWalk<2> walk,
                              int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    int64_t offsets[2];
    OffsetsAt(walk, static_cast<Index>(i), offsets);
    y[i] = f(NumberOf(a[offsets[0]]), NumberOf(b[offsets[1]])) ? 1 : 0;
  }
}

template <typename T>
void CompareOf(Comparison comparison, void* y, const void* a, const void* b,
               const OperandWalk<2>& walk) {
  const int64_t n = NumPlaces(walk);
  if (n == 0) return;
  WithComparison(comparison, [&](auto f) {
    WithIndexType(n, [&](auto index) {
      LATHE_LAUNCH((CompareKernel<decltype(index), T, decltype(f)>), GridFor(n), kBlock, 0, f,
                   static_cast<uint8_t*>(y), static_cast<const T*>(a), static_cast<const T*>(b),
                   walk, n);
    });
  });
}

void Compare(Comparison comparison, void* y, const void* a, const void* b, DType type,
             const OperandWalk<2>& walk) {
  switch (type) {
    case DType::kI64:
      return CompareOf<int64_t>(comparison, y, a, b, walk);
    case DType::kI32:
      return CompareOf<int32_t>(comparison, y, a, b, walk);
    case DType::kU8:
    case DType::kBool:
      return CompareOf<uint8_t>(comparison, y, a, b, walk);
    default:
      DispatchNumbers("compare", type,
                      [&](auto tag) { CompareOf<decltype(tag)>(comparison, y, a, b, walk); });
  }
}

template <typename Index, typename T>
__global__ void SelectKernel(T* y, const uint8_t* condition, const T* a, const T* b,
                             OperandWalk<3> walk, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    int64_t offsets[3];
    OffsetsAt(walk, static_cast<Index>(i), offsets);
    y[i] = condition[offsets[0]] != 0 ? a[offsets[1]] : b[offsets[2]];
  }
}

void Select(void* y, const void* condition, const void* a, const void* b, int64_t size,
            const OperandWalk<3>& walk) {
  const int64_t n = NumPlaces(walk);
  if (n == 0) return;
  WithElement(size, [&](auto element) {
    using T = decltype(element);
    WithIndexType(n, [&](auto index) {
      LATHE_LAUNCH((SelectKernel<decltype(index), T>), GridFor(n), kBlock, 0, static_cast<T*>(y),
                   static_cast<const uint8_t*>(condition), static_cast<const T*>(a),
                   static_cast<const T*>(b), walk, n);
    });
  });
}

const CompareKernels table = {Compare, Select};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
