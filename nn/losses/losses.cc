#include "lathe/nn/losses/losses.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/nn/losses/reduction.h"

namespace lathe::nn {

using losses::CheckPair;
using losses::Reduced;

namespace {

Tensor Square(const Tensor& x) { return Mul(x, x); }

// The smallest normal number of x's dtype, float32 or float64.
double Tiny(const Tensor& x) {
  return x.dtype() == DType::kF64 ? std::numeric_limits<double>::min()
                                  : std::numeric_limits<float>::min();
}

// ln(1 - x) for x up to 1, also for tiny x. It is ln r + (1 - x - r) / r, where r is 1 - x rounded.
Tensor LogOfRest(const Tensor& x) {
  const Tensor r = AddScalar(Neg(x), 1);
  const Tensor lost = Sub(Neg(AddScalar(r, -1)), x);  // exactly
  return Add(Log(r), Div(lost, Clamp(r, {.min = Tiny(x)})));
}

// Throws if an element is below 0 or above 1. NaN passes, and a device's elements do, too.
void CheckProbabilities(const char* op, const char* name, const Tensor& x) {
  if (!x.device().is_cpu()) return;
  const std::vector<double> values = x.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    Check(!(values[i] < 0 || values[i] > 1), op, name, " must be from 0 to 1 but element ", i,
          " is ", values[i]);
  }
}

}  // namespace

Tensor L1Loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  CheckPair("l1_loss", input, target);
  return Reduced("l1_loss", Abs(Sub(Widen(input), Widen(target))), reduction);
}

// With d = x - t, and c = d cut to [-beta, beta], the loss is c / beta (d - c / 2) everywhere.
Tensor SmoothL1Loss(const Tensor& input, const Tensor& target, const SmoothL1Options& options) {
  constexpr char kOp[] = "smooth_l1_loss";
  CheckPair(kOp, input, target);
  Check(options.beta >= 0 && std::isfinite(options.beta), kOp, "beta must be at least 0 but is ",
        options.beta);
  const Tensor d = Sub(Widen(input), Widen(target));
  if (options.beta < Tiny(d)) return L1Loss(input, target, options.reduction);
  const Tensor c = Clamp(d, {.min = -options.beta, .max = options.beta});
  return Reduced(kOp, Mul(Div(c, options.beta), Sub(d, Scale(c, 0.5))), options.reduction);
}

Tensor MseLoss(const Tensor& input, const Tensor& target, Reduction reduction) {
  CheckPair("mse_loss", input, target);
  const Tensor x = Widen(input), t = Widen(target);
  if (reduction == Reduction::kMean && !t.requires_grad() && x.numel() > 0) {
    return lathe::MseLoss(x, t);
  }
  return Reduced("mse_loss", Square(Sub(x, t)), reduction);
}

Tensor BceLoss(const Tensor& input, const Tensor& target, Reduction reduction) {
  constexpr char kOp[] = "bce_loss";
  CheckPair(kOp, input, target);
  CheckProbabilities(kOp, "input", input);
  CheckProbabilities(kOp, "target", target);
  const Tensor x = Widen(input), t = Widen(target).Detach();
  Tensor losses;
  {
    const NoGradGuard no_grad;
    const ClampOptions from = {.min = -100};
    const Tensor other = AddScalar(Scale(t, -1), 1);
    losses = Neg(Add(Mul(t, Clamp(Log(x), from)), Mul(other, Clamp(LogOfRest(x), from))));
  }
  // dx = dy (x - t) / max(x (1 - x), 1e-12)
  losses = Record(kOp, losses, {x}, {x, t}, [x = x.Detach(), t](BackwardContext& context) {
    const Tensor variance = Clamp(Mul(x, AddScalar(Neg(x), 1)), {.min = 1e-12});
    context.SetGrad(0, Mul(context.grad_output(), Div(Sub(x, t), variance)));
  });
  return Reduced(kOp, losses, reduction);
}

// log sigmoid(x) and log sigmoid(-x) are the two columns of log_softmax([x, 0]).
Tensor BceWithLogitsLoss(const Tensor& input, const Tensor& target,
                         const BceWithLogitsOptions& options) {
  constexpr char kOp[] = "bce_with_logits_loss";
  CheckPair(kOp, input, target);
  const Tensor x = Widen(input), t = Widen(target);
  const auto weights_like = [&](const char* name, const Tensor& weights, const Shape& shape) {
    Check(weights.shape() == shape && weights.device() == x.device(), kOp, name,
          " must have shape ", shape, " and lie on ", ToString(x.device()), " but has ",
          weights.shape(), " on ", ToString(weights.device()));
    Check(IsFloating(weights.dtype()), kOp, name, " must have a floating dtype but has ",
          ToString(weights.dtype()));
    return Cast(weights, x.dtype());
  };
  const Tensor zeros = Tensor::Zeros({x.numel(), 1}, x.dtype(), x.device());
  const Tensor logs = LogSoftmaxLast(ConcatColumns({Reshape(x, {x.numel(), 1}), zeros}));
  Tensor of_one = Mul(t, Reshape(SliceColumns(logs, 0, 1), x.shape()));
  const Tensor of_zero =
      Mul(AddScalar(Scale(t, -1), 1), Reshape(SliceColumns(logs, 1, 2), x.shape()));
  if (options.pos_weight.defined()) {
    Check(x.ndim() >= 1, kOp, "pos_weight needs inputs of shape [..., C] but got a scalar");
    of_one = Mul(of_one, weights_like("pos_weight", options.pos_weight, {x.dim(-1)}));
  }
  Tensor losses = Scale(Add(of_one, of_zero), -1);
  if (options.weight.defined()) {
    losses = Mul(losses, weights_like("weight", options.weight, x.shape()));
  }
  return Reduced(kOp, losses, options.reduction);
}

Tensor KlDivLoss(const Tensor& input, const Tensor& target, const KlDivOptions& options) {
  constexpr char kOp[] = "kl_div_loss";
  CheckPair(kOp, input, target);
  const Tensor x = Widen(input), t = Widen(target);
  Tensor losses;
  if (options.log_target) {
    losses = Mul(Exp(t), Sub(t, x));
  } else {
    // The smallest number keeps 0 log 0 finite, so that it is 0.
    losses = Mul(t, Sub(Log(Clamp(t, {.min = Tiny(t)})), x));
  }
  if (options.reduction != Reduction::kBatchMean) return Reduced(kOp, losses, options.reduction);
  Check(x.ndim() >= 1 && x.dim(0) > 0, kOp, "kBatchMean needs at least one row but got shape ",
        x.shape());
  return Scale(Sum(losses), 1 / static_cast<double>(x.dim(0)));
}

namespace {

// Throws unless a and b are [N, D] and fit each other.
void CheckRows(const char* op, const Tensor& a, const Tensor& b) {
  CheckPair(op, a, b);
  Check(a.ndim() == 2, op, "expected shape [N, D] but got ", a.shape());
}

// [N, 1] -> [N].
Tensor Flat(const Tensor& column) { return Reshape(column, {column.numel()}); }

}  // namespace

Tensor CosineSimilarity(const Tensor& a, const Tensor& b, double eps) {
  CheckRows("cosine_similarity", a, b);
  Check(eps > 0, "cosine_similarity", "eps must be above 0 but is ", eps);
  const Tensor x = Widen(a), y = Widen(b);
  // max(|a|, eps) is the root of max(a^2, eps^2).
  const auto norm = [&](const Tensor& v) {
    return Sqrt(Clamp(SumLast(Square(v)), {.min = eps * eps}));
  };
  return Flat(Div(SumLast(Mul(x, y)), Mul(norm(x), norm(y))));
}

// PyTorch adds 1e-12 to both sums of squares here.
Tensor CosineEmbeddingLoss(const Tensor& a, const Tensor& b, const Tensor& y,
                           const CosineEmbeddingOptions& options) {
  constexpr char kOp[] = "cosine_embedding_loss";
  CheckRows(kOp, a, b);
  Check(y.shape() == Shape{a.dim(0)}, kOp, "y must have shape [", a.dim(0), "] but has ",
        y.shape());
  Check(y.device().is_cpu() || y.device() == a.device(), kOp, "expected y on ",
        ToString(a.device()), " but got it on ", ToString(y.device()));
  const Tensor x1 = Widen(a), x2 = Widen(b);
  if (y.device().is_cpu()) {
    const std::vector<double> values = y.To(DType::kF64).ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      Check(values[i] == 1 || values[i] == -1, kOp, "y must be 1 or -1 but y[", i, "] is ",
            values[i]);
    }
  }
  const Tensor sign = y.To(x1.dtype()).To(x1.device());
  const auto square = [](const Tensor& v) { return AddScalar(SumLast(Square(v)), 1e-12); };
  const Tensor cosine = Flat(Div(SumLast(Mul(x1, x2)), Sqrt(Mul(square(x1), square(x2)))));
  const Tensor similar = AddScalar(Scale(cosine, -1), 1);
  const Tensor different = Relu(AddScalar(cosine, -options.margin));
  const Tensor is_similar = Scale(AddScalar(sign, 1), 0.5);
  const Tensor is_different = Scale(AddScalar(sign, -1), -0.5);
  return Reduced(kOp, Add(Mul(is_similar, similar), Mul(is_different, different)),
                 options.reduction);
}

Tensor TripletMarginLoss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                         const TripletMarginOptions& options) {
  constexpr char kOp[] = "triplet_margin_loss";
  CheckRows(kOp, anchor, positive);
  CheckRows(kOp, anchor, negative);
  Check(options.p == 1 || options.p == 2, kOp, "p must be 1 or 2 but is ", options.p);
  Check(options.margin > 0, kOp, "margin must be above 0 but is ", options.margin);
  Check(options.eps >= 0, kOp, "eps must be at least 0 but is ", options.eps);
  // Without a lower limit the root's gradient would be NaN at distance 0, where PyTorch has 0.
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    const Tensor d = AddScalar(Sub(a, b), options.eps);
    if (options.p == 1) return Flat(SumLast(Abs(d)));
    return Flat(Sqrt(Clamp(SumLast(Square(d)), {.min = Tiny(d)})));
  };
  const Tensor a = Widen(anchor), p = Widen(positive), n = Widen(negative);
  Tensor to_negative = distance(a, n);
  if (options.swap) to_negative = Minimum(to_negative, distance(p, n));
  const Tensor losses = Relu(AddScalar(Sub(distance(a, p), to_negative), options.margin));
  return Reduced(kOp, losses, options.reduction);
}

}  // namespace lathe::nn
