// The operations that tensors themselves need on a device: fill, convert, add, scale, add a row to
// all rows.
#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/tensor_kernels.h"

namespace lathe::cuda {
namespace {

// Converts bool, integers and floating types as the host does: through float if one of them is
// narrow, else as C++ does.
template <typename To, typename From>
__device__ void Convert(To& to, const From& from) {
  constexpr bool narrow_from = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool narrow_to = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (narrow_to && narrow_from) {
    Store(to, Load(from));
  } else if constexpr (narrow_to) {
    Store(to, static_cast<float>(from));
  } else if constexpr (narrow_from) {
    to = static_cast<To>(Load(from));
  } else {
    to = static_cast<To>(from);
  }
}

template <int N, typename T>
__global__ void FillKernel(T* to, double value, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    Pack<T, decltype(count)::value> pack;
    for (T& v : pack.v) Convert(v, value);
    StorePack(to + i, pack);
  });
}

template <int N, typename To, typename From>
__global__ void ConvertKernel(To* to, const From* from, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    constexpr int kCount = decltype(count)::value;
    const auto in = LoadPack<kCount>(from + i);
    Pack<To, kCount> out;
    for (int k = 0; k < kCount; ++k) Convert(out.v[k], in.v[k]);
    StorePack(to + i, out);
  });
}

template <int N, typename T>
__global__ void AddKernel(T* to, const T* x, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    constexpr int kCount = decltype(count)::value;
    auto sum = LoadPack<kCount>(to + i);
    const auto other = LoadPack<kCount>(x + i);
    for (int k = 0; k < kCount; ++k) Store(sum.v[k], Load(sum.v[k]) + Load(other.v[k]));
    StorePack(to + i, sum);
  });
}

template <typename T>
__global__ void ScaleKernel(T* to, float factor, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) Store(to[i], Load(to[i]) * factor);
}

template <typename T>
__global__ void ScaleByKernel(T* to, const float* factor, int64_t n) {
  const float f = *factor;
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) Store(to[i], Load(to[i]) * f);
}

// n is the number of elements of all rows.
template <typename T>
__global__ void AddRowKernel(T* to, const float* row, int64_t n, int64_t columns, int64_t ld) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    const int64_t r = i / columns, c = i - r * columns;
    Store(to[r * ld + c], Load(to[r * ld + c]) + row[c]);
  }
}

void Fill(void* to, DType type, double value, int64_t n) {
  DispatchAll(type, [&](auto tag) {
    using T = decltype(tag);
    WithPack<T>({to}, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      LATHE_LAUNCH((FillKernel<N, T>), GridFor(DivideUp(n, N)), kBlock, 0, static_cast<T*>(to),
                   value, n);
    });
  });
}

void ConvertAll(void* to, DType to_type, const void* from, DType from_type, int64_t n) {
  DispatchAll(to_type, [&](auto to_tag) {
    DispatchAll(from_type, [&](auto from_tag) {
      using To = decltype(to_tag);
      using From = decltype(from_tag);
      constexpr int N = 4;
      if (Aligned16({to, from})) {
        LATHE_LAUNCH((ConvertKernel<N, To, From>), GridFor(DivideUp(n, N)), kBlock, 0,
                     static_cast<To*>(to), static_cast<const From*>(from), n);
      } else {
        LATHE_LAUNCH((ConvertKernel<1, To, From>), GridFor(n), kBlock, 0, static_cast<To*>(to),
                     static_cast<const From*>(from), n);
      }
    });
  });
}

void Add(void* to, const void* x, DType type, int64_t n) {
  DispatchNumbers("add", type, [&](auto tag) {
    using T = decltype(tag);
    WithPack<T>({to, x}, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      LATHE_LAUNCH((AddKernel<N, T>), GridFor(DivideUp(n, N)), kBlock, 0, static_cast<T*>(to),
                   static_cast<const T*>(x), n);
    });
  });
}

void Scale(void* to, DType type, double factor, int64_t n) {
  DispatchNumbers("scale", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(ScaleKernel<T>, GridFor(n), kBlock, 0, static_cast<T*>(to), factor, n);
  });
}

void ScaleBy(void* to, DType type, const float* factor, int64_t n) {
  DispatchNumbers("scale", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(ScaleByKernel<T>, GridFor(n), kBlock, 0, static_cast<T*>(to), factor, n);
  });
}

void AddRow(void* to, DType type, const float* row, int64_t rows, int64_t n, int64_t ld) {
  if (rows == 0 || n == 0) return;
  DispatchNumbers("add_row", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(AddRowKernel<T>, GridFor(rows * n), kBlock, 0, static_cast<T*>(to), row, rows * n,
                 n, ld);
  });
}

const TensorKernels table = {Fill, ConvertAll, Add, Scale, ScaleBy, AddRow};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
