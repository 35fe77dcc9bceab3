// The largest or smallest elements along a dimension. ExtremesKernels in
// core/kernels/math/extremes_kernels.h describes the kernels.
#include "lathe/core/cuda/dispatch.h"
#include "lathe/core/cuda/rows.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/math/extremes_kernels.h"

namespace lathe::cuda {
namespace {

// An element and its place; no element if the place is negative.
struct Chosen {
  float value = 0;
  int64_t place = -1;
};

// Returns true if `a` comes before `b`.
__device__ bool Before(const Chosen& a, const Chosen& b, const SelectArgs& args) {
  if (a.place < 0 || b.place < 0) return b.place < 0 && a.place >= 0;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan == args.nan_first;
  if (!a_nan && a.value != b.value) return (a.value > b.value) == args.largest;
  return a.place < b.place;
}

__device__ Chosen FirstOfWarp(Chosen best, const SelectArgs& args) {
  for (int by = 16; by > 0; by /= 2) {
    Chosen other;
    other.value = __shfl_xor_sync(kFullWarp, best.value, by);
    other.place = __shfl_xor_sync(kFullWarp, best.place, by);
    if (Before(other, best, args)) best = other;
  }
  return best;
}

// A block takes a column at a time. Each round finds the first element behind the last one.
template <typename T>
__global__ void SelectRows(T* values, int64_t* indices, const T* x, SelectArgs args) {
  __shared__ float shared_values[kBlock / 32];
  __shared__ int64_t shared_places[kBlock / 32];
  for (int64_t r = blockIdx.x; r < args.outer * args.inner; r += gridDim.x) {
    const int64_t outer = r / args.inner, inner = r % args.inner;
    const T* const row = x + outer * args.n * args.inner + inner;
    Chosen last;
    for (int64_t j = 0; j < args.k; ++j) {
      Chosen best;
      for (int64_t i = threadIdx.x; i < args.n; i += blockDim.x) {
        Chosen here;
        here.value = Load(row[i * args.inner]);
        here.place = i;
        if ((j == 0 || Before(last, here, args)) && Before(here, best, args)) best = here;
      }
      best = FirstOfWarp(best, args);
      __syncthreads();  // earlier readers of the shared numbers are done
      if (threadIdx.x % 32 == 0) {
        shared_values[threadIdx.x / 32] = best.value;
        shared_places[threadIdx.x / 32] = best.place;
      }
      __syncthreads();
      best = Chosen();
      for (int w = 0; w < kBlock / 32; ++w) {
        Chosen of_warp;
        of_warp.value = shared_values[w];
        of_warp.place = shared_places[w];
        if (Before(of_warp, best, args)) best = of_warp;
      }
      last = best;
      if (threadIdx.x == 0) {
        const int64_t to = (outer * args.k + j) * args.inner + inner;
        values[to] = row[best.place * args.inner];
        if (indices != nullptr) indices[to] = best.place;
      }
    }
  }
}

// A thread takes a column at a time, for columns whose neighbours lie side by side.
template <typename T>
__global__ void SelectColumns(T* values, int64_t* indices, const T* x, SelectArgs args) {
  for (int64_t c = GlobalThread(); c < args.outer * args.inner; c += NumThreads()) {
    const int64_t outer = c / args.inner, inner = c % args.inner;
    const T* const column = x + outer * args.n * args.inner + inner;
    Chosen last;
    for (int64_t j = 0; j < args.k; ++j) {
      Chosen best;
      for (int64_t i = 0; i < args.n; ++i) {
        Chosen here;
        here.value = Load(column[i * args.inner]);
        here.place = i;
        if ((j == 0 || Before(last, here, args)) && Before(here, best, args)) best = here;
      }
      last = best;
      const int64_t to = (outer * args.k + j) * args.inner + inner;
      values[to] = column[best.place * args.inner];
      if (indices != nullptr) indices[to] = best.place;
    }
  }
}

template <typename T>
__global__ void ScatterKernel(T* dx, const T* dy, const int64_t* indices, SelectArgs args) {
  for (int64_t i = GlobalThread(); i < args.outer * args.k * args.inner; i += NumThreads()) {
    const int64_t outer = i / (args.k * args.inner), inner = i % args.inner;
    dx[(outer * args.n + indices[i]) * args.inner + inner] = dy[i];
  }
}

void Select(void* values, int64_t* indices, const void* x, DType type, const SelectArgs& args) {
  const int64_t columns = args.outer * args.inner;
  if (columns == 0 || args.k == 0) return;
  DispatchNumbers("select", type, [&](auto tag) {
    using T = decltype(tag);
    T* const to = static_cast<T*>(values);
    const T* const from = static_cast<const T*>(x);
    if (args.inner >= 32) {
      LATHE_LAUNCH(SelectColumns<T>, GridFor(columns), kBlock, 0, to, indices, from, args);
    } else {
      LATHE_LAUNCH(SelectRows<T>, GridForRows<BlockPerRow>(columns), kBlock, 0, to, indices, from,
                   args);
    }
  });
}

void Scatter(void* dx, const void* dy, const int64_t* indices, DType type, const SelectArgs& args) {
  const int64_t count = args.outer * args.k * args.inner;
  if (count == 0) return;
  DispatchNumbers("select", type, [&](auto tag) {
    using T = decltype(tag);
    LATHE_LAUNCH(ScatterKernel<T>, GridFor(count), kBlock, 0, static_cast<T*>(dx),
                 static_cast<const T*>(dy), indices, args);
  });
}

const ExtremesKernels table = {Select, Scatter};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
