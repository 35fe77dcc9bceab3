// Elements read and added by number. GatherKernels in core/kernels/indexing/gather_kernels.h
// describes the kernels.
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/cuda/shaping/operand_offsets.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/indexing/gather_kernels.h"

namespace lathe::cuda {
namespace {

// The numbers of a LineIndex, with their type.
template <typename Number>
struct Lines {
  const Number* numbers;
  bool is_shared;
  int64_t outer, size, inner, count;

  // Returns number i of the line at (o, c); -1 if it lies outside of [0, size).
  __device__ int64_t At(int64_t o, int64_t i, int64_t c) const {
    const int64_t number = is_shared ? numbers[i] : numbers[(o * count + i) * inner + c];
    return number >= 0 && number < size ? number : -1;
  }
};

template <typename Body>
void WithLines(const LineIndex& index, Body body) {
  const auto run = [&](auto number) {
    using Number = decltype(number);
    body(Lines<Number>{static_cast<const Number*>(index.numbers), index.is_shared, index.outer,
                       index.size, index.inner, index.count});
  };
  if (index.type == DType::kI32) return run(int32_t{});
  run(int64_t{});
}

// A place (o, i, c) of [outer, count, inner].
struct LinePlace {
  int64_t o, i, c;
};
template <typename Numbers>
__device__ LinePlace PlaceOf(int64_t at, const Numbers& lines) {
  const int64_t row = at / lines.inner;
  return {row / lines.count, row % lines.count, at % lines.inner};
}

template <typename T>
__device__ T AllBitsSet() {
  T bits;
  memset(&bits, 0xff, sizeof(bits));
  return bits;
}

template <typename T, typename Numbers>
__global__ void GatherKernel(T* y, const T* x, Numbers lines) {
  const int64_t n = lines.outer * lines.count * lines.inner;
  for (int64_t at = GlobalThread(); at < n; at += NumThreads()) {
    const auto [o, i, c] = PlaceOf(at, lines);
    const int64_t number = lines.At(o, i, c);
    y[at] = number < 0 ? AllBitsSet<T>() : x[(o * lines.size + number) * lines.inner + c];
  }
}

void Gather(void* y, const void* x, int64_t element_size, const LineIndex& index) {
  LineIndex units = index;
  const bool wide = index.is_shared && index.inner * element_size % 16 == 0 && Aligned16({y, x});
  if (wide) units.inner = index.inner * element_size / 16;
  const int64_t n = units.outer * units.count * units.inner;
  if (n == 0) return;
  const auto run = [&](auto unit) {
    using T = decltype(unit);
    WithLines(units, [&](auto lines) {
      LATHE_LAUNCH((GatherKernel<T, decltype(lines)>), GridFor(n), kBlock, 0, static_cast<T*>(y),
                   static_cast<const T*>(x), lines);
    });
  };
  if (wide) return run(uint4{});
  WithElement(element_size, run);
}

// The thread of the first place with a number adds up all places of its line with that number.
template <typename T, typename Numbers>
__global__ void ScatterAddKernel(T* to, const T* x, Numbers lines) {
  const int64_t n = lines.outer * lines.count * lines.inner;
  for (int64_t at = GlobalThread(); at < n; at += NumThreads()) {
    const auto [o, i, c] = PlaceOf(at, lines);
    const int64_t number = lines.At(o, i, c);
    bool is_first = number >= 0;
    for (int64_t k = 0; k < i && is_first; ++k) is_first = lines.At(o, k, c) != number;
    if (!is_first) continue;
    float sum = Load(x[at]);
    for (int64_t k = i + 1; k < lines.count; ++k) {
      if (lines.At(o, k, c) == number) sum += Load(x[at + (k - i) * lines.inner]);
    }
    T& element = to[(o * lines.size + number) * lines.inner + c];
    Store(element, Load(element) + sum);
  }
}

void ScatterAdd(void* to, const void* x, DType type, const LineIndex& index) {
  const int64_t n = index.outer * index.count * index.inner;
  if (n == 0) return;
  DispatchNumbers("scatter_add", type, [&](auto tag) {
    using T = decltype(tag);
    WithLines(index, [&](auto lines) {
      LATHE_LAUNCH((ScatterAddKernel<T, decltype(lines)>), GridFor(n), kBlock, 0,
                   static_cast<T*>(to), static_cast<const T*>(x), lines);
    });
  });
}

template <typename Numbers>
__global__ void RowsOfKernel(int64_t* rows, Numbers lines) {
  const int64_t inner = lines.is_shared ? 1 : lines.inner;
  const int64_t n = lines.outer * lines.count * inner;
  for (int64_t at = GlobalThread(); at < n; at += NumThreads()) {
    const int64_t row = at / inner, o = row / lines.count, c = at % inner;
    const int64_t number = lines.At(o, row % lines.count, c);
    rows[at] = number < 0 ? -1 : (o * lines.size + number) * inner + c;
  }
}

void RowsOf(int64_t* rows, const LineIndex& index) {
  const int64_t n = index.outer * index.count * (index.is_shared ? 1 : index.inner);
  if (n == 0) return;
  WithLines(index, [&](auto lines) {
    LATHE_LAUNCH(RowsOfKernel<decltype(lines)>, GridFor(n), kBlock, 0, rows, lines);
  });
}

// Threads may set the same element, all of them to NaN.
template <typename T, typename Numbers>
__global__ void MarkOutsideKernel(T* to, Numbers lines) {
  const int64_t n = lines.outer * lines.count * lines.inner;
  for (int64_t at = GlobalThread(); at < n; at += NumThreads()) {
    const auto [o, i, c] = PlaceOf(at, lines);
    if (lines.At(o, i, c) < 0) to[o * lines.size * lines.inner + c] = AllBitsSet<T>();
  }
}

void MarkOutside(void* to, int64_t element_size, const LineIndex& index) {
  const int64_t n = index.outer * index.count * index.inner;
  if (n == 0 || index.size == 0) return;
  WithElement(element_size, [&](auto element) {
    using T = decltype(element);
    WithLines(index, [&](auto lines) {
      LATHE_LAUNCH((MarkOutsideKernel<T, decltype(lines)>), GridFor(n), kBlock, 0,
                   static_cast<T*>(to), lines);
    });
  });
}

template <typename T, typename Number>
__global__ void OneHotKernel(T* y, T one, const Number* index, int64_t count, int64_t classes) {
  for (int64_t at = GlobalThread(); at < count * classes; at += NumThreads()) {
    const int64_t number = index[at / classes];
    const bool is_outside = number < 0 || number >= classes;
    y[at] = is_outside ? AllBitsSet<T>() : number == at % classes ? one : T{};
  }
}

void OneHot(void* y, int64_t element_size, uint64_t one, const void* index, DType type,
            int64_t count, int64_t classes) {
  const int64_t n = count * classes;
  if (n == 0) return;
  WithElement(element_size, [&](auto element) {
    using T = decltype(element);
    const auto run = [&](auto number) {
      using Number = decltype(number);
      LATHE_LAUNCH((OneHotKernel<T, Number>), GridFor(n), kBlock, 0, static_cast<T*>(y),
                   static_cast<T>(one), static_cast<const Number*>(index), count, classes);
    };
    if (type == DType::kI32) return run(int32_t{});
    run(int64_t{});
  });
}

const GatherKernels table = {Gather, ScatterAdd, RowsOf, MarkOutside, OneHot};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
