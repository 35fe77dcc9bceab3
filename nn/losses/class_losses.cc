// The losses of classes: negative log-likelihood and cross-entropy.
#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/compare/compare.h"
#include "lathe/core/ops/compare/where.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/indexing/gather.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/view.h"
#include "lathe/nn/losses/losses.h"
#include "lathe/nn/losses/reduction.h"

namespace lathe::nn {
namespace {

using losses::CheckReduction;

void CheckClasses(const char* op, const Tensor& input, const Tensor& target,
                  const ClassOptions& options) {
  Check(input.defined() && input.ndim() == 2 && IsFloating(input.dtype()), op,
        "expected input of shape [N, C] and a floating dtype but got ",
        input.defined() ? ToString(input.shape()) : "an undefined tensor", " ",
        input.defined() ? ToString(input.dtype()) : "");
  Check(target.defined() && target.shape() == Shape{input.dim(0)} && target.dtype() == DType::kI64,
        op, "target must have shape [", input.dim(0), "] int64 but has ",
        target.defined() ? ToString(target.shape()) : "no value", " ",
        target.defined() ? ToString(target.dtype()) : "");
  if (!options.weight.defined()) return;
  Check(options.weight.shape() == Shape{input.dim(1)} && IsFloating(options.weight.dtype()), op,
        "weight must have shape [", input.dim(1), "] and a floating dtype but has ",
        options.weight.shape(), " ", ToString(options.weight.dtype()));
}

// The rows that count, read on the host.
struct CountedRows {
  // [K] i64: the element of each row's label, in input as one column.
  std::vector<int64_t> elements;
  std::vector<int64_t> rows;     // [K] i64: the row
  std::vector<int64_t> places;   // [N] i64: the place of each row among those, or K
  std::vector<double> weights;   // [K] w_t
  std::vector<double> of_class;  // [C] w
  double sum = 0;                // of the weights

  CountedRows(const char* op, const Tensor& input, const Tensor& target,
              const ClassOptions& options) {
    const int64_t classes = input.dim(1);
    const std::vector<int64_t> labels = target.ToVector<int64_t>();
    of_class.assign(static_cast<size_t>(classes), 1);
    if (options.weight.defined()) {
      of_class = options.weight.To(Device{}).To(DType::kF64).ToVector<double>();
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      places.push_back(std::ssize(rows));
      if (labels[i] == options.ignore_index) {
        places.back() = -1;
        continue;
      }
      Check(labels[i] >= 0 && labels[i] < classes, op, "target[", i, "] is ", labels[i],
            ", not in [0, ", classes, ")");
      const auto row = static_cast<int64_t>(i);
      rows.push_back(row);
      elements.push_back(row * classes + labels[i]);
      weights.push_back(of_class[static_cast<size_t>(labels[i])]);
      sum += weights.back();
    }
    for (int64_t& place : places) {
      if (place < 0) place = std::ssize(rows);
    }
  }
};

Tensor Column(const std::vector<double>& values, const Tensor& like) {
  return Tensor::FromVector(values, {std::ssize(values), 1}).To(like.dtype()).To(like.device());
}

// Reduces the losses of the counted rows: [K, 1].
Tensor ReduceRows(const Tensor& losses, const CountedRows& counted, Reduction reduction) {
  if (reduction == Reduction::kSum) return Sum(losses);
  // If nothing counts, the mean is 0 / 0, as in PyTorch.
  if (reduction == Reduction::kMean) {
    return counted.sum == 0 ? Scale(Sum(losses), std::numeric_limits<double>::quiet_NaN())
                            : Scale(Sum(losses), 1 / counted.sum);
  }
  // A row of zero behind the others stands for all ignored ones.
  const Tensor zero = Tensor::Zeros({1, 1}, losses.dtype(), losses.device());
  const Tensor places = Tensor::FromVector(counted.places).To(losses.device());
  return Reshape(GatherRows(ConcatRows({losses, zero}), places), {std::ssize(counted.places)});
}

// Returns -w_t x_t of the counted rows: [K, 1]. x: [N, C].
Tensor LabelLosses(const Tensor& x, const CountedRows& counted) {
  const Tensor elements = Tensor::FromVector(counted.elements).To(x.device());
  const Tensor picked = GatherRows(Reshape(x, {x.numel(), 1}), elements);
  return Scale(Mul(picked, Column(counted.weights, x)), -1);
}

// Returns the loss of logarithms of probabilities x: [N, C] by the formula in losses.h, with labels
// on x's device. Reads nothing back: a label out of range makes its row's loss and weight NaN.
Tensor LossOnDevice(const Tensor& x, const Tensor& target, const ClassOptions& options) {
  const int64_t rows = x.dim(0), classes = x.dim(1);
  const Device device = x.device();
  const Tensor ignored =
      Equal(target, Tensor::FromVector(std::vector<int64_t>{options.ignore_index}).To(device));
  const Tensor labels = MaskedFill(target, ignored, 0);
  const Tensor weights = options.weight.defined() ? options.weight.To(device).To(x.dtype())
                                                  : Tensor::Full({classes}, 1, x.dtype(), device);
  const Tensor of_rows = MaskedFill(IndexSelect(weights, 0, labels), ignored, 0);
  const Tensor picked = Reshape(Gather(x, 1, Unsqueeze(labels, 1)), {rows});
  Tensor losses = Scale(Mul(picked, of_rows), -1);
  if (const double e = options.label_smoothing; e > 0) {
    const Tensor sums = SumLast(Mul(x, Reshape(weights, {1, classes})));
    losses =
        Add(Scale(losses, 1 - e), Scale(Reshape(sums, {rows}), -e / static_cast<double>(classes)));
  }
  losses = MaskedFill(losses, ignored, 0);
  if (options.reduction == Reduction::kNone) return losses;
  return options.reduction == Reduction::kSum ? Sum(losses) : Div(Sum(losses), Sum(of_rows));
}

bool IsOnDevice(const Tensor& x, const Tensor& target) {
  return !x.device().is_cpu() && target.device() == x.device();
}

}  // namespace

Tensor NllLoss(const Tensor& input, const Tensor& target, const ClassOptions& options) {
  constexpr char kOp[] = "nll_loss";
  CheckClasses(kOp, input, target, options);
  Check(options.label_smoothing == 0, kOp, "label_smoothing is for CrossEntropy");
  CheckReduction(kOp, options.reduction);
  if (IsOnDevice(input, target)) return LossOnDevice(Widen(input), target, options);
  const CountedRows counted(kOp, input, target, options);
  return ReduceRows(LabelLosses(Widen(input), counted), counted, options.reduction);
}

Tensor CrossEntropy(const Tensor& input, const Tensor& target, const ClassOptions& options) {
  constexpr char kOp[] = "cross_entropy";
  CheckClasses(kOp, input, target, options);
  Check(options.label_smoothing >= 0 && options.label_smoothing <= 1, kOp,
        "label_smoothing must be from 0 to 1 but is ", options.label_smoothing);
  const Tensor x = Widen(input);
  const double smoothing = options.label_smoothing;
  const bool is_plain = smoothing == 0 && !options.weight.defined();
  if (is_plain && options.reduction == Reduction::kMean && target.device() == x.device()) {
    return lathe::CrossEntropy(x, target, options.ignore_index);  // fused
  }
  CheckReduction(kOp, options.reduction);
  const Tensor logs = LogSoftmaxLast(x);
  if (IsOnDevice(x, target)) return LossOnDevice(logs, target, options);
  const CountedRows counted(kOp, input, target, options);
  Tensor losses = LabelLosses(logs, counted);
  if (smoothing > 0) {
    // The mean over the classes of their weighted logarithms, as one product for all rows.
    const Tensor weights = Reshape(Column(counted.of_class, x), {1, x.dim(1)});
    const Tensor of_rows =
        Scale(SumLast(Mul(logs, weights)), -smoothing / static_cast<double>(x.dim(1)));
    const Tensor rows = Tensor::FromVector(counted.rows).To(x.device());
    losses = Add(Scale(losses, 1 - smoothing), GatherRows(of_rows, rows));
  }
  return ReduceRows(losses, counted, options.reduction);
}

}  // namespace lathe::nn
