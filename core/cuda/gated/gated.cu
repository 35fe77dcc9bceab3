// The device's gated activations. core/cpu/gated/gated.h describes them.
#include "lathe/core/cpu/gated/gated.h"
#include "lathe/core/cuda/activation_math.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

using cpu::GatedArgs;
using cpu::GatedKernels;

// Each thread takes N columns of one row at a time.
template <int N, typename T, typename Act>
__global__ void ForwardKernel(T* y, const T* a, const T* b, GatedArgs args) {
  const int64_t parts = args.n / N;
  for (int64_t i = GlobalThread(); i < args.rows * parts; i += NumThreads()) {
    const int64_t from = i / parts * args.stride + i % parts * N;
    auto value = LoadPack<N>(a + from);
    const auto gate = LoadPack<N>(b + from);
    for (int k = 0; k < N; ++k) {
      Store(value.v[k], Act::Value(Load(value.v[k])) * Load(gate.v[k]));
    }
    StorePack(y + i * N, value);
  }
}

template <int N, typename T, typename Act>
__global__ void BackwardKernel(T* da, T* db, const T* dy, const T* a, const T* b, GatedArgs args) {
  const int64_t parts = args.n / N;
  for (int64_t i = GlobalThread(); i < args.rows * parts; i += NumThreads()) {
    const int64_t from = i / parts * args.stride + i % parts * N;
    auto value = LoadPack<N>(a + from), gate = LoadPack<N>(b + from);
    const auto grad = LoadPack<N>(dy + i * N);
    for (int k = 0; k < N; ++k) {
      const float at = Load(value.v[k]), d = Load(grad.v[k]);
      Store(value.v[k], d * Load(gate.v[k]) * Act::Derivative(at));
      Store(gate.v[k], d * Act::Value(at));
    }
    StorePack(da + from, value);
    StorePack(db + from, gate);
  }
}

// Calls body(act, integral_constant<int, N>) with the function and the number of columns that a
// thread takes.
template <typename T, typename Body>
void With(const GatedArgs& args, std::initializer_list<const void*> addresses, Body body) {
  if (args.rows == 0 || args.n == 0) return;
  const auto by_width = [&](auto act) {
    if (Aligned16(addresses) && args.n % kPack<T> == 0 && args.stride % kPack<T> == 0) {
      return body(act, std::integral_constant<int, kPack<T>>{});
    }
    body(act, std::integral_constant<int, 1>{});
  };
  if (args.kind == ActivationKind::kNone) return by_width(DeviceFunctions::Identity{});
  DeviceFunctions::With(args.kind, by_width);
}

template <typename T>
void Forward(T* y, const T* a, const T* b, const GatedArgs& args) {
  With<T>(args, {y, a, b}, [&](auto act, auto width) {
    using Act = decltype(act);
    constexpr int N = decltype(width)::value;
    LATHE_LAUNCH((ForwardKernel<N, T, Act>), GridFor(args.rows * args.n / N), kBlock, 0, y, a, b,
                 args);
  });
}

template <typename T>
void Backward(T* da, T* db, const T* dy, const T* a, const T* b, const GatedArgs& args) {
  With<T>(args, {da, db, dy, a, b}, [&](auto act, auto width) {
    using Act = decltype(act);
    constexpr int N = decltype(width)::value;
    LATHE_LAUNCH((BackwardKernel<N, T, Act>), GridFor(args.rows * args.n / N), kBlock, 0, da, db,
                 dy, a, b, args);
  });
}

template <typename T>
constexpr GatedKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

const GatedKernels table = {
    .f32 = TableFor<float>(), .f64 = {}, .bf16 = TableFor<BFloat16>(), .f16 = TableFor<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
