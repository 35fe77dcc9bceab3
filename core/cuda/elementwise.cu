// Elementwise functions, with and without broadcasting: see core/elementwise_functions.h.
#include <limits>

#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/elementwise_functions.h"

namespace lathe::cuda {
namespace {

// A thread takes N elements at a time; the last n % N go one to a thread.
template <int N, typename T, typename F>
__global__ void MapFlat(F f, T* y, const T* x, int64_t n) {
  const int64_t packs = n / N;
  for (int64_t i = GlobalThread(); i < packs; i += NumThreads()) {
    Pack<T, N> pack = reinterpret_cast<const Pack<T, N>*>(x)[i];
    for (int k = 0; k < N; ++k) Store(pack.v[k], f(Load(pack.v[k])));
    reinterpret_cast<Pack<T, N>*>(y)[i] = pack;
  }
  const int64_t i = packs * N + GlobalThread();
  if (i < n) Store(y[i], f(Load(x[i])));
}

template <int N, typename T, typename F>
__global__ void ZipFlat(F f, T* y, const T* a, const T* b, int64_t n) {
  const int64_t packs = n / N;
  for (int64_t i = GlobalThread(); i < packs; i += NumThreads()) {
    Pack<T, N> left = reinterpret_cast<const Pack<T, N>*>(a)[i];
    const Pack<T, N> right = reinterpret_cast<const Pack<T, N>*>(b)[i];
    for (int k = 0; k < N; ++k) Store(left.v[k], f(Load(left.v[k]), Load(right.v[k])));
    reinterpret_cast<Pack<T, N>*>(y)[i] = left;
  }
  const int64_t i = packs * N + GlobalThread();
  if (i < n) Store(y[i], f(Load(a[i]), Load(b[i])));
}

// Index: uint32_t where n fits, whose divisions are cheaper.
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
    if (Aligned(y, x)) {
      constexpr int N = kPack<T>;
      LATHE_LAUNCH((MapFlat<N, T, F>), GridFor((n + N - 1) / N), kBlock, 0, f, y, x, n);
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
    if (flat && Aligned(y, a, b)) {
      constexpr int N = kPack<T>;
      LATHE_LAUNCH((ZipFlat<N, T, F>), GridFor((n + N - 1) / N), kBlock, 0, f, y, a, b, n);
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
    RegisterMaps(functions::OfOne{}) && RegisterZips(functions::OfTwo{});

}  // namespace
}  // namespace lathe::cuda
