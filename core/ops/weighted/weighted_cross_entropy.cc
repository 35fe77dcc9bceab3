#include "lathe/core/ops/weighted/weighted_cross_entropy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/weighted_losses_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
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

constexpr const char* kCrossEntropy = "weighted_cross_entropy";

void CheckCrossEntropy(const Tensor& logits, const Tensor& labels,
                       const WeightedCrossEntropyOptions& o) {
  Check(logits.ndim() == 2, kCrossEntropy, "logits must have shape [N, C] but have ",
        logits.shape());
  CheckNumbers(kCrossEntropy, logits);
  Check(labels.shape() == Shape{logits.dim(0)} && labels.dtype() == DType::kI64, kCrossEntropy,
        "labels must have shape [", logits.dim(0), "] int64 but have ", labels.shape(), " ",
        ToString(labels.dtype()));
  CheckSameDevice(kCrossEntropy, logits.device(), {labels});
  CheckWeights(kCrossEntropy, "class_weights", o.class_weights, logits.dim(1), logits);
  CheckWeights(kCrossEntropy, "row_weights", o.row_weights, logits.dim(0), logits);
  Check(o.label_smoothing >= 0 && o.label_smoothing <= 1, kCrossEntropy,
        "label_smoothing must be from 0 to 1 but is ", o.label_smoothing);
  Check(o.focal_gamma >= 0 && std::isfinite(o.focal_gamma), kCrossEntropy,
        "focal_gamma must be at least 0 but is ", o.focal_gamma);
}

// Returns the sum of the weights of all labels that count.
double WeightOfLabels(const Tensor& labels, const WeightedCrossEntropyOptions& o) {
  const float* of_class = DataOf(o.class_weights);
  const float* of_row = DataOf(o.row_weights);
  double weight = 0;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    const int64_t label = labels.data<int64_t>()[i];
    if (!IsIgnored(label, o.ignore_index)) weight += At(of_row, i) * At(of_class, label);
  }
  return weight;
}

WeightedRows RowsOf(const Tensor& logits, const WeightedCrossEntropyOptions& o) {
  return {.rows = logits.dim(0),
          .classes = logits.dim(1),
          .ignore_index = o.ignore_index,
          .class_weights = DataOf(o.class_weights),
          .row_weights = DataOf(o.row_weights),
          .label_smoothing = o.label_smoothing,
          .focal_gamma = o.focal_gamma};
}

Tensor CrossEntropyOnDevice(const Tensor& logits, const Tensor& labels,
                            const WeightedCrossEntropyOptions& o) {
  const AllocationTag allocation_tag = AllocationTag::Op(kCrossEntropy);
  const WeightedLossKernels& kernels = DeviceKernels<WeightedLossKernels>();
  Tensor loss = Tensor::Empty({}, DType::kF32, logits.device());
  const Tensor saved = Tensor::Empty({2 * logits.dim(0) + 1}, DType::kF32, logits.device());
  kernels.cross_entropy(loss.data<float>(), saved.data<float>(), logits.data<float>(),
                        labels.data<int64_t>(), RowsOf(logits, o));
  return Record(kCrossEntropy, loss, {logits}, {logits, labels},
                [z = logits.Detach(), labels = labels.Detach(), saved, o,
                 &kernels](BackwardContext& context) {
                  Tensor dz = Tensor::Empty(z.shape(), DType::kF32, z.device());
                  kernels.cross_entropy_grad(dz.data<float>(), context.grad_output().data<float>(),
                                             saved.data<float>(), z.data<float>(),
                                             labels.data<int64_t>(), RowsOf(z, o));
                  context.SetGrad(0, dz);
                });
}

// A row of logits on the host, and its maximum and the logarithm of sum_c e^(z_c - maximum).
template <typename T>
struct LogitRow {
  const T* z;
  int64_t classes;
  double max = -std::numeric_limits<double>::infinity(), log_sum = 0;

  LogitRow(const T* row, int64_t width) : z(row), classes(width) {
    // A NaN in the row may not become the maximum, but it makes the sum NaN.
    for (int64_t c = 0; c < classes; ++c) max = row[c] <= max ? max : static_cast<double>(row[c]);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(z[c] - max);
    log_sum = std::log(sum);
  }
  double LogProbability(int64_t c) const { return z[c] - max - log_sum; }
};

template <typename T>
double LossOfRow(const LogitRow<T>& row, int64_t label, const WeightedRows& w) {
  const double e = w.label_smoothing, log_p = row.LogProbability(label);
  const double focal = w.focal_gamma > 0 ? std::pow(-std::expm1(log_p), w.focal_gamma) : 1;
  double loss = -(1 - e) * At(w.class_weights, label) * focal * log_p;
  if (e == 0) return loss;
  double smooth = 0;
  for (int64_t c = 0; c < row.classes; ++c)
    smooth += At(w.class_weights, c) * row.LogProbability(c);
  return loss - e / static_cast<double>(row.classes) * smooth;
}

// Sets dz to `scale` times the derivative of the row's loss. With q = 1 - p_y and W = sum_c w_c:
//   dz_c = (1 - e) w_y q^g (1 + g p_y (-log p_y) / q) (p_c - [c = y]) + e/C (W p_c - w_c)
// The quotient (-log p_y) / q tends to 1 where q tends to 0.
template <typename T>
void GradOfRow(const LogitRow<T>& row, int64_t label, const WeightedRows& w, double scale, T* dz) {
  const double e = w.label_smoothing, gamma = w.focal_gamma, log_p = row.LogProbability(label);
  double hard = (1 - e) * At(w.class_weights, label);
  if (gamma > 0) {
    const double q = -std::expm1(log_p), quotient = q > 0 ? -log_p / q : 1;
    hard *= std::pow(q, gamma) * (1 + gamma * std::exp(log_p) * quotient);
  }
  const double smooth = e / static_cast<double>(row.classes);
  double sum = 0;  // W
  for (int64_t c = 0; smooth > 0 && c < row.classes; ++c) sum += At(w.class_weights, c);
  for (int64_t c = 0; c < row.classes; ++c) {
    const double p = std::exp(row.LogProbability(c));
    double d = hard * (p - (c == label ? 1 : 0));
    if (smooth > 0) d += smooth * (sum * p - At(w.class_weights, c));
    dz[c] = static_cast<T>(scale * d);
  }
}

}  // namespace

Tensor WeightedCrossEntropy(const Tensor& logits_in, const Tensor& labels,
                            const WeightedCrossEntropyOptions& options) {
  CheckCrossEntropy(logits_in, labels, options);
  const Tensor logits = Widen(logits_in);
  if (!logits.device().is_cpu()) return CrossEntropyOnDevice(logits, labels, options);
  const int64_t rows = logits.dim(0), classes = logits.dim(1);
  CheckLabels(labels, classes, options.ignore_index);
  const double divisor = DivisorOf(WeightOfLabels(labels, options));
  Tensor loss = Tensor::Empty({}, logits.dtype(), logits.device());
  DispatchFloat(logits.dtype(), kCrossEntropy, [&](auto tag) {
    using T = decltype(tag);
    const T* z = logits.data<T>();
    const int64_t* label = labels.data<int64_t>();
    const WeightedRows w = RowsOf(logits, options);
    std::vector<double> row_loss(static_cast<size_t>(rows), 0.0);
    ForEachRow(rows, classes, [&](int64_t i) {
      if (IsIgnored(label[i], w.ignore_index)) return;
      const LogitRow<T> row(z + i * classes, classes);
      row_loss[i] = At(w.row_weights, i) * LossOfRow(row, label[i], w);
    });
    *loss.data<T>() = static_cast<T>(SumOf(row_loss) / divisor);
  });
  return Record(kCrossEntropy, loss, {logits}, {logits, labels},
                [z_in = logits.Detach(), labels = labels.Detach(), options,
                 divisor](BackwardContext& context) {
                  Tensor dlogits = Tensor::Zeros(z_in.shape(), z_in.dtype(), z_in.device());
                  const double scale = context.grad_output().Item() / divisor;
                  DispatchFloat(z_in.dtype(), kCrossEntropy, [&](auto tag) {
                    using T = decltype(tag);
                    const T* z = z_in.data<T>();
                    T* dz = dlogits.data<T>();
                    const int64_t* label = labels.data<int64_t>();
                    const WeightedRows w = RowsOf(z_in, options);
                    ForEachRow(w.rows, w.classes, [&](int64_t i) {
                      if (IsIgnored(label[i], w.ignore_index)) return;
                      const LogitRow<T> row(z + i * w.classes, w.classes);
                      GradOfRow(row, label[i], w, scale * At(w.row_weights, i), dz + i * w.classes);
                    });
                  });
                  context.SetGrad(0, dlogits);
                });
}

Tensor WeightedCrossEntropyComposed(const Tensor& logits, const Tensor& labels,
                                    const WeightedCrossEntropyOptions& o) {
  CheckCrossEntropy(logits, labels, o);
  const int64_t rows = logits.dim(0), classes = logits.dim(1);
  CheckLabels(labels, classes, o.ignore_index);
  const std::vector<double> weights =
      Outer(o.row_weights, o.class_weights, rows, classes, DType::kF64).ToVector<double>();
  std::vector<double> hard(weights.size(), 0.0), smooth(weights.size(), 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t label = labels.data<int64_t>()[i];
    if (IsIgnored(label, o.ignore_index)) continue;
    hard[i * classes + label] = -(1 - o.label_smoothing) * weights[i * classes + label];
    for (int64_t c = 0; c < classes; ++c) {
      smooth[i * classes + c] =
          -o.label_smoothing / static_cast<double>(classes) * weights[i * classes + c];
    }
  }
  const auto constant = [&](const std::vector<double>& values) {
    return Tensor::FromVector(values, {rows, classes}).To(logits.dtype());
  };
  const Tensor log_p = LogSoftmaxLast(logits);
  Tensor factor = constant(hard);
  if (o.focal_gamma > 0) {
    const Tensor rest = AddScalar(Scale(Exp(log_p), -1), 1);
    factor = Mul(factor, Exp(Scale(Log(rest), o.focal_gamma)));
  }
  const Tensor sum = Add(Sum(Mul(factor, log_p)), Sum(Mul(constant(smooth), log_p)));
  return Scale(sum, 1 / DivisorOf(WeightOfLabels(labels, o)));
}

}  // namespace lathe
