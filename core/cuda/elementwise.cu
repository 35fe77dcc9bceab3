// The device's elementwise functions, with and without broadcasting, for the list in
// core/kernels/elementwise_functions.h.
#include <limits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/elementwise_functions.h"
#include "lathe/core/kernels/elementwise_kernels.h"
#include "lathe/core/kernels/walk_dims.h"

namespace lathe::cuda {
namespace {

template <int N, typename T, typename F>
__global__ void MapFlat(F f, T* y, const T* x, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    auto pack = LoadPack<decltype(count)::value>(x + i);
    for (T& v : pack.v) Store(v, f(Load(v)));
    StorePack(y + i, pack);
  });
}

template <int N, typename T, typename F>
__global__ void ZipFlat(F f, T* y, const T* a, const T* b, int64_t n) {
  ForFlat<N>(n, [&](int64_t i, auto count) {
    constexpr int kCount = decltype(count)::value;
    auto left = LoadPack<kCount>(a + i);
    const auto right = LoadPack<kCount>(b + i);
    for (int k = 0; k < kCount; ++k) Store(left.v[k], f(Load(left.v[k]), Load(right.v[k])));
    StorePack(y + i, left);
  });
}

// Index is uint32_t if n fits, because its divisions are cheaper.
template <typename Index, typename T, typename F>
__global__ void ZipBroadcast(F f, T* y, const T* a, const T* b, WalkDims dims, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    Index rest = static_cast<Index>(i);
    int64_t a_at = 0, b_at = 0;
    for (int d = dims.count - 1; d > 0; --d) {
      const Index size = static_cast<Index>(dims.sizes[d]), outer = rest / size;
      const int64_t at = rest - outer * size;
      a_at += at * dims.a_strides[d];
      b_at += at * dims.b_strides[d];
      rest = outer;
    }
    a_at += static_cast<int64_t>(rest) * dims.a_strides[0];
    b_at += static_cast<int64_t>(rest) * dims.b_strides[0];
    Store(y[i], f(Load(a[a_at]), Load(b[b_at])));
  }
}

template <typename F>
void Map(const char* op, F f, void* y_data, const void* x_data, DType type, int64_t n) {
  DispatchNumbers(op, type, [&](auto tag) {
    using T = decltype(tag);
    T* y = static_cast<T*>(y_data);
    const T* x = static_cast<const T*>(x_data);
    if (n == 0) return;
    if (Aligned16({y, x})) {
      constexpr int N = kPack<T>;
      LATHE_LAUNCH((MapFlat<N, T, F>), GridFor(DivideUp(n, N)), kBlock, 0, f, y, x, n);
    } else {
      LATHE_LAUNCH((MapFlat<1, T, F>), GridFor(n), kBlock, 0, f, y, x, n);
    }
  });
}

template <typename F>
void Zip(const char* op, F f, void* y_data, const void* a_data, const void* b_data, DType type,
         const WalkDims& dims) {
  DispatchNumbers(op, type, [&](auto tag) {
    using T = decltype(tag);
    T* y = static_cast<T*>(y_data);
    const T* a = static_cast<const T*>(a_data);
    const T* b = static_cast<const T*>(b_data);
    int64_t n = 1;
    for (int d = 0; d < dims.count; ++d) n *= dims.sizes[d];
    const bool flat =
        dims.count == 0 || (dims.count == 1 && dims.a_strides[0] == 1 && dims.b_strides[0] == 1);
    if (n == 0) return;
    if (flat && Aligned16({y, a, b})) {
      constexpr int N = kPack<T>;
      LATHE_LAUNCH((ZipFlat<N, T, F>), GridFor(DivideUp(n, N)), kBlock, 0, f, y, a, b, n);
    } else if (flat) {
      LATHE_LAUNCH((ZipFlat<1, T, F>), GridFor(n), kBlock, 0, f, y, a, b, n);
    } else if (n <= std::numeric_limits<uint32_t>::max()) {
      LATHE_LAUNCH((ZipBroadcast<uint32_t, T, F>), GridFor(n), kBlock, 0, f, y, a, b, dims, n);
    } else {
      LATHE_LAUNCH((ZipBroadcast<int64_t, T, F>), GridFor(n), kBlock, 0, f, y, a, b, dims, n);
    }
  });
}

template <typename F>
constexpr MapKernel<F> map_table = {Map<F>};
template <typename F>
constexpr ZipKernel<F> zip_table = {Zip<F>};

template <typename... F>
bool RegisterMaps(functions::List<F...>) {
  return (RegisterDeviceKernels(map_table<F>) && ...);
}
template <typename... F>
bool RegisterZips(functions::List<F...>) {
  return (RegisterDeviceKernels(zip_table<F>) && ...);
}
[[maybe_unused]] const bool registered =
    RegisterMaps(functions::UnaryFunctions{}) && RegisterZips(functions::BinaryFunctions{});

}  // namespace
}  // namespace lathe::cuda
