#include "lathe/core/cpu/convert.h"

#include <algorithm>
#include <type_traits>

#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kParallelSize = 32768;

template <typename To, typename From>
void Convert(To* to, const From* from, int64_t n) {
  if (n <=
      kParallelSize) {  // a parallel region takes longer than a short array, with one thread too
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) Store(to[i], Load(from[i]));
    return;
  }
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) Store(to[i], Load(from[i]));
}

// True if Add narrows registers together. A plain loop would narrow one at a time.
template <typename T>
constexpr bool kAddsInLanes = kNarrowedTogether == 2 && std::is_same_v<T, BFloat16>;

template <typename T>
void Add(T* to, const T* x, int64_t n) {
  if constexpr (kAddsInLanes<T>) {
    constexpr int64_t kPart = 1024;
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t begin = 0; begin < n; begin += kPart) {
      StoreEachLanes(
          to + begin, std::min(kPart, n - begin),
          [&](int64_t i, int, auto which) __attribute__((always_inline)) {
            return LoadLanes(to + begin + i, which) + LoadLanes(x + begin + i, which);
          });
    }
    return;
  }
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
