#include "lathe/core/ops/windows/conv1d.h"

#include <omp.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/grouped/grouped_linear.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/math/product_threads.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/unfold/unfold.h"
#include "lathe/core/ops/windows/unfold1d.h"
#include "lathe/core/ops/windows/window_args.h"

namespace lathe {
namespace {

constexpr const char* kOp = "conv1d";

// Throws unless weight and bias fit `channels` channels of x.
void CheckLayer(const Tensor& x, int64_t channels, const Tensor& weight, const Tensor& bias,
                int64_t groups) {
  Check(weight.ndim() == 3 && weight.dim(2) >= 1, kOp,
        "weight must have shape [O, C / groups, taps] but has ", weight.shape(), " for x ",
        x.shape());
  Check(groups >= 1 && channels % groups == 0 && weight.dim(0) % groups == 0, kOp,
        "groups = ", groups, " must divide the channels of x ", x.shape(),
        " and the outputs of weight ", weight.shape());
  Check(weight.dim(1) * groups == channels, kOp, "weight ", weight.shape(),
        " with groups = ", groups, " needs x with ", weight.dim(1) * groups, " channels but x is ",
        x.shape());
  Check(weight.dtype() == MathDType(x.dtype()), kOp, "weight must be ",
        ToString(MathDType(x.dtype())), " for ", ToString(x.dtype()), " x but is ",
        ToString(weight.dtype()));
  if (bias.defined()) {
    Check(bias.shape() == Shape{weight.dim(0)} && bias.dtype() == weight.dtype(), kOp,
          "bias must be ", ToString(weight.dtype()), " of shape [", weight.dim(0), "] but is ",
          ToString(bias.dtype()), " of shape ", bias.shape());
  }
  CheckSameDevice(kOp, x.device(), {weight, bias});
}

// The sizes of a convolution on the host. The work is divided into groups of whole samples. A group
// is computed in chunks of columns, which are outputs of one channel. A chunk has all columns of
// several short samples, or some columns of one long sample. The unfolded windows of a chunk stay
// in a thread's cache.
struct Plan {
  WindowArgs args;
  int64_t outputs, groups;  // channels of y; groups of channels
  int64_t samples;          // of a group
  int64_t columns;          // of a chunk within a sample, at most

  static constexpr int64_t kMostParts = 16;

  int64_t depth() const { return args.channels / groups * args.kernel; }  // of one group
  int64_t unfolded_rows() const { return args.channels * args.kernel; }
  int64_t chunk_columns() const { return samples * columns; }
  int64_t sample_groups() const { return DivideUp(args.batch, samples); }
  // The gradients of weight and bias are summed in parts, so that they don't depend on the number
  // of threads.
  int64_t parts() const { return std::min(sample_groups(), kMostParts); }
};

Plan PlanOf(const WindowArgs& args, const Tensor& weight, int64_t groups) {
  // Products need some columns to be fast. The windows of one chunk should not fill the cache.
  constexpr int64_t kLeast = 64, kMost = 256, kElements = 1 << 17;
  const int64_t columns = std::clamp(kElements / (args.channels * args.kernel), kLeast, kMost);
  const int64_t chunks = DivideUp(args.out_length, columns);
  return {.args = args,
          .outputs = weight.dim(0),
          .groups = groups,
          .samples = std::clamp<int64_t>(columns / args.out_length, 1, args.batch),
          .columns = DivideUp(args.out_length, chunks)};
}

// Columns [begin, end) of samples [first, last); all columns if these are several samples.
struct Chunk {
  int64_t first, last, begin, end;
  int64_t width() const { return end - begin; }  // within a sample
  int64_t columns() const { return (last - first) * width(); }
};

// Calls body(part, thread) for each part, on all threads if there are enough parts.
template <typename Body>
void ForParts(const Plan& plan, const Body& body) {
  ForProducts(plan.parts(), plan.parts() >= omp_get_max_threads(), body);
}

// Calls body(chunk) for all chunks of a part, in order. Part p has the groups from p g / parts on.
template <typename Body>
void ForChunks(const Plan& plan, int64_t part, const Body& body) {
  const int64_t groups = plan.sample_groups(), parts = plan.parts();
  for (int64_t g = part * groups / parts; g < (part + 1) * groups / parts; ++g) {
    const int64_t first = g * plan.samples, last = std::min(first + plan.samples, plan.args.batch);
    for (int64_t begin = 0; begin < plan.args.out_length; begin += plan.columns) {
      body(Chunk{first, last, begin, std::min(begin + plan.columns, plan.args.out_length)});
    }
  }
}

// The outputs [begin, end) of a chunk whose tap t lies within x. Output o reads the element
// o * stride + shift.
struct Tap {
  Tap(const WindowArgs& args, int64_t t, const Chunk& chunk)
      : shift(t * args.dilation - args.padding) {
    const int64_t low = shift >= 0 ? 0 : DivideUp(-shift, args.stride);
    const int64_t high = args.length <= shift ? 0 : DivideUp(args.length - shift, args.stride);
    begin = std::clamp(low, chunk.begin, chunk.end);
    end = std::clamp(high, begin, chunk.end);
  }
  int64_t shift, begin, end;
};

// to: (C * kernel, chunk.columns()) = the windows of the chunk
template <typename T>
void Unfold(T* to, const T* x, const WindowArgs& args, const Chunk& chunk) {
  for (int64_t c = 0; c < args.channels; ++c) {
    for (int64_t t = 0; t < args.kernel; ++t) {
      const Tap tap(args, t, chunk);
      for (int64_t b = chunk.first; b < chunk.last; ++b) {
        const T* const line = x + (b * args.channels + c) * args.length;
        to = std::fill_n(to, tap.begin - chunk.begin, T{});
        if (args.stride == 1 && tap.begin < tap.end) {
          to = std::copy(line + tap.begin + tap.shift, line + tap.end + tap.shift, to);
        } else {
          for (int64_t o = tap.begin; o < tap.end; ++o) *to++ = line[o * args.stride + tap.shift];
        }
        to = std::fill_n(to, chunk.end - tap.end, T{});
      }
    }
  }
}

// dx += the gradients of the chunk's windows. dx: (C, L) of each sample from `chunk.first` on.
template <typename M>
void AddFolded(M* dx, const M* unfolded, const WindowArgs& args, const Chunk& chunk) {
  for (int64_t c = 0; c < args.channels; ++c) {
    for (int64_t t = 0; t < args.kernel; ++t) {
      const Tap tap(args, t, chunk);
      for (int64_t b = 0; b < chunk.last - chunk.first; ++b) {
        M* const line = dx + (b * args.channels + c) * args.length;
        const M* const from = unfolded + tap.begin - chunk.begin;
        const int64_t n = tap.end - tap.begin, first = tap.begin * args.stride + tap.shift;
        if (args.stride == 1) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) line[first + i] += from[i];
        } else {
          for (int64_t i = 0; i < n; ++i) line[first + i * args.stride] += from[i];
        }
        unfolded += chunk.width();
      }
    }
  }
}

// Memory for each thread, of `size` elements of T.
template <typename T>
struct ThreadMemory {
  explicit ThreadMemory(int64_t elements)
      : size(RoundUp(elements, 64 / static_cast<int64_t>(sizeof(T)))),
        tensor(Tensor::Empty({omp_get_max_threads() * size}, DTypeOf<T>::value)) {}
  T* Of(int64_t thread) const { return tensor.data<T>() + thread * size; }
  int64_t size;
  Tensor tensor;
};

template <typename T>
void Forward(T* y, const T* x, const T* weight, const MathType<T>* bias, const Plan& plan) {
  using M = MathType<T>;
  const WindowArgs& args = plan.args;
  const ThreadMemory<T> windows(plan.unfolded_rows() * plan.chunk_columns());
  const ThreadMemory<M> products(plan.outputs * plan.chunk_columns());
  const int64_t rows = plan.outputs / plan.groups, depth = plan.depth();
  ForParts(plan, [&](int64_t part, int64_t thread) {
    ForChunks(plan, part, [&](const Chunk& chunk) {
      const int64_t n = chunk.columns(), width = chunk.width();
      Unfold(windows.Of(thread), x, args, chunk);
      for (int64_t g = 0; g < plan.groups; ++g) {
        Gemm({}, rows, n, depth, weight + g * rows * depth, depth,
             windows.Of(thread) + g * depth * n, n, 0, products.Of(thread) + g * rows * n, n);
      }
      const M* from = products.Of(thread);
      for (int64_t o = 0; o < plan.outputs; ++o) {
        const M add = bias == nullptr ? 0 : bias[o];
        for (int64_t b = chunk.first; b < chunk.last; ++b) {
          T* const to = y + (b * plan.outputs + o) * args.out_length + chunk.begin;
#pragma omp simd
          for (int64_t l = 0; l < width; ++l) cpu::Store(to[l], from[l] + add);
          from += width;
        }
      }
    });
  });
}

// Writes or adds the sum of the parts.
template <typename M, typename From>
void SumParts(const GradTarget& target, const From* parts, int64_t count) {
  M* const to = target.tensor.template data<M>();
  const int64_t n = target.tensor.numel();
#pragma omp parallel for simd schedule(static) if (parallel : n * count > kParallelSize)
  for (int64_t i = 0; i < n; ++i) {
    From sum = parts[i];
    for (int64_t p = 1; p < count; ++p) sum += parts[p * n + i];
    to[i] = static_cast<M>(target.overwrite ? sum : to[i] + sum);
  }
}

// dW = sum dy U^T,  db = sum dy,  dx = fold(W^T dy), with U the unfolded windows
// It is long because the three gradients share what a thread has read of dy and x.
template <typename T>
void Backward(BackwardContext& context, const Tensor& x_tensor, const Tensor& weight_tensor,
              const Tensor& bias, const Plan& plan) {
  using M = MathType<T>;
  const WindowArgs& args = plan.args;
  const T* const dy = context.grad_output().template data<T>();
  const T* const x = x_tensor.data<T>();
  std::optional<GradTarget> dw, db;
  if (context.NeedsInputGrad(1)) dw.emplace(context, 1, weight_tensor);
  if (bias.defined() && context.NeedsInputGrad(2)) db.emplace(context, 2, bias);
  const bool needs_dx = context.NeedsInputGrad(0);
  const Tensor dx = needs_dx ? Tensor::Empty(x_tensor.shape(), x_tensor.dtype()) : Tensor();

  const int64_t rows = plan.outputs / plan.groups, depth = plan.depth(), parts = plan.parts();
  const int64_t sample = args.channels * args.length;
  const int64_t unfolded = plan.unfolded_rows() * plan.chunk_columns();
  const ThreadMemory<T> gradients(plan.outputs * plan.chunk_columns());
  const ThreadMemory<T> windows(dw ? unfolded : 0);
  const ThreadMemory<M> folding(needs_dx ? unfolded : 0);
  const bool narrow = !std::is_same_v<T, M>;
  const ThreadMemory<M> sums(needs_dx && narrow ? plan.samples * sample : 0);
  const Tensor dw_parts = Tensor::Empty({dw ? parts : 0, plan.outputs * depth}, DTypeOf<M>::value);
  std::vector<double> db_parts(static_cast<size_t>(db ? parts * plan.outputs : 0));
  const T* const weight = needs_dx ? WeightData<T>(weight_tensor) : nullptr;

  ForParts(plan, [&](int64_t part, int64_t thread) {
    bool adds = false;
    ForChunks(plan, part, [&](const Chunk& chunk) {
      const int64_t n = chunk.columns();
      T* const dys = gradients.Of(thread);
      T* to = dys;
      for (int64_t o = 0; o < plan.outputs; ++o) {
        for (int64_t b = chunk.first; b < chunk.last; ++b) {
          std::copy_n(dy + (b * plan.outputs + o) * args.out_length + chunk.begin, chunk.width(),
                      to);
          to += chunk.width();
        }
      }
      if (db) {
        for (int64_t o = 0; o < plan.outputs; ++o) {
          double sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t l = 0; l < n; ++l) sum += cpu::Load(dys[o * n + l]);
          db_parts[static_cast<size_t>(part * plan.outputs + o)] += sum;
        }
      }
      if (dw) {
        Unfold(windows.Of(thread), x, args, chunk);
        M* const into = dw_parts.data<M>() + part * plan.outputs * depth;
        for (int64_t g = 0; g < plan.groups; ++g) {
          Gemm({.b = true}, rows, depth, n, dys + g * rows * n, n,
               windows.Of(thread) + g * depth * n, n, adds ? 1 : 0, into + g * rows * depth, depth);
        }
        adds = true;
      }
      if (!needs_dx) return;
      M* const unfolded_dx = folding.Of(thread);
      for (int64_t g = 0; g < plan.groups; ++g) {
        Gemm({.a = true}, depth, n, rows, weight + g * rows * depth, depth, dys + g * rows * n, n,
             0, unfolded_dx + g * depth * n, n);
      }
      T* const own = dx.data<T>() + chunk.first * sample;
      M* into;
      if constexpr (std::is_same_v<T, M>) {
        into = own;
      } else {
        into = sums.Of(thread);
      }
      const int64_t elements = (chunk.last - chunk.first) * sample;
      if (chunk.begin == 0) std::fill_n(into, elements, M(0));
      AddFolded(into, unfolded_dx, args, chunk);
      if (narrow && chunk.end == args.out_length) {
        for (int64_t i = 0; i < elements; ++i) cpu::Store(own[i], into[i]);
      }
    });
  });
  if (dw) SumParts<M>(*dw, dw_parts.data<M>(), parts);
  if (db) SumParts<M>(*db, db_parts.data(), parts);
  if (needs_dx) context.SetGrad(0, dx);
}

// Returns a linear layer's result for the unfolded rows: [N, C * taps] -> [N, O].
Tensor Product(const Tensor& unfolded, const Tensor& weight, const Tensor& bias, int64_t groups) {
  if (groups == 1) {
    return Linear(unfolded, Reshape(weight, {weight.dim(0), weight.dim(1) * weight.dim(2)}), bias);
  }
  GroupedLayer layer;
  layer.weight = Reshape(weight, {weight.dim(0), weight.dim(1) * weight.dim(2), 1});
  layer.bias = bias;
  layer.groups = groups;
  return GroupedLinear(unfolded, layer);
}

}  // namespace

Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  Check(x.ndim() == 3, kOp, "x must have shape [B, C, L] but has ", x.shape());
  CheckLayer(x, x.dim(1), weight, bias, options.groups);
  const WindowArgs args =
      WindowsOver(kOp, x, weight.dim(2), options.stride, options.padding, options.dilation);
  if (!x.device().is_cpu() || NumElements(weight.shape()) == 0 || x.numel() == 0)
    return Conv1dComposed(x, weight, bias, options);
  const Plan plan = PlanOf(args, weight, options.groups);
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, Float16>) {  // never on the host
      return Conv1dComposed(x, weight, bias, options);
    } else {
      const Tensor y = Tensor::Empty({args.batch, plan.outputs, args.out_length}, x.dtype());
      Forward(y.data<T>(), x.data<T>(), WeightData<T>(weight),
              bias.defined() ? bias.data<MathType<T>>() : nullptr, plan);
      return Record(kOp, y, {x, weight, bias}, {x, weight},
                    [x = x.Detach(), weight, bias, plan](BackwardContext& context) {
                      Backward<T>(context, x, weight, bias, plan);
                    });
    }
  });
}

Tensor PackedConv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const PackedSequences& sequences, int64_t groups) {
  Check(x.ndim() == 2, kOp, "packed x must have shape [T, C] but has ", x.shape());
  CheckLayer(x, x.dim(1), weight, bias, groups);
  const int64_t taps = weight.dim(2);
  if (groups > 1) {
    return Product(PackedUnfold(x, sequences, taps, UnfoldOrder::kColumns), weight, bias, groups);
  }
  // Tap by tap, whole rows of x are copied.
  return Product(PackedUnfold(x, sequences, taps), SwapLast(weight), bias, groups);
}

Tensor Conv1dComposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Conv1dOptions& options) {
  const WindowArgs args =
      WindowsOver(kOp, x, weight.dim(2), options.stride, options.padding, options.dilation);
  const Tensor unfolded = Unfold1d(
      x, args.kernel,
      {.stride = options.stride, .padding = options.padding, .dilation = options.dilation});
  const Tensor y = Product(unfolded, weight, bias, options.groups);
  return SwapLast(Reshape(y, {args.batch, args.out_length, weight.dim(0)}));
}

}  // namespace lathe
