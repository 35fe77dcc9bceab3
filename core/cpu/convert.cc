#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kParallelSize = 32768;

template <typename To, typename From>
void Convert(To* to, const From* from, int64_t n) {
#pragma omp parallel for simd schedule(static) if (parallel : n > kParallelSize)
  for (int64_t i = 0; i < n; ++i) Store(to[i], Load(from[i]));
}

template <typename T>
void Add(T* to, const T* x, int64_t n) {
#pragma omp parallel for simd schedule(static) if (parallel : n > kParallelSize)
  for (int64_t i = 0; i < n; ++i) Store(to[i], Load(to[i]) + Load(x[i]));
}

}  // namespace

template <>
const ConvertKernels& TableOf<ConvertKernels, LATHE_ISA>() {
  static constexpr ConvertKernels table = {Convert<BFloat16, float>, Convert<float, BFloat16>,
                                           Add<BFloat16>, Add<float>};
  return table;
}

}  // namespace lathe::cpu
