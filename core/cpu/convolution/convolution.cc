#include "lathe/core/cpu/convolution/convolution.h"

#include <type_traits>

#include "lathe/core/cpu/lanes.h"

namespace lathe::cpu {
namespace {

// y[r] = sum_t w[t] x[r + t - before] or, if `back`, sum_t w[t] x[r - t + before].
template <bool back, typename T, typename M>
void Depthwise(T* y, const T* x, const M* w, const ConvolutionArgs& args) {
  const int64_t n = args.columns, step = back ? -n : n;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const TapRange taps = TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, back);
    const T* const first = x + (back ? r + args.before() : r - args.before()) * n;
    T* const to = y + r * n;
    ForLanesAndRest<M>(
        n, [&](int64_t c, auto which) __attribute__((always_inline)) {
          decltype(LoadLanes(w, which)) sum = {};
          for (int64_t t = taps.begin; t < taps.end; ++t) {
            sum += LoadLanes(w + t * n + c, which) * LoadLanes(first + t * step + c, which);
          }
          StoreLanes(to + c, sum, which);
        });
  }
}

// dw[t] = sum_r dy[r] x[r + t - before]. A thread takes one register of columns at a time.
template <typename T, typename M>
void DepthwiseWeights(M* dw, const T* dy, const T* x, const ConvolutionArgs& args) {
  const int64_t n = args.columns;
  const auto columns = [&](int64_t c, auto which) __attribute__((always_inline)) {
    for (int64_t t = 0; t < args.taps; ++t)
      StoreLanes(dw + t * n + c, decltype(LoadLanes(dw, which)){}, which);
    for (int64_t b = 0; b < args.batch; ++b) {
      const RowRange sequence = {args.cu_seqlens[b], args.cu_seqlens[b + 1], b};
      for (int64_t r = sequence.begin; r < sequence.end; ++r) {
        const TapRange taps = TapsOf(sequence, r, args, false);
        const auto d = LoadLanes(dy + r * n + c, which);
        const T* const first = x + (r - args.before()) * n + c;
        for (int64_t t = taps.begin; t < taps.end; ++t) {
          M* const to = dw + t * n + c;
          StoreLanes(to, LoadLanes(to, which) + d * LoadLanes(first + t * n, which), which);
        }
      }
    }
  };
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < n; c += kLanesOf<M>) {
    if (n - c >= kLanesOf<M>) {
      columns(c, AllLanes{});
    } else {
      for (int64_t last = c; last < n; ++last) columns(last, OneLane{});
    }
  }
}

[[gnu::always_inline]] inline int64_t RowOf(int64_t out_row, const ConvolutionArgs& args) {
  return args.first_only ? args.cu_seqlens[out_row] : out_row;
}

template <typename T, typename M>
void Dynamic(T* y, const T* x, const M* w, const ConvolutionArgs& args) {
  const int64_t n = args.columns, width = args.width();
#pragma omp parallel for schedule(static)
  for (int64_t out = 0; out < args.out_rows(); ++out) {
    const int64_t r = RowOf(out, args);
    const TapRange taps = TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, false);
    for (int64_t h = 0; h < args.heads; ++h) {
      const M* const weights = w + (out * args.heads + h) * args.taps;
      const T* const first = x + (r - args.before()) * n + h * width;
      T* const to = y + out * n + h * width;
      ForLanesAndRest<M>(
          width, [&](int64_t c, auto which) __attribute__((always_inline)) {
            decltype(LoadLanes(w, which)) sum = {};
            for (int64_t t = taps.begin; t < taps.end; ++t) {
              sum += weights[t] * LoadLanes(first + t * n + c, which);
            }
            StoreLanes(to + c, sum, which);
          });
    }
  }
}

// dx[r] = sum_t w[r - t + before, t] dy[r - t + before]. With first_only the only such row is the
// sequence's first, with the last of the taps.
template <typename T, typename M>
void DynamicInputs(T* dx, const T* dy, const M* w, const ConvolutionArgs& args) {
  const int64_t n = args.columns, width = args.width(), of_row = args.heads * args.taps;
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const RowRange sequence = SequenceOf(args.cu_seqlens, args.batch, r);
    TapRange taps = TapsOf(sequence, r, args, true);
    if (args.first_only && taps.begin < taps.end) taps.begin = r + args.before() - sequence.begin;
    const int64_t last = args.first_only ? sequence.index + taps.begin : r + args.before();
    for (int64_t h = 0; h < args.heads; ++h) {
      T* const to = dx + r * n + h * width;
      ForLanesAndRest<M>(
          width, [&](int64_t c, auto which) __attribute__((always_inline)) {
            decltype(LoadLanes(w, which)) sum = {};
            for (int64_t t = taps.begin; t < taps.end; ++t) {
              const int64_t out = last - t;
              sum += w[out * of_row + h * args.taps + t] *
                     LoadLanes(dy + out * n + h * width + c, which);
            }
            StoreLanes(to + c, sum, which);
          });
    }
  }
}

// dw[r, h, t] = sum over the head's columns of dy[r] x[r + t - before].
template <typename T, typename M>
void DynamicWeights(M* dw, const T* dy, const T* x, const ConvolutionArgs& args) {
  const int64_t n = args.columns, width = args.width();
#pragma omp parallel for schedule(static)
  for (int64_t out = 0; out < args.out_rows(); ++out) {
    const int64_t r = RowOf(out, args);
    const TapRange taps = TapsOf(SequenceOf(args.cu_seqlens, args.batch, r), r, args, false);
    for (int64_t h = 0; h < args.heads; ++h) {
      M* const to = dw + (out * args.heads + h) * args.taps;
      const T* const d = dy + out * n + h * width;
      for (int64_t t = 0; t < args.taps; ++t) {
        if (t < taps.begin || t >= taps.end) {
          to[t] = 0;
          continue;
        }
        const T* const from = x + (r + t - args.before()) * n + h * width;
        Lanes<M> sums = {};
        M rest = 0;
        ForLanesAndRest<M>(
            width, [&](int64_t c, auto which) __attribute__((always_inline)) {
              const auto product = LoadLanes(d + c, which) * LoadLanes(from + c, which);
              if constexpr (std::is_same_v<decltype(which), OneLane>) {
                rest += product;
              } else {
                sums += product;
              }
            });
        to[t] = SumOfLanes<M>(sums) + rest;
      }
    }
  }
}

template <typename T, typename M = MathType<T>>
constexpr ConvolutionKernels::ForType<T> TableFor() {
  return {Depthwise<false, T, M>, Depthwise<true, T, M>, DepthwiseWeights<T, M>,
          Dynamic<T, M>,          DynamicInputs<T, M>,   DynamicWeights<T, M>};
}

}  // namespace

template <>
const ConvolutionKernels& TableOf<ConvolutionKernels, LATHE_ISA>() {
  static constexpr ConvolutionKernels table = {TableFor<float>(), TableFor<double>(),
                                               TableFor<BFloat16>()};
  return table;
}

}  // namespace lathe::cpu
