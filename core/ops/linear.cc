#include "lathe/core/ops/linear.h"

#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {

ActivationKind ParseActivation(const std::string& name) {
  static const std::vector<std::pair<const char*, ActivationKind>> known = {
      {"gelu", ActivationKind::kGelu},
      {"gelu_python", ActivationKind::kGelu},
      {"gelu_new", ActivationKind::kGeluNew},
      {"gelu_pytorch_tanh", ActivationKind::kGeluNew},
      {"gelu_accurate", ActivationKind::kGeluNew},
      {"relu", ActivationKind::kRelu},
      {"tanh", ActivationKind::kTanh},
      {"silu", ActivationKind::kSilu},
      {"swish", ActivationKind::kSilu},
      {"linear", ActivationKind::kNone},
  };
  std::string names;
  for (const auto& [known_name, kind] : known) {
    if (name == known_name) return kind;
    names += names.empty() ? known_name : std::string(", ") + known_name;
  }
  throw InvalidArgument("activation \"" + name + "\" is not one that Lathe has",
                        "known activations: " + names);
}

namespace {

// The gradient buffer to write into: the leaf's own, or a fresh one that is handed over after use.
class GradTarget {
 public:
  GradTarget(BackwardContext& context, size_t i, const Tensor& like) : context_(context), i_(i) {
    tensor_ = context.LeafGrad(i, &overwrite_);
    if (!tensor_.defined()) {
      own_ = overwrite_ = true;
      tensor_ = Tensor::Empty(like.shape(), like.dtype(), like.device());
    }
  }
  ~GradTarget() noexcept(false) {
    if (own_) context_.SetGrad(i_, tensor_);
  }
  const Tensor& tensor() const { return tensor_; }
  // Whether what is there counts for nothing, or must be added to.
  bool overwrite() const { return overwrite_; }

 private:
  BackwardContext& context_;
  size_t i_;
  bool own_ = false, overwrite_ = false;
  Tensor tensor_;
};

// The weight as the products read it.
template <typename T>
const T* WeightData(const Tensor& weight) {
  if constexpr (!std::is_same_v<T, MathType<T>>) {
    return LowPrecisionCopy(weight, DTypeOf<T>::value).template data<T>();
  } else {
    return weight.data<T>();
  }
}

// dW (+)= dy^T x; dy: [N, out]. Where `db` is given and a device's product can, also db (+)= the
// column sums of dy: returns whether it has.
template <typename T>
bool WeightGradient(const GradTarget& dw, const GradTarget* db, const T* dy, const Tensor& x,
                    int64_t out) {
  using M = MathType<T>;
  const int64_t rows = x.dim(0), in = x.dim(1);
  const float beta = dw.overwrite() ? 0 : 1;
  M* const to = dw.tensor().data<M>();
  if constexpr (!std::is_same_v<T, double>) {
    if (x.device().type != DeviceType::kCPU && db != nullptr && db->overwrite() == dw.overwrite()) {
      DeviceKernels<GemmKernels>().product({.transpose_a = true,
                                            .transpose_b = false,
                                            .M = out,
                                            .N = in,
                                            .K = rows,
                                            .a = dy,
                                            .lda = out,
                                            .b = x.data<T>(),
                                            .ldb = in,
                                            .beta = beta,
                                            .c = to,
                                            .ldc = in,
                                            .bias = nullptr,
                                            .type = DTypeOf<T>::value,
                                            .c_type = DType::kF32,
                                            .a_sums = db->tensor().data<M>()});
      return true;
    }
  }
  Gemm(x.device(), true, false, out, in, rows, dy, out, x.data<T>(), in, beta, to, in);
  return false;
}

// dx = sum_i dy_i W_i; dW_i += dy_i^T x; db_i += column sums of dy_i unless they are `summed`
// already. Inputs: x, weights, biases.
template <typename T>
void LinearBackward(BackwardContext& context, const Tensor& dy, const Tensor& x,
                    const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
                    bool summed) {
  using M = MathType<T>;
  const int64_t rows = x.dim(0), in = x.dim(1), out = dy.dim(1);
  const size_t count = weights.size();
  Tensor dx = context.Needs(0) ? Tensor::Empty(x.shape(), x.dtype(), x.device()) : Tensor();
  for (size_t i = 0; i < count; ++i) {
    const T* dyi = dy.data<T>() + static_cast<int64_t>(i) * rows * out;
    if (dx.defined()) {
      Gemm(x.device(), false, false, rows, in, out, dyi, out, WeightData<T>(weights[i]), in,
           i == 0 ? 0 : 1, dx.data<T>(), in);
    }
    const auto weight_gradient = [&](const GradTarget* db) {
      if (!context.Needs(1 + i)) return false;
      const GradTarget dw(context, 1 + i, weights[i]);
      return WeightGradient<T>(dw, db, dyi, x, out);
    };
    if (!biases[i].defined() || !context.Needs(1 + count + i) || summed) {
      weight_gradient(nullptr);
      continue;
    }
    const GradTarget db(context, 1 + count + i, biases[i]);
    if (!weight_gradient(&db)) {
      if (db.overwrite()) Tensor(db.tensor()).Fill(0);
      KernelsOf<T, cpu::ActivationKernels>(x.device())
          .column_sums(db.tensor().data<M>(), dyi, rows, out, out);
    }
  }
  if (dx.defined()) context.SetGrad(0, dx);
}

Tensor Forward(const char* op, const Tensor& x, const std::vector<Tensor>& weights,
               const std::vector<Tensor>& biases, ActivationKind activation) {
  Check(x.ndim() == 2, op, "x must have shape [N, in] but has ", x.shape());
  const int64_t count = std::ssize(weights), out = weights[0].dim(0);
  std::vector<Tensor> inputs = {x};
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& w = weights[i];
    Check(w.ndim() == 2 && w.dim(0) == out && w.dim(1) == x.dim(1), op,
          "weight must have shape [out, ", x.dim(1), "] but has ", w.shape());
    Check(w.dtype() == MathDType(x.dtype()), op, "weight must be ", ToString(MathDType(x.dtype())),
          " for ", ToString(x.dtype()), " x but is ", ToString(w.dtype()));
    Check(!biases[i].defined() || biases[i].shape() == Shape({w.dim(0)}), op,
          "bias must have shape [", w.dim(0), "]");
    CheckSameDevice(op, x.device(), {w, biases[i]});
    inputs.push_back(w);
  }
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const int64_t rows = x.dim(0), in = x.dim(1);
    Tensor pre = Tensor::Empty({count * rows, out}, x.dtype(), x.device());
    for (size_t i = 0; i < weights.size(); ++i) {
      Gemm(x.device(), false, true, rows, out, in, x.data<T>(), in, WeightData<T>(weights[i]), in,
           0, pre.data<T>() + static_cast<int64_t>(i) * rows * out, out,
           biases[i].defined() ? biases[i].data<M>() : nullptr);
    }
    if (activation == ActivationKind::kNone) {
      return Record(op, pre, inputs, inputs,
                    [x = x.Detach(), weights, biases](BackwardContext& context) {
                      LinearBackward<T>(context, context.grad_output(), x, weights, biases, false);
                    });
    }
    Tensor y = Tensor::Empty(pre.shape(), x.dtype(), x.device());
    KernelsOf<T, cpu::ActivationKernels>(x.device())
        .forward(y.data<T>(), pre.data<T>(), pre.numel(), activation);
    return Record(op, y, inputs, inputs,
                  [x = x.Detach(), pre, weights, biases, activation](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    Tensor dpre = Tensor::Empty(dy.shape(), dy.dtype(), dy.device());
                    const auto& kernels = KernelsOf<T, cpu::ActivationKernels>(x.device());
                    // Summing what is being stored reads nothing, in any shape, and adds to old
                    // gradients, too: better here than the product's epilogue.
                    const bool sums = kernels.backward_and_sums != nullptr && weights.size() == 1 &&
                                      biases[0].defined() && context.Needs(2);
                    if (sums) {
                      const GradTarget db(context, 2, biases[0]);
                      kernels.backward_and_sums(dpre.data<T>(), db.tensor().template data<M>(),
                                                dy.data<T>(), pre.data<T>(), dy.dim(0), dy.dim(1),
                                                activation, db.overwrite());
                    } else {
                      kernels.backward(dpre.data<T>(), dy.data<T>(), pre.data<T>(), dy.numel(),
                                       activation);
                    }
                    LinearBackward<T>(context, dpre, x, weights, biases, sums);
                  });
  });
}

}  // namespace

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              ActivationKind activation) {
  return Forward("linear", x, {weight}, {bias}, activation);
}

Tensor LinearStack(const Tensor& x, const std::vector<Tensor>& weights,
                   const std::vector<Tensor>& biases) {
  Check(!weights.empty() && weights.size() == biases.size(), "linear_stack", weights.size(),
        " weights and ", biases.size(), " biases");
  for (const Tensor& b : biases) {
    Check(b.defined() == biases[0].defined(), "linear_stack", "all layers have a bias or none has");
  }
  return Forward("linear_stack", x, weights, biases, ActivationKind::kNone);
}

Tensor Activation(const Tensor& x, ActivationKind activation) {
  if (activation == ActivationKind::kNone) return x;
  return DispatchActivations(x, "activation", [&](auto tag) {
    using T = decltype(tag);
    Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
    KernelsOf<T, cpu::ActivationKernels>(x.device())
        .forward(y.data<T>(), x.data<T>(), x.numel(), activation);
    return Record("activation", y, {x}, {x},
                  [x = x.Detach(), activation](BackwardContext& context) {
                    Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
                    KernelsOf<T, cpu::ActivationKernels>(x.device())
                        .backward(dx.data<T>(), context.grad_output().template data<T>(),
                                  x.data<T>(), x.numel(), activation);
                    context.SetGrad(0, dx);
                  });
  });
}

// C = op(A) op(B): dA = dC op(B)^T (transposed if A was), dB likewise.
Tensor Matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  Check(a.ndim() == 2 && b.ndim() == 2, "matmul", "both operands must be matrices but have ",
        a.shape(), " and ", b.shape());
  const int64_t M = a.dim(transpose_a ? 1 : 0), K = a.dim(transpose_a ? 0 : 1);
  const int64_t N = b.dim(transpose_b ? 0 : 1);
  Check(b.dim(transpose_b ? 1 : 0) == K && a.dtype() == b.dtype() && a.device() == b.device(),
        "matmul", "cannot multiply ", ToString(a.dtype()), " ", a.shape(), transpose_a ? "^T" : "",
        " by ", ToString(b.dtype()), " ", b.shape(), transpose_b ? "^T" : "");
  return DispatchFloat(a.dtype(), "matmul", [&](auto tag) {
    using T = decltype(tag);
    Tensor c = Tensor::Empty({M, N}, a.dtype(), a.device());
    Gemm(a.device(), transpose_a, transpose_b, M, N, K, a.data<T>(), a.dim(1), b.data<T>(),
         b.dim(1), 0, c.data<T>(), N);
    return Record(
        "matmul", c, {a, b}, {a, b},
        [a = a.Detach(), b = b.Detach(), transpose_a, transpose_b](BackwardContext& context) {
          const Tensor& dc = context.grad_output();
          if (context.Needs(0)) {
            context.SetGrad(0, transpose_a ? Matmul(b, dc, transpose_b, true)
                                           : Matmul(dc, b, false, !transpose_b));
          }
          if (context.Needs(1)) {
            context.SetGrad(1, transpose_b ? Matmul(dc, a, true, transpose_a)
                                           : Matmul(a, dc, !transpose_a, false));
          }
        });
  });
}

}  // namespace lathe
