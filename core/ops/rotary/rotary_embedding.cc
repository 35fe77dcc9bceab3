#include "lathe/core/ops/rotary/rotary_embedding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/rotary/rotary.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/permute.h"

namespace lathe {
namespace {

constexpr const char* kOp = "rotary_embedding";

// Returns the number of the row behind the last turned one.
int64_t EndOf(const Tensor& x, const RotaryOptions& options) {
  return options.end < 0 ? x.dim(0) : options.end;
}

void CheckInputs(const Tensor& x, const Tensor& table, const Tensor& positions,
                 const RotaryOptions& options) {
  Check(x.ndim() == 2, kOp, "x must have shape [N, H] but has ", x.shape());
  const int64_t H = x.dim(1), heads = options.num_heads, end = EndOf(x, options);
  Check(heads >= 1 && H % heads == 0 && H / heads % 2 == 0, kOp, "the columns of x ", x.shape(),
        " are not ", heads, " heads of an even number of columns each");
  Check(0 <= options.begin && options.begin <= end && end <= x.dim(0), kOp, "rows ", options.begin,
        " to ", end, " don't exist in shape ", x.shape());
  Check(table.dtype() == DType::kF32 && table.ndim() == 2 && table.dim(1) == H / heads, kOp,
        "table must be float32 of shape [R, ", H / heads, "] but is ", ToString(table.dtype()),
        " of shape ", table.shape());
  Check(!table.requires_grad(), kOp, "table must not require a gradient");
  const int64_t rows = end - options.begin, count = positions.numel();
  Check(positions.dtype() == DType::kI32 && positions.ndim() == 1, kOp,
        "positions must be int32 of shape [P] but are ", ToString(positions.dtype()), " of shape ",
        positions.shape());
  Check(rows == 0 || (count > 0 && rows % count == 0), kOp, rows, " turned rows of x ", x.shape(),
        " are no multiple of ", count, " positions");
  CheckSameDevice(kOp, x.device(), {table, positions});
  if (!x.device().is_cpu()) return;
  for (const int32_t position : positions.values<int32_t>()) {
    Check(position >= 0 && position < table.dim(0), kOp, "position ", position,
          " is outside the table of ", table.dim(0), " rows");
  }
}

// Returns true if nothing but the caller can see the tensor's values.
bool IsSoleOwner(const Tensor& x) {
  return x.impl().use_count() == 1 && x.impl()->storage.use_count() == 1 &&
         !(x.is_leaf() && x.requires_grad());
}

// Returns x with the rows from `begin` on turned, as many as args say. They are written over those
// of x if `in_place`.
template <typename T>
Tensor Turned(const Tensor& x, bool in_place, int64_t begin, const cpu::RotaryArgs& args) {
  const int64_t end = begin + args.rows, width = x.dim(1);
  Tensor y = in_place ? x.Detach() : Tensor::Empty(x.shape(), x.dtype(), x.device());
  if (!in_place) {
    y.Slice(0, begin).CopyFrom(x.Slice(0, begin));
    y.Slice(end, x.dim(0)).CopyFrom(x.Slice(end, x.dim(0)));
  }
  if (args.rows > 0 && width > 0) {
    KernelsOf<T, cpu::RotaryKernels>(x.device())
        .turn(y.data<T>() + begin * width, x.data<T>() + begin * width, args);
  }
  return y;
}

}  // namespace

std::vector<float> RotaryFrequencies(int64_t head_dim, double theta) {
  Check(head_dim > 0 && head_dim % 2 == 0, "rotary_frequencies",
        "head_dim must be positive and even but is ", head_dim);
  Check(theta > 0 && std::isfinite(theta), "rotary_frequencies", "theta must be positive but is ",
        theta);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(static_cast<float>(theta), double{exponent}));
    frequencies.push_back(1.0f / power);
  }
  return frequencies;
}

Tensor RotaryTable(int64_t num_positions, const std::vector<float>& frequencies) {
  const int64_t half = std::ssize(frequencies);
  Tensor table = Tensor::Empty({num_positions, 2 * half});
  float* const values = table.data<float>();
#pragma omp parallel for schedule(static) if (num_positions * half > kParallelSize)
  for (int64_t p = 0; p < num_positions; ++p) {
    float* const row = values + p * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<float>(std::sin(angle));
      row[half + i] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

// y_a = x_a cos - x_b sin,    y_b = x_b cos + x_a sin;
// dx_a = dy_a cos + dy_b sin,  dx_b = dy_b cos - dy_a sin
Tensor RotaryEmbedding(Tensor x, const Tensor& table, const Tensor& positions,
                       const RotaryOptions& options) {
  CheckInputs(x, table, positions, options);
  cpu::RotaryArgs args;
  args.rows = EndOf(x, options) - options.begin;
  args.heads = options.num_heads;
  args.head_dim = x.dim(1) / options.num_heads;
  args.table = table.data<float>();
  args.table_rows = table.dim(0);
  args.positions = positions.data<int32_t>();
  args.num_positions = positions.numel();
  args.neighbours = options.pairs == RotaryPairs::kNeighbours;
  args.back = false;
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const Tensor y = Turned<T>(x, IsSoleOwner(x), options.begin, args);
    // The capture of both tensors keeps alive what `args` points to.
    return Record(kOp, y, {x}, {table, positions},
                  [args, begin = options.begin, table = table.Detach(),
                   positions = positions.Detach()](BackwardContext& context) mutable {
                    args.back = true;
                    const Tensor& dy = context.grad_output();
                    context.SetGrad(0, Turned<T>(dy, IsSoleOwner(dy), begin, args));
                  });
  });
}

Tensor RotaryEmbeddingComposed(const Tensor& x, const Tensor& table, const Tensor& positions,
                               const RotaryOptions& options) {
  const int64_t begin = options.begin, end = EndOf(x, options), H = x.dim(1);
  const int64_t d = H / options.num_heads, half = d / 2;
  const std::vector<float> values = table.ToVector<float>();
  const std::vector<int32_t> at = positions.ToVector<int32_t>();
  // Each column of a head has a pair, another column of that pair, and a sign for the sine.
  std::vector<double> sines, cosines;
  std::vector<int64_t> other;
  const auto is_first = [&](int64_t c) {
    return options.pairs == RotaryPairs::kNeighbours ? c % 2 == 0 : c < half;
  };
  const auto pair_of = [&](int64_t c) {
    return options.pairs == RotaryPairs::kNeighbours ? c / 2 : c % half;
  };
  const int64_t step = options.pairs == RotaryPairs::kNeighbours ? 1 : half;
  for (int64_t c = 0; c < H; ++c) other.push_back(is_first(c % d) ? c + step : c - step);
  for (int64_t r = 0; r < end - begin; ++r) {
    const int64_t position = at[static_cast<size_t>(r) % at.size()];
    for (int64_t c = 0; c < H; ++c) {
      const int64_t sine = position * d + pair_of(c % d);
      sines.push_back((is_first(c % d) ? -1 : 1) * values[static_cast<size_t>(sine)]);
      cosines.push_back(values[static_cast<size_t>(sine + half)]);
    }
  }
  const auto factors = [&](const std::vector<double>& numbers) {
    return Tensor::FromVector(numbers, {end - begin, H}).To(x.dtype()).To(x.device());
  };
  const Tensor turned = SliceRows(x, begin, end);
  const Tensor others = Transpose(GatherRows(Transpose(turned), Tensor::FromVector(other)));
  return ConcatRows({SliceRows(x, 0, begin),
                     Add(Mul(turned, factors(cosines)), Mul(others, factors(sines))),
                     SliceRows(x, end, x.dim(0))});
}

}  // namespace lathe
