// Convolutions over the tokens of packed sequences, in which each column reads only itself:
//
//   y[r, c] = sum_t w(r, c, t) x[r + t - before, c]
//
// Rows of other sequences count as 0. The weights are the same for all rows (depthwise), or each
// row has its own, which the columns of a head share (dynamic).
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"
#include "lathe/core/kernels/packed_rows.h"

namespace lathe::cpu {

struct ConvolutionArgs {
  const int32_t* cu_seqlens = nullptr;  // (batch + 1)
  int64_t batch = 0;
  int64_t rows = 0, columns = 0;  // of x; the rows may be more than the sequences have
  int64_t taps = 1;
  int64_t heads = 1;        // of a dynamic convolution
  bool first_only = false;  // a dynamic convolution has a result for each sequence's first row only

  [[gnu::always_inline]] constexpr int64_t before() const { return (taps - 1) / 2; }
  [[gnu::always_inline]] constexpr int64_t width() const { return columns / heads; }
  [[gnu::always_inline]] constexpr int64_t out_rows() const { return first_only ? batch : rows; }
};

// The taps [begin, end) of row `row` that lie in its sequence: row + t - before or, if `back`,
// row - t + before.
struct TapRange {
  int64_t begin, end;
};
[[gnu::always_inline]] constexpr TapRange TapsOf(const RowRange& sequence, int64_t row,
                                                 const ConvolutionArgs& args, bool back) {
  int64_t begin =
      back ? row + args.before() - sequence.end + 1 : sequence.begin - row + args.before();
  int64_t end =
      back ? row + args.before() - sequence.begin + 1 : sequence.end - row + args.before();
  begin = begin < 0 ? 0 : begin;
  end = end > args.taps ? args.taps : end;
  return {begin, end};
}

struct ConvolutionKernels {
  // All kernels write all of their result.
  template <typename T, typename M = MathType<T>>
  struct ForType {
    // y, x: (rows, columns); w: (taps, columns).
    void (*depthwise)(T* y, const T* x, const M* w, const ConvolutionArgs& args);
    void (*depthwise_dx)(T* dx, const T* dy, const M* w, const ConvolutionArgs& args);
    void (*depthwise_dw)(M* dw, const T* dy, const T* x, const ConvolutionArgs& args);
    // y: (out_rows, columns); w: (out_rows, heads, taps).
    void (*dynamic)(T* y, const T* x, const M* w, const ConvolutionArgs& args);
    void (*dynamic_dx)(T* dx, const T* dy, const M* w, const ConvolutionArgs& args);
    void (*dynamic_dw)(M* dw, const T* dy, const T* x, const ConvolutionArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
