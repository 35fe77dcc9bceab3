#include "lathe/core/ops/weighted/weighted_pairs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/weighted_losses_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/weighted/row_weights.h"

namespace lathe {
namespace {

using weighted::At;
using weighted::CheckNumbers;
using weighted::CheckWeights;
using weighted::DataOf;
using weighted::DivisorOf;
using weighted::ForEachRow;
using weighted::Outer;
using weighted::SumOf;

constexpr const char* kBce = "weighted_bce_with_logits";
constexpr const char* kMse = "weighted_mse";

struct Mse {
  static double Value(double p, double t, double, double) { return (p - t) * (p - t); }
  static double Grad(double p, double t, double, double) { return 2 * (p - t); }
};

// With s = sigmoid(x), P = -log s and Q = -log (1 - s), so that (1 - s)^g = e^(-g Q):
//   value = w t e^(-g Q) P + (1 - t) e^(-g P) Q
//   dx    = -w t e^(-g Q) (1 - s + g s P) + (1 - t) e^(-g P) (s + g (1 - s) Q)
struct Bce {
  static double Value(double x, double t, double w, double gamma) {
    const double softplus = std::log1p(std::exp(-std::fabs(x)));
    const double p = (x < 0 ? -x : 0) + softplus, q = (x < 0 ? 0 : x) + softplus;
    if (gamma == 0) return w * t * p + (1 - t) * q;
    return w * t * std::exp(-gamma * q) * p + (1 - t) * std::exp(-gamma * p) * q;
  }
  static double Grad(double x, double t, double w, double gamma) {
    const double s = 1 / (1 + std::exp(-x)), rest = 1 / (1 + std::exp(x));
    if (gamma == 0) return (1 - t) * s - w * t * rest;
    const double softplus = std::log1p(std::exp(-std::fabs(x)));
    const double p = (x < 0 ? -x : 0) + softplus, q = (x < 0 ? 0 : x) + softplus;
    return (1 - t) * std::exp(-gamma * p) * (s + gamma * rest * q) -
           w * t * std::exp(-gamma * q) * (rest + gamma * s * p);
  }
};

WeightedPairs PairsOf(const Tensor& a, const WeightedBceOptions& o) {
  return {.n = a.numel(),
          .columns = a.numel() / std::max<int64_t>(1, a.dim(0)),
          .num_rows = o.num_rows.defined() ? o.num_rows.data<int32_t>() : nullptr,
          .row_weights = DataOf(o.row_weights),
          .positive_weights = DataOf(o.positive_weights),
          .focal_gamma = o.focal_gamma};
}

Tensor PairsOnDevice(const char* op, PairLoss kind, const Tensor& a, const Tensor& b,
                     const WeightedBceOptions& o) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const WeightedLossKernels& kernels = DeviceKernels<WeightedLossKernels>();
  Tensor loss = Tensor::Empty({}, DType::kF32, a.device());
  const Tensor divisor = Tensor::Empty({}, DType::kF32, a.device());
  kernels.pairs(kind, loss.data<float>(), divisor.data<float>(), a.data<float>(), b.data<float>(),
                PairsOf(a, o));
  return Record(
      op, loss, {a}, {a, b},
      [kind, a = a.Detach(), b = b.Detach(), o, divisor, &kernels](BackwardContext& context) {
        Tensor da = Tensor::Empty(a.shape(), DType::kF32, a.device());
        kernels.pairs_grad(kind, da.data<float>(), context.grad_output().data<float>(),
                           divisor.data<float>(), a.data<float>(), b.data<float>(), PairsOf(a, o));
        context.SetGrad(0, da);
      });
}

// A weighted mean over pairs, on the host. `Loss` is Mse or Bce.
template <typename Loss>
Tensor PairsOnHost(const char* op, const Tensor& a_in, const Tensor& b_in,
                   const WeightedBceOptions& o) {
  const int64_t all = a_in.dim(0);
  const int64_t rows =
      o.num_rows.defined() ? std::clamp<int64_t>(o.num_rows.data<int32_t>()[0], 0, all) : all;
  Tensor loss = Tensor::Empty({}, a_in.dtype(), a_in.device());
  double weight = 0;
  for (int64_t i = 0; i < rows; ++i) weight += At(DataOf(o.row_weights), i);
  const WeightedPairs w = PairsOf(a_in, o);
  const double divisor = DivisorOf(weight * static_cast<double>(w.columns));
  DispatchFloat(a_in.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* a = a_in.data<T>();
    const T* b = b_in.data<T>();
    std::vector<double> row_loss(static_cast<size_t>(rows));
    ForEachRow(rows, w.columns, [&](int64_t i) {
      double sum = 0;
      for (int64_t c = 0, k = i * w.columns; c < w.columns; ++c, ++k)
        sum += Loss::Value(a[k], b[k], At(w.positive_weights, c), o.focal_gamma);
      row_loss[i] = At(w.row_weights, i) * sum;
    });
    *loss.data<T>() = static_cast<T>(SumOf(row_loss) / divisor);
  });
  return Record(
      op, loss, {a_in}, {a_in, b_in},
      [op, a_in = a_in.Detach(), b_in = b_in.Detach(), o, rows, divisor](BackwardContext& context) {
        Tensor gradient = Tensor::Zeros(a_in.shape(), a_in.dtype(), a_in.device());
        const double scale = context.grad_output().Item() / divisor;
        const WeightedPairs terms = PairsOf(a_in, o);
        DispatchFloat(a_in.dtype(), op, [&](auto tag) {
          using T = decltype(tag);
          const T* a = a_in.data<T>();
          const T* b = b_in.data<T>();
          T* da = gradient.data<T>();
          ForEachRow(rows, terms.columns, [&](int64_t i) {
            const double of_row = scale * At(terms.row_weights, i);
            for (int64_t c = 0, k = i * terms.columns; c < terms.columns; ++c, ++k) {
              const double positive = At(terms.positive_weights, c);
              da[k] = static_cast<T>(of_row * Loss::Grad(a[k], b[k], positive, o.focal_gamma));
            }
          });
        });
        context.SetGrad(0, gradient);
      });
}

void CheckPairs(const char* op, const Tensor& a, const Tensor& b, const WeightedBceOptions& o) {
  Check(a.ndim() >= 1 && a.shape() == b.shape() && MathDType(a.dtype()) == MathDType(b.dtype()), op,
        "expected targets of shape ", a.shape(), " ", ToString(a.dtype()), " but got ", b.shape(),
        " ", ToString(b.dtype()));
  CheckNumbers(op, a);
  CheckSameDevice(op, a.device(), {b, o.num_rows});
  CheckWeights(op, "row_weights", o.row_weights, a.dim(0), a);
  Check(o.focal_gamma >= 0 && std::isfinite(o.focal_gamma), op,
        "focal_gamma must be at least 0 but is ", o.focal_gamma);
}

// Returns log(1 + e^x).
Tensor Softplus(const Tensor& x) {
  const Tensor magnitude = Add(Relu(x), Relu(Scale(x, -1)));
  return Add(Relu(x), Log(AddScalar(Exp(Scale(magnitude, -1)), 1)));
}

double WeightOfRows(const Tensor& row_weights, int64_t rows) {
  double weight = 0;
  for (int64_t i = 0; i < rows; ++i) weight += At(DataOf(row_weights), i);
  return weight;
}

}  // namespace

Tensor WeightedBceWithLogits(const Tensor& logits, const Tensor& targets,
                             const WeightedBceOptions& options) {
  Check(logits.ndim() == 2, kBce, "logits must have shape [N, C] but have ", logits.shape());
  CheckPairs(kBce, logits, targets, options);
  CheckWeights(kBce, "positive_weights", options.positive_weights, logits.dim(1), logits);
  const Tensor a = Widen(logits), b = Widen(targets);
  if (!a.device().is_cpu()) return PairsOnDevice(kBce, PairLoss::kBceWithLogits, a, b, options);
  return PairsOnHost<Bce>(kBce, a, b, options);
}

Tensor WeightedBceWithLogitsComposed(const Tensor& logits, const Tensor& targets,
                                     const WeightedBceOptions& o) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  const Tensor p = Softplus(Scale(logits, -1)), q = Softplus(logits);  // -log s, -log (1 - s)
  const Tensor ones = Outer({}, {}, rows, columns, logits.dtype());
  const Tensor positive =
      Mul(Mul(Outer({}, o.positive_weights, rows, columns, logits.dtype()), targets),
          Mul(Exp(Scale(q, -o.focal_gamma)), p));
  const Tensor negative = Mul(Sub(ones, targets), Mul(Exp(Scale(p, -o.focal_gamma)), q));
  const Tensor losses =
      Mul(Outer(o.row_weights, {}, rows, columns, logits.dtype()), Add(positive, negative));
  const double weight = WeightOfRows(o.row_weights, rows) * static_cast<double>(columns);
  return Scale(Sum(losses), 1 / DivisorOf(weight));
}

Tensor WeightedMse(const Tensor& pred, const Tensor& target, const Tensor& row_weights,
                   const Tensor& num_rows) {
  const WeightedBceOptions options = {.row_weights = row_weights, .num_rows = num_rows};
  CheckPairs(kMse, pred, target, options);
  const Tensor a = Widen(pred), b = Widen(target);
  if (!a.device().is_cpu()) return PairsOnDevice(kMse, PairLoss::kMse, a, b, options);
  return PairsOnHost<Mse>(kMse, a, b, options);
}

Tensor WeightedMseComposed(const Tensor& pred, const Tensor& target, const Tensor& row_weights) {
  const int64_t rows = pred.dim(0), columns = pred.numel() / std::max<int64_t>(1, rows);
  const Tensor difference = Reshape(Sub(pred, target), {rows, columns});
  const Tensor losses =
      Mul(Outer(row_weights, {}, rows, columns, pred.dtype()), Mul(difference, difference));
  const double weight = WeightOfRows(row_weights, rows) * static_cast<double>(columns);
  return Scale(Sum(losses), 1 / DivisorOf(weight));
}

}  // namespace lathe
