#include "lathe/core/cpu/gated/gated.h"

#include "lathe/core/cpu/activation_tables.h"

namespace lathe::cpu {
namespace {

// Calls body(act, row) for each row; threads share the rows.
template <typename Body>
void ForRows(const GatedArgs& args, const Body& body) {
  const auto for_all = [&](auto act) {
#pragma omp parallel for schedule(static) if (args.rows * args.n > 16384)
    for (int64_t r = 0; r < args.rows; ++r) body(act, r);
  };
  if (args.kind == ActivationKind::kNone) return for_all(Functions::Identity{});
  Functions::With(args.kind, for_all);
}

// True if Act is looked up here. With AVX-512 this gains nothing, since both results are rounded.
template <typename Act, typename T>
constexpr bool kGatesByTable = kNarrowedTogether == 2 && kLooksUp<Act, T>;

// Calls body(begin, n) for consecutive parts of a row of n elements.
template <typename Body>
void ForParts(int64_t n, const Body& body) {
  for (int64_t begin = 0; begin < n; begin += kActivationPart)
    body(begin, n - begin < kActivationPart ? n - begin : kActivationPart);
}

template <typename T>
void Forward(T* y, const T* a, const T* b, const GatedArgs& args) {
  ForRows(args, [&](auto act, int64_t r) {
    using Act = decltype(act);
    T* const to = y + r * args.n;
    const T *const ar = a + r * args.stride, *const br = b + r * args.stride;
    if constexpr (kGatesByTable<Act, T>) {
      const auto& table = ActivationValues<Act, float>::Get();
      ForParts(args.n, [&](int64_t c, int64_t n) {
        float values[kActivationPart];
        table.Values(values, ar + c, n);
        Multiply(to + c, values, br + c, n);
      });
    } else if constexpr (kInLanes<Act, T>) {
      StoreEachLanes(
          to, args.n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
            return CutValue<Act>(GeluValue(LoadLanes(ar + c, which))) * LoadLanes(br + c, which);
          });
    } else {
#pragma omp simd
      for (int64_t c = 0; c < args.n; ++c) Store(to[c], Act::Value(Load(ar[c])) * Load(br[c]));
    }
  });
}

template <typename T>
void Backward(T* da, T* db, const T* dy, const T* a, const T* b, const GatedArgs& args) {
  ForRows(args, [&](auto act, int64_t r) {
    using Act = decltype(act);
    const T* const dyr = dy + r * args.n;
    const T *const ar = a + r * args.stride, *const br = b + r * args.stride;
    T *const dar = da + r * args.stride, *const dbr = db + r * args.stride;
    if constexpr (kGatesByTable<Act, T>) {
      const auto& table = ActivationDerivatives<Act, float>::Get();
      ForParts(args.n, [&](int64_t c, int64_t n) {
        float derivatives[kActivationPart], values[kActivationPart];
        table.Both(derivatives, values, ar + c, n);
        StoreEachLanes(
            dar + c, n, [&](int64_t i, int, auto which) __attribute__((always_inline)) {
              return LoadLanes(dyr + c + i, which) * LoadLanes(br + c + i, which) *
                     LoadLanes(derivatives + i, which);
            });
        Multiply(dbr + c, values, dyr + c, n);
      });
    } else if constexpr (kInLanes<Act, T>) {
      ForLanes<float>(
          args.n, [&](int64_t c, int, auto which) __attribute__((always_inline)) {
            Lanes<float> derivative;
            const Lanes<float> at = LoadLanes(ar + c, which), d = LoadLanes(dyr + c, which);
            const Lanes<float> value = CutValue<Act>(GeluBoth(at, &derivative));
            derivative = CutDerivative<Act>(derivative, at);
            StoreLanes(dar + c, d * LoadLanes(br + c, which) * derivative, which);
            StoreLanes(dbr + c, d * value, which);
          });
    } else {
#pragma omp simd
      for (int64_t c = 0; c < args.n; ++c) {
        const MathType<T> at = Load(ar[c]), d = Load(dyr[c]);
        Store(dar[c], d * Load(br[c]) * Act::Derivative(at));
        Store(dbr[c], d * Act::Value(at));
      }
    }
  });
}

template <typename T>
constexpr GatedKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

}  // namespace

template <>
const GatedKernels& TableOf<GatedKernels, LATHE_ISA>() {
  static constexpr GatedKernels table = {TableFor<float>(), TableFor<double>(),
                                         TableFor<BFloat16>()};
  return table;
}

}  // namespace lathe::cpu
