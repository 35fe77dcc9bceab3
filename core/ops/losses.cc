#include "lathe/core/ops/losses.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/losses_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr int64_t kChunk = 4096;

bool OnHost(const Tensor& t) { return t.device().is_cpu(); }

// Returns sum_i f(a_i, b_i) / denominator, summed in double and in a fixed order. Host only.
template <typename F>
Tensor MeanOfPairs(const char* op, const Tensor& a, const Tensor& b, double denominator, F f) {
  Tensor loss = Tensor::Empty({}, a.dtype(), a.device());
  DispatchFloat(a.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    const int64_t n = a.numel(), chunks = DivideUp(n, kChunk);
    std::vector<double> partial(static_cast<size_t>(chunks));
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t c = 0; c < chunks; ++c) {
      double sum = 0;
      for (int64_t i = c * kChunk; i < std::min((c + 1) * kChunk, n); ++i) {
        sum += f(left[i], right[i]);
      }
      partial[c] = sum;
    }
    double sum = 0;
    for (double s : partial) sum += s;
    *loss.data<T>() = static_cast<T>(sum / denominator);
  });
  return loss;
}

// Returns factor * f(a_i, b_i). Host only.
template <typename F>
Tensor ScaledPairs(const char* op, const Tensor& a, const Tensor& b, double factor, F f) {
  Tensor out = Tensor::Empty(a.shape(), a.dtype(), a.device());
  DispatchFloat(a.dtype(), op, [&](auto tag) {
    using T = decltype(tag);
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    T* result = out.data<T>();
    const int64_t n = a.numel();
    const T scale = static_cast<T>(factor);
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t i = 0; i < n; ++i) result[i] = scale * f(left[i], right[i]);
  });
  return out;
}

// Throws unless both lie on the host or on one device. On a device `a` must not be float64.
void CheckDevices(const char* op, const Tensor& a, const Tensor& b) {
  Check(a.device() == b.device(), op, "expected both tensors on one device but got ",
        ToString(a.device()), " and ", ToString(b.device()));
  Check(OnHost(a) || MathDType(a.dtype()) == DType::kF32, op, "expected float32 on ",
        ToString(a.device()), " but got ", ToString(a.dtype()));
}

void CheckPair(const char* op, const Tensor& a, const Tensor& b) {
  Check(a.shape() == b.shape() && MathDType(a.dtype()) == MathDType(b.dtype()), op,
        "expected target of shape ", a.shape(), " ", ToString(a.dtype()), " but got ", b.shape(),
        " ", ToString(b.dtype()));
  CheckDevices(op, a, b);
}

double DenominatorOf(double denominator, int64_t count) {
  return denominator != 0 ? denominator : static_cast<double>(count);
}

constexpr const char* kCrossEntropy = "cross_entropy";

// Returns what divides a mean over `count` labels. See kIgnoreNegative.
int64_t LabelsThatCount(int64_t count, int64_t ignore_index) {
  return ignore_index == kIgnoreNegative ? std::max<int64_t>(count, 1) : count;
}

void CheckLogits(const Tensor& logits, const Tensor& labels) {
  Check(logits.ndim() == 2, kCrossEntropy, "logits must have shape [N, C] but have ",
        logits.shape());
  Check(labels.shape() == Shape{logits.dim(0)}, kCrossEntropy, "labels must have shape [",
        logits.dim(0), "] but have ", labels.shape());
  Check(labels.dtype() == DType::kI64, kCrossEntropy, "labels must be int64 but are ",
        ToString(labels.dtype()));
  CheckDevices(kCrossEntropy, logits, labels);
}

// Computes CrossEntropy on a device. Nothing is read back. A label out of range makes the loss and
// its row's gradient NaN.
Tensor CrossEntropyOnDevice(const Tensor& logits, const Tensor& labels, int64_t ignore_index,
                            double denominator) {
  const AllocationTag allocation_tag = AllocationTag::Op(kCrossEntropy);
  const LossKernels& kernels = DeviceKernels<LossKernels>();
  const int64_t rows = logits.dim(0), classes = logits.dim(1);
  Tensor loss = Tensor::Empty({}, DType::kF32, logits.device());
  const Tensor saved = Tensor::Empty({2 * rows + 1}, DType::kF32, logits.device());
  kernels.cross_entropy(loss.data<float>(), saved.data<float>(), logits.data<float>(),
                        labels.data<int64_t>(), rows, classes, ignore_index, denominator);
  return Record(kCrossEntropy, loss, {logits}, {logits, labels},
                [z = logits.Detach(), labels = labels.Detach(), saved, ignore_index,
                 &kernels](BackwardContext& context) {
                  Tensor dz = Tensor::Empty(z.shape(), DType::kF32, z.device());
                  kernels.cross_entropy_grad(
                      dz.data<float>(), context.grad_output().data<float>(), saved.data<float>(),
                      z.data<float>(), labels.data<int64_t>(), z.dim(0), z.dim(1), ignore_index);
                  context.SetGrad(0, dz);
                });
}

// Returns a mean over pairs (a_i, b_i), on a device.
Tensor PairLossOnDevice(const char* op, PairLoss kind, const Tensor& a, const Tensor& b,
                        double denominator, const Tensor& num_rows) {
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  const LossKernels& kernels = DeviceKernels<LossKernels>();
  PairCount count = {.n = a.numel(), .columns = 0, .rows = nullptr, .denominator = denominator};
  if (num_rows.defined()) {
    CheckSameDevice(op, a.device(), {num_rows});
    count.columns = a.numel() / std::max<int64_t>(1, a.dim(0));
    count.rows = num_rows.data<int32_t>();
  }
  Tensor loss = Tensor::Empty({}, DType::kF32, a.device());
  kernels.pairs(kind, loss.data<float>(), a.data<float>(), b.data<float>(), count);
  return Record(
      op, loss, {a, b}, {a, b},
      [kind, a = a.Detach(), b = b.Detach(), count, num_rows, &kernels](BackwardContext& context) {
        for (const size_t i : {0u, 1u}) {
          if (!context.NeedsInputGrad(i)) continue;
          Tensor gradient = Tensor::Empty(a.shape(), DType::kF32, a.device());
          kernels.pairs_grad(kind, /*first=*/i == 0, gradient.data<float>(),
                             context.grad_output().data<float>(), a.data<float>(), b.data<float>(),
                             count);
          context.SetGrad(i, gradient);
        }
      });
}

// Returns the rows of x that count, on the host.
Tensor Counted(const char* op, const Tensor& x, const Tensor& num_rows) {
  CheckSameDevice(op, x.device(), {num_rows});
  return SliceRows(x, 0, std::clamp<int64_t>(num_rows.data<int32_t>()[0], 0, x.dim(0)));
}

}  // namespace

int64_t CheckLabels(const Tensor& labels, int64_t classes, int64_t ignore_index) {
  int64_t count = 0, row = -1;
  for (const int64_t label : labels.values<int64_t>()) {
    ++row;
    if (IsIgnored(label, ignore_index)) continue;
    Check(label >= 0 && label < classes, kCrossEntropy, "the label of row ", row, " is ", label,
          " but there are ", classes, " classes");
    ++count;
  }
  return count;
}

// With m_i = max_c z_ic and lse_i = m_i + log sum_c e^(z_ic - m_i):
//   loss = sum_i (lse_i - z_i,label_i) / n;  dz_ic = dloss / n (e^(z_ic - lse_i) - [c = label_i])
// Rows that are ignored add nothing and get a gradient of 0.
Tensor CrossEntropy(const Tensor& logits_in, const Tensor& labels, int64_t ignore_index,
                    double denominator) {
  CheckLogits(logits_in, labels);
  const Tensor logits = Widen(logits_in);
  if (!OnHost(logits)) return CrossEntropyOnDevice(logits, labels, ignore_index, denominator);
  const int64_t count = CheckLabels(labels, logits.dim(1), ignore_index);
  const double divisor = DenominatorOf(denominator, LabelsThatCount(count, ignore_index));
  const int64_t rows = logits.dim(0), classes = logits.dim(1);
  Tensor loss = Tensor::Empty({}, logits.dtype(), logits.device());
  Tensor max_and_log_sum = Tensor::Empty({rows, 2}, DType::kF64, logits.device());
  DispatchFloat(logits.dtype(), "cross_entropy", [&](auto tag) {
    using T = decltype(tag);
    const T* z = logits.data<T>();
    const int64_t* label = labels.data<int64_t>();
    double* saved = max_and_log_sum.data<double>();
    std::vector<double> row_loss(static_cast<size_t>(rows), 0.0);
#pragma omp parallel for schedule(static) if (rows * classes > kParallelSize)
    for (int64_t i = 0; i < rows; ++i) {
      if (IsIgnored(label[i], ignore_index)) continue;
      const T* row = z + i * classes;
      T max = -std::numeric_limits<T>::infinity();
      // A NaN in the row may not become the maximum, but it makes the sum below NaN.
      for (int64_t c = 0; c < classes; ++c) max = row[c] <= max ? max : row[c];
      double sum = 0;
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - max);
      saved[2 * i] = max;
      saved[2 * i + 1] = std::log(sum);
      row_loss[i] = (static_cast<double>(max) - row[label[i]]) + saved[2 * i + 1];
    }
    const double sum = std::accumulate(row_loss.begin(), row_loss.end(), 0.0);
    *loss.data<T>() = static_cast<T>(sum / divisor);
  });
  return Record("cross_entropy", loss, {logits}, {logits, labels},
                [z_in = logits.Detach(), labels = labels.Detach(), max_and_log_sum, ignore_index,
                 divisor](BackwardContext& context) {
                  const int64_t n = z_in.dim(0), width = z_in.dim(1);
                  Tensor dlogits = Tensor::Zeros(z_in.shape(), z_in.dtype(), z_in.device());
                  const double factor = context.grad_output().Item() / divisor;
                  DispatchFloat(z_in.dtype(), "cross_entropy", [&](auto tag) {
                    using T = decltype(tag);
                    const T* z = z_in.data<T>();
                    const int64_t* label = labels.data<int64_t>();
                    const double* saved = max_and_log_sum.data<double>();
                    T* dz = dlogits.data<T>();
                    const T scale = static_cast<T>(factor);
#pragma omp parallel for schedule(static) if (n * width > kParallelSize)
                    for (int64_t i = 0; i < n; ++i) {
                      if (IsIgnored(label[i], ignore_index)) continue;
                      const T max = static_cast<T>(saved[2 * i]);
                      const T log_sum = static_cast<T>(saved[2 * i + 1]);
                      T* row = dz + i * width;
                      for (int64_t c = 0; c < width; ++c) {
                        row[c] = scale * std::exp(z[i * width + c] - max - log_sum);
                      }
                      row[label[i]] -= scale;
                    }
                  });
                  context.SetGrad(0, dlogits);
                });
}

Tensor CrossEntropyComposed(const Tensor& logits, const Tensor& labels, int64_t ignore_index,
                            double denominator) {
  CheckLogits(logits, labels);
  const int64_t classes = logits.dim(1), count = CheckLabels(labels, classes, ignore_index);
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < labels.numel(); ++i) {
    const int64_t label = labels.data<int64_t>()[i];
    if (!IsIgnored(label, ignore_index)) taken.push_back(i * classes + label);
  }
  const Tensor log_probabilities = Reshape(LogSoftmaxLast(logits), {logits.numel(), 1});
  const Tensor of_labels = GatherRows(log_probabilities, Tensor::FromVector(taken));
  return Scale(
      Div(Sum(of_labels),
          Tensor::Full({}, DenominatorOf(denominator, LabelsThatCount(count, ignore_index)),
                       logits.dtype(), logits.device())),
      -1);
}

namespace {

// loss = -sum_i a_i b_i / n;  da_i = -dloss / n b_i,  db_i = -dloss / n a_i
Tensor NegativeMeanProduct(const Tensor& a, const Tensor& b, double denominator,
                           const Tensor& num_rows) {
  constexpr const char* kOp = "soft_cross_entropy";
  if (!OnHost(a)) {
    return PairLossOnDevice(kOp, PairLoss::kNegativeProduct, a, b, denominator, num_rows);
  }
  if (num_rows.defined()) {
    return NegativeMeanProduct(Counted(kOp, a, num_rows), Counted(kOp, b, num_rows), denominator,
                               {});
  }
  const double divisor = DenominatorOf(denominator, a.numel());
  const Tensor loss = MeanOfPairs(kOp, a, b, divisor, [](double u, double v) { return -u * v; });
  return Record(kOp, loss, {a, b}, {a, b},
                [a = a.Detach(), b = b.Detach(), divisor](BackwardContext& context) {
                  const double factor = -context.grad_output().Item() / divisor;
                  if (context.NeedsInputGrad(0)) context.SetGrad(0, Scale(b, factor));
                  if (context.NeedsInputGrad(1)) context.SetGrad(1, Scale(a, factor));
                });
}

}  // namespace

// A mean over all elements times their number in a row is the mean over rows.
Tensor SoftCrossEntropy(const Tensor& logits, const Tensor& targets, double denominator,
                        const Tensor& num_rows) {
  Check(logits.ndim() == 2, "soft_cross_entropy", "logits must have shape [N, C] but have ",
        logits.shape());
  CheckPair("soft_cross_entropy", logits, targets);
  const Tensor mean =
      NegativeMeanProduct(LogSoftmaxLast(Widen(logits)), Widen(targets), denominator, num_rows);
  return denominator != 0 ? mean : Scale(mean, static_cast<double>(logits.dim(1)));
}

Tensor SoftCrossEntropyComposed(const Tensor& logits, const Tensor& targets, double denominator) {
  const Tensor sum = Sum(Mul(LogSoftmaxLast(logits), targets));
  return Div(sum, Tensor::Full({}, -DenominatorOf(denominator, logits.dim(0)), logits.dtype(),
                               logits.device()));
}

// loss = sum_i (p_i - t_i)^2 / n;  dp_i = 2 dloss / n (p_i - t_i),  dt_i = -dp_i
Tensor MseLoss(const Tensor& pred_in, const Tensor& target_in, double denominator,
               const Tensor& num_rows) {
  constexpr const char* kOp = "mse_loss";
  CheckPair(kOp, pred_in, target_in);
  const Tensor pred = Widen(pred_in), target = Widen(target_in);
  if (!OnHost(pred)) {
    return PairLossOnDevice(kOp, PairLoss::kMse, pred, target, denominator, num_rows);
  }
  if (num_rows.defined()) {
    return MseLoss(Counted(kOp, pred, num_rows), Counted(kOp, target, num_rows), denominator);
  }
  const double divisor = DenominatorOf(denominator, pred.numel());
  Tensor loss = MeanOfPairs("mse_loss", pred, target, divisor,
                            [](double p, double t) { return (p - t) * (p - t); });
  return Record(
      "mse_loss", loss, {pred, target}, {pred, target},
      [pred = pred.Detach(), target = target.Detach(), divisor](BackwardContext& context) {
        const double factor = 2 * context.grad_output().Item() / divisor;
        const auto difference = [](auto p, auto t) { return p - t; };
        if (context.NeedsInputGrad(0)) {
          context.SetGrad(0, ScaledPairs("mse_loss", pred, target, factor, difference));
        }
        if (context.NeedsInputGrad(1)) {
          context.SetGrad(1, ScaledPairs("mse_loss", pred, target, -factor, difference));
        }
      });
}

Tensor MseLossComposed(const Tensor& pred, const Tensor& target, double denominator) {
  const Tensor difference = Sub(pred, target);
  return Div(
      Sum(Mul(difference, difference)),
      Tensor::Full({}, DenominatorOf(denominator, pred.numel()), pred.dtype(), pred.device()));
}

// This form neither overflows nor cancels. With -log s(x) = max(-x, 0) + log(1 + e^-|x|):
//   loss = sum_i (max(x_i, 0) - x_i t_i + log(1 + e^-|x_i|)) / n
//   dx_i = dloss / n (s(x_i) - t_i),  dt_i = -dloss / n x_i
Tensor BceWithLogitsLoss(const Tensor& logits_in, const Tensor& targets_in, double denominator,
                         const Tensor& num_rows) {
  constexpr const char* kOp = "bce_with_logits_loss";
  CheckPair(kOp, logits_in, targets_in);
  const Tensor logits = Widen(logits_in), targets = Widen(targets_in);
  if (!OnHost(logits)) {
    return PairLossOnDevice(kOp, PairLoss::kBceWithLogits, logits, targets, denominator, num_rows);
  }
  if (num_rows.defined()) {
    return BceWithLogitsLoss(Counted(kOp, logits, num_rows), Counted(kOp, targets, num_rows),
                             denominator);
  }
  const double divisor = DenominatorOf(denominator, logits.numel());
  Tensor loss =
      MeanOfPairs("bce_with_logits_loss", logits, targets, divisor, [](double x, double t) {
        return (x < 0 ? 0 : x) - x * t + std::log1p(std::exp(-std::fabs(x)));
      });
  return Record(
      "bce_with_logits_loss", loss, {logits, targets}, {logits, targets},
      [logits = logits.Detach(), targets = targets.Detach(), divisor](BackwardContext& context) {
        const double factor = context.grad_output().Item() / divisor;
        if (context.NeedsInputGrad(0)) {
          context.SetGrad(0,
                          ScaledPairs("bce_with_logits_loss", logits, targets, factor,
                                      [](auto x, auto t) { return 1 / (1 + std::exp(-x)) - t; }));
        }
        if (context.NeedsInputGrad(1)) context.SetGrad(1, Scale(logits, -factor));
      });
}

Tensor BceWithLogitsLossComposed(const Tensor& logits, const Tensor& targets, double denominator) {
  const Tensor magnitude = Add(Relu(logits), Relu(Scale(logits, -1)));
  const Tensor softplus = Log(AddScalar(Exp(Scale(magnitude, -1)), 1));
  const Tensor losses = Add(Sub(Relu(logits), Mul(logits, targets)), softplus);
  return Div(Sum(losses), Tensor::Full({}, DenominatorOf(denominator, logits.numel()),
                                       logits.dtype(), logits.device()));
}

}  // namespace lathe
