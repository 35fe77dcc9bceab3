#include "lathe/core/ops/unfold/unfold.h"

#include <algorithm>
#include <span>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/kernels/packed_rows.h"
#include "lathe/core/kernels/unfold_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/segment/check_segments.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "unfold";

// Calls body(row, begin, end) for every row of x. [begin, end) are the rows of its sequence; both
// are 0 for a row beyond the last sequence.
template <typename Body>
void ForRows(const UnfoldArgs& args, Body body) {
#pragma omp parallel for schedule(static) if (args.rows * args.columns * args.taps > kParallelSize)
  for (int64_t row = 0; row < args.rows; ++row) {
    const RowRange sequence = SequenceOf(args.cu_seqlens, args.batch, row);
    body(row, sequence.begin, sequence.end);
  }
}

template <typename T>
void Unfold(T* y, const T* x, const UnfoldArgs& args) {
  ForRows(args, [&](int64_t row, int64_t begin, int64_t end) {
    T* const to = y + row * args.taps * args.columns;
    for (int64_t t = 0; t < args.taps; ++t) {
      const int64_t from = row + t - args.before();
      const T* const read = from >= begin && from < end ? x + from * args.columns : nullptr;
      if (args.order == UnfoldOrder::kColumns) {
        for (int64_t c = 0; c < args.columns; ++c) {
          to[c * args.taps + t] = read == nullptr ? T{} : read[c];
        }
      } else if (read != nullptr) {
        std::copy_n(read, args.columns, to + args.Place(t, 0));
      } else {
        std::fill_n(to + args.Place(t, 0), args.columns, T{});
      }
    }
  });
}

template <typename T>
void UnfoldGrad(T* dx, const T* dy, const UnfoldArgs& args) {
  ForRows(args, [&](int64_t row, int64_t begin, int64_t end) {
    for (int64_t c = 0; c < args.columns; ++c) {
      MathType<T> sum = 0;
      for (int64_t t = 0; t < args.taps; ++t) {
        const int64_t from = row - t + args.before();  // the row whose tap t holds this row
        if (from < begin || from >= end) continue;
        sum += cpu::Load(dy[from * args.taps * args.columns + args.Place(t, c)]);
      }
      cpu::Store(dx[row * args.columns + c], sum);
    }
  });
}

}  // namespace

// y[r, t] = x[r + t - before];  dx[r] = sum_t dy[r - t + before, t]
Tensor PackedUnfold(const Tensor& x, const PackedSequences& sequences, int64_t taps,
                    UnfoldOrder order) {
  Check(taps >= 1, kOp, "expected at least one tap but got ", taps);
  CheckSegments(kOp, x, sequences.cu_seqlens);
  UnfoldArgs args;
  args.cu_seqlens = sequences.cu_seqlens.data<int32_t>();
  args.batch = sequences.size();
  args.rows = x.dim(0);
  args.columns = x.dim(1);
  args.taps = taps;
  args.order = order;
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    Tensor y = Tensor::Empty({x.dim(0), taps * x.dim(1)}, x.dtype(), x.device());
    if (x.device().is_cpu()) {
      Unfold(y.data<T>(), x.data<T>(), args);
    } else {
      DeviceKernels<UnfoldKernels>().forward(y.raw_data(), x.raw_data(), x.dtype(), args);
    }
    // The capture of cu_seqlens keeps alive what `args` points to.
    return Record(kOp, y, {x}, {},
                  [args, shape = x.shape(), kept = sequences.cu_seqlens](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    Tensor dx = Tensor::Empty(shape, dy.dtype(), dy.device());
                    if (dy.device().is_cpu()) {
                      UnfoldGrad(dx.data<T>(), dy.data<T>(), args);
                    } else {
                      DeviceKernels<UnfoldKernels>().backward(dx.raw_data(), dy.raw_data(),
                                                              dy.dtype(), args);
                    }
                    context.SetGrad(0, dx);
                  });
  });
}

Tensor PackedUnfoldComposed(const Tensor& x, const PackedSequences& sequences, int64_t taps,
                            UnfoldOrder order) {
  const std::vector<int32_t> cu = sequences.cu_seqlens.ToVector<int32_t>();
  const auto zeros = [&](int64_t rows) {
    return Tensor::Zeros({rows, x.dim(1)}, x.dtype(), x.device());
  };
  std::vector<Tensor> columns;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t offset = t - (taps - 1) / 2;
    std::vector<Tensor> rows;
    for (size_t b = 0; b + 1 < cu.size(); ++b) {
      const int64_t length = cu[b + 1] - cu[b];
      const int64_t above = std::clamp<int64_t>(-offset, 0, length);
      const int64_t below = std::clamp<int64_t>(offset, 0, length);
      rows.push_back(zeros(above));
      rows.push_back(SliceRows(x, cu[b] + below, cu[b + 1] - above));
      rows.push_back(zeros(below));
    }
    rows.push_back(zeros(x.dim(0) - cu.back()));
    columns.push_back(ConcatRows(rows));
  }
  if (order == UnfoldOrder::kTapsReversed) std::ranges::reverse(columns);
  if (order != UnfoldOrder::kColumns) return ConcatColumns(columns);
  for (Tensor& tap : columns) tap = Reshape(tap, {tap.numel(), 1});
  return Reshape(ConcatColumns(columns), {x.dim(0), taps * x.dim(1)});
}

}  // namespace lathe
