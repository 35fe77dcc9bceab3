#include "lathe/core/ops/linear.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/gemm.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {
namespace {

// Returns the distance from each pointer to the next, in elements. Returns nothing if it varies or
// is less than `least`.
template <typename T>
std::optional<int64_t> CommonStride(const std::vector<T*>& pointers, int64_t least) {
  std::optional<int64_t> stride;
  for (size_t i = 1; i < pointers.size(); ++i) {
    const int64_t bytes =
        reinterpret_cast<intptr_t>(pointers[i]) - reinterpret_cast<intptr_t>(pointers[i - 1]);
    const int64_t elements = bytes / static_cast<int64_t>(sizeof(T));
    if (bytes % static_cast<int64_t>(sizeof(T)) != 0 || elements < least) return {};
    if (stride && *stride != elements) return {};
    stride = elements;
  }
  return stride.value_or(0);
}

// Computes all of the stack's outputs in one product, on a device. Does nothing and returns false
// unless the weights lie at a constant stride in their order, and the biases too.
template <typename T>
bool StackForward(const Tensor& x, const std::vector<const T*>& weights,
                  const std::vector<const float*>& biases, int64_t out, T* y) {
  const int64_t rows = x.dim(0), in = x.dim(1);
  const auto stride = CommonStride(weights, 0), bias_stride = CommonStride(biases, 0);
  if (!stride || !bias_stride) return false;
  DeviceKernels<GemmKernels>().product({.transpose_a = false,
                                        .transpose_b = true,
                                        .M = rows,
                                        .N = out,
                                        .K = in,
                                        .a = x.data<T>(),
                                        .lda = in,
                                        .b = weights[0],
                                        .ldb = in,
                                        .beta = 0,
                                        .c = y,
                                        .ldc = out,
                                        .bias = biases[0],
                                        .type = DTypeOf<T>::value,
                                        .c_type = DTypeOf<T>::value,
                                        .batch = std::ssize(weights),
                                        .b_stride = *stride,
                                        .c_stride = rows * out,
                                        .bias_stride = *bias_stride});
  return true;
}

// Computes all dW_i = dy_i^T x in one product on a device and, unless `dbs` is empty, the column
// sums db_i of dy_i with them. Overwrites the targets or adds to them. Does nothing and returns
// false if the targets lie at no constant stride, or if only some of them are to be overwritten.
template <typename T>
bool StackGradients(const std::vector<const GradTarget*>& dws,
                    const std::vector<const GradTarget*>& dbs, const T* dy, const Tensor& x,
                    int64_t out) {
  const int64_t rows = x.dim(0), in = x.dim(1);
  std::vector<float*> to, sums_to;
  for (const GradTarget* dw : dws) to.push_back(dw->tensor.data<float>());
  for (const GradTarget* db : dbs) sums_to.push_back(db->tensor.data<float>());
  const auto stride = CommonStride(to, out * in), sums_stride = CommonStride(sums_to, out);
  const bool overwrite = dws[0]->overwrite;
  const auto differs = [&](const GradTarget* target) { return target->overwrite != overwrite; };
  if (!stride || !sums_stride || std::any_of(dws.begin(), dws.end(), differs) ||
      std::any_of(dbs.begin(), dbs.end(), differs)) {
    return false;
  }
  DeviceKernels<GemmKernels>().product({.transpose_a = true,
                                        .transpose_b = false,
                                        .M = out,
                                        .N = in,
                                        .K = rows,
                                        .a = dy,
                                        .lda = out,
                                        .b = x.data<T>(),
                                        .ldb = in,
                                        .beta = overwrite ? 0.0f : 1.0f,
                                        .c = to[0],
                                        .ldc = in,
                                        .bias = nullptr,
                                        .type = DTypeOf<T>::value,
                                        .c_type = DType::kF32,
                                        .a_sums = dbs.empty() ? nullptr : sums_to[0],
                                        .batch = std::ssize(dws),
                                        .a_stride = rows * out,
                                        .c_stride = *stride,
                                        .bias_stride = *sums_stride});
  return true;
}

// Where the first layer's weight and bias stand among the op's inputs. The other layers' weights
// follow the first weight, and their biases the first bias.
struct Places {
  size_t weight, bias;
};

// The backward pass of layers that read the same input: dW_i += dy_i^T x, db_i += the column sums
// of dy_i. With `summed` the biases have their gradients already. Returns dx = sum_i dy_i W_i, or
// an undefined tensor unless `needs_dx`.
template <typename T>
Tensor LinearBackward(BackwardContext& context, const Tensor& dy, const Tensor& x,
                      const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
                      Places at, bool summed, bool needs_dx) {
  using M = MathType<T>;
  const int64_t rows = x.dim(0), in = x.dim(1), out = dy.dim(1);
  const size_t count = weights.size();
  std::vector<std::optional<GradTarget>> dws(count), dbs(count);
  std::vector<const GradTarget*> all_dws, all_dbs;
  // Targets are made in the order in which they are written. If several layers share a parameter,
  // only the first write to it may overwrite a stale gradient.
  for (size_t i = count; i-- > 0;) {
    if (context.NeedsInputGrad(at.weight + i)) dws[i].emplace(context, at.weight + i, weights[i]);
    if (!summed && biases[i].defined() && context.NeedsInputGrad(at.bias + i))
      dbs[i].emplace(context, at.bias + i, biases[i]);
  }
  for (size_t i = 0; i < count; ++i) {
    if (dws[i]) all_dws.push_back(&*dws[i]);
    if (dbs[i]) all_dbs.push_back(&*dbs[i]);
  }
  // On a device one product can compute gradients of weights together with those of biases.
  const auto in_one = [&](const std::vector<const GradTarget*>& some_dws,
                          const std::vector<const GradTarget*>& some_dbs, const T* some_dy) {
    if constexpr (std::is_same_v<T, double>) {
      return false;
    } else {
      return !x.device().is_cpu() && StackGradients<T>(some_dws, some_dbs, some_dy, x, out);
    }
  };
  const bool done = count > 1 && all_dws.size() == count &&
                    (all_dbs.empty() || all_dbs.size() == count) &&
                    in_one(all_dws, all_dbs, dy.data<T>());
  Tensor dx = needs_dx ? Tensor::Empty(x.shape(), x.dtype(), x.device()) : Tensor();
  for (size_t i = count; i-- > 0;) {
    const T* dyi = dy.data<T>() + static_cast<int64_t>(i) * rows * out;
    if (dx.defined()) {
      Gemm(x.device(), {}, rows, in, out, dyi, out, WeightData<T>(weights[i]), in,
           i == count - 1 ? 0 : 1, dx.data<T>(), in);
    }
    if (done || (dws[i] && dbs[i] && in_one({&*dws[i]}, {&*dbs[i]}, dyi))) continue;
    if (dws[i]) {
      Gemm(x.device(), {.a = true}, out, in, rows, dyi, out, x.data<T>(), in,
           dws[i]->overwrite ? 0 : 1, dws[i]->tensor.template data<M>(), in);
    }
    if (dbs[i]) {
      if (dbs[i]->overwrite) dbs[i]->tensor.Fill(0);
      KernelsOf<T, cpu::ActivationKernels>(x.device())
          .column_sums(dbs[i]->tensor.template data<M>(), dyi, rows, out, out);
    }
  }
  return dx;
}

// The backward pass of Linear and LinearStack. The op's inputs are x, all weights and all biases.
template <typename T>
void OpBackward(BackwardContext& context, const Tensor& dy, const Tensor& x,
                const std::vector<Tensor>& weights, const std::vector<Tensor>& biases,
                bool summed) {
  const Tensor dx =
      LinearBackward<T>(context, dy, x, weights, biases, {.weight = 1, .bias = 1 + weights.size()},
                        summed, context.NeedsInputGrad(0));
  if (dx.defined()) context.SetGrad(0, dx);
}

// Throws unless a layer fits an input of `in` columns of `type` on `device`.
// `shape` is that of the layer's input.
void CheckLayer(const char* op, const Shape& shape, DType type, Device device, const Tensor& weight,
                const Tensor& bias) {
  Check(weight.ndim() == 2, op, "weight must have shape [out, in] but has ", weight.shape());
  Check(weight.dim(1) == shape[1], op, "x ", shape, " doesn't fit weight ", weight.shape());
  Check(weight.dtype() == MathDType(type), op, "weight must be ", ToString(MathDType(type)),
        " for ", ToString(type), " x but is ", ToString(weight.dtype()));
  if (bias.defined()) {
    Check(bias.shape() == Shape({weight.dim(0)}), op, "bias must have shape [", weight.dim(0),
          "] but has ", bias.shape());
    Check(bias.dtype() == weight.dtype(), op, "weight is ", ToString(weight.dtype()),
          " but bias is ", ToString(bias.dtype()));
  }
  CheckSameDevice(op, device, {weight, bias});
}

// Returns x W^T + b of each layer, one below the other: [layers * N, out]. Records nothing.
template <typename T>
Tensor Products(const Tensor& x, const std::vector<Tensor>& weights,
                const std::vector<Tensor>& biases) {
  const int64_t rows = x.dim(0), in = x.dim(1), out = weights[0].dim(0);
  Tensor y = Tensor::Empty({std::ssize(weights) * rows, out}, x.dtype(), x.device());
  std::vector<const T*> read;
  std::vector<const MathType<T>*> added;
  for (size_t i = 0; i < weights.size(); ++i) {
    read.push_back(WeightData<T>(weights[i]));
    added.push_back(biases[i].defined() ? biases[i].data<MathType<T>>() : nullptr);
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (weights.size() > 1 && !x.device().is_cpu() &&
        StackForward<T>(x, read, added, out, y.data<T>())) {
      return y;
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    Gemm(x.device(), {.b = true}, rows, out, in, x.data<T>(), in, read[i], in, 0,
         y.data<T>() + static_cast<int64_t>(i) * rows * out, out, added[i]);
  }
  return y;
}

Tensor Forward(const char* op, const Tensor& x, const std::vector<Tensor>& weights,
               const std::vector<Tensor>& biases, ActivationKind activation) {
  Check(x.ndim() == 2, op, "x must have shape [N, in] but has ", x.shape());
  std::vector<Tensor> inputs = {x};
  for (size_t i = 0; i < weights.size(); ++i) {
    CheckLayer(op, x.shape(), x.dtype(), x.device(), weights[i], biases[i]);
    const int64_t out = weights[0].dim(0);
    Check(weights[i].dim(0) == out, op, "weights must have ", out, " rows each but one has shape ",
          weights[i].shape());
    inputs.push_back(weights[i]);
  }
  inputs.insert(inputs.end(), biases.begin(), biases.end());
  return DispatchActivations(x, op, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    const Tensor pre = Products<T>(x, weights, biases);
    if (activation == ActivationKind::kNone) {
      return Record(
          op, pre, inputs, inputs, [x = x.Detach(), weights, biases](BackwardContext& context) {
            OpBackward<T>(context, context.grad_output(), x, weights, biases, /*summed=*/false);
          });
    }
    // Only a backward pass reads `pre` again. Without one the activation may overwrite it.
    Tensor y = GradEnabled() ? Tensor::Empty(pre.shape(), x.dtype(), x.device()) : pre;
    KernelsOf<T, cpu::ActivationKernels>(x.device())
        .forward(y.data<T>(), pre.data<T>(), pre.numel(), activation);
    return Record(op, y, inputs, inputs,
                  [x = x.Detach(), pre, weights, biases, activation](BackwardContext& context) {
                    const Tensor& dy = context.grad_output();
                    Tensor dpre = Tensor::Empty(dy.shape(), dy.dtype(), dy.device());
                    const auto& kernels = KernelsOf<T, cpu::ActivationKernels>(x.device());
                    // The kernel can sum dpre for the bias's gradient while it writes dpre. Unlike
                    // a product's epilogue, it takes any shape and can add to old gradients.
                    const bool sums = kernels.backward_and_sums != nullptr && weights.size() == 1 &&
                                      biases[0].defined() && context.NeedsInputGrad(2);
                    if (sums) {
                      GradTarget db(context, 2, biases[0]);
                      kernels.backward_and_sums(dpre.data<T>(), db.tensor.template data<M>(),
                                                dy.data<T>(), pre.data<T>(), dy.dim(0), dy.dim(1),
                                                activation, db.overwrite);
                    } else {
                      kernels.backward(dpre.data<T>(), dy.data<T>(), pre.data<T>(), dy.numel(),
                                       activation);
                    }
                    OpBackward<T>(context, dpre, x, weights, biases, sums);
                  });
  });
}

// FeedForward on the host: y = f W2^T + b2 with f = act(pre), pre = x W1^T + b1. The backward pass
// computes f again from pre:
//   df = dy W2;  dW2 += dy^T f;  db2 += column sums of dy;  dpre = df act'(pre);
//   dW1 += dpre^T x;  db1 += column sums of dpre;  dx = dpre W1.
template <typename T>
Tensor RecomputedFeedForward(const Tensor& x, const Tensor& w1, const Tensor& b1,
                             ActivationKind activation, const Tensor& w2, const Tensor& b2) {
  const auto& kernels = KernelsOf<T, cpu::ActivationKernels>(Device{});
  const bool plain = activation == ActivationKind::kNone;
  const auto fresh = [](const Tensor& like) { return Tensor::Empty(like.shape(), like.dtype()); };
  enum Input { kX, kW1, kB1, kW2, kB2 };
  const std::vector<Tensor> inputs = {x, w1, b1, w2, b2};
  const Tensor pre = Products<T>(x, {w1}, {b1});
  // Only a backward pass reads `pre` again. Without one the activation may overwrite it.
  Tensor f = GradEnabled() && !plain ? fresh(pre) : pre;
  if (!plain) kernels.forward(f.data<T>(), pre.data<T>(), pre.numel(), activation);
  const Tensor y = Products<T>(f, {w2}, {b2});
  return Record(
      "feed_forward", y, inputs, inputs, [=, &kernels, x = x.Detach()](BackwardContext& context) {
        const Tensor& dy = context.grad_output();
        const int64_t between = w2.dim(1), out = w2.dim(0), n = pre.numel();
        const bool below = context.NeedsInputGrad(kX) || context.NeedsInputGrad(kW1) ||
                           context.NeedsInputGrad(kB1);
        Tensor value = plain ? pre : context.NeedsInputGrad(kW2) ? fresh(pre) : Tensor(), d;
        if (below) {
          d = fresh(pre);
          Gemm(x.device(), {}, dy.dim(0), between, out, dy.data<T>(), out, WeightData<T>(w2),
               between, 0, d.data<T>(), between);
        }
        if (!plain && below && value.defined()) {
          kernels.backward_and_value(d.data<T>(), value.data<T>(), d.data<T>(), pre.data<T>(), n,
                                     activation);
        } else if (!plain && below) {
          kernels.backward(d.data<T>(), d.data<T>(), pre.data<T>(), n, activation);
        } else if (!plain && value.defined()) {
          kernels.forward(value.data<T>(), pre.data<T>(), n, activation);
        }
        LinearBackward<T>(context, dy, value.defined() ? value : pre, {w2}, {b2},
                          {.weight = kW2, .bias = kB2}, /*summed=*/false, /*needs_dx=*/false);
        value = {};
        if (!below) return;
        const Tensor dx = LinearBackward<T>(context, d, x, {w1}, {b1}, {.weight = kW1, .bias = kB1},
                                            /*summed=*/false, context.NeedsInputGrad(kX));
        if (dx.defined()) context.SetGrad(kX, dx);
      });
}

}  // namespace

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              ActivationKind activation) {
  return Forward("linear", x, {weight}, {bias}, activation);
}

Tensor LinearStack(const Tensor& x, const std::vector<Tensor>& weights,
                   const std::vector<Tensor>& biases) {
  Check(!weights.empty() && weights.size() == biases.size(), "linear_stack",
        "expected one bias for each weight but got ", weights.size(), " weights and ",
        biases.size(), " biases");
  for (const Tensor& b : biases) {
    Check(b.defined() == biases[0].defined(), "linear_stack",
          "either all layers must have a bias or none");
  }
  return Forward("linear_stack", x, weights, biases, ActivationKind::kNone);
}

Tensor FeedForward(const Tensor& x, const Tensor& w1, const Tensor& b1, ActivationKind activation,
                   const Tensor& w2, const Tensor& b2) {
  if (!x.device().is_cpu()) return Linear(Linear(x, w1, b1, activation), w2, b2);
  constexpr const char* kOp = "feed_forward";
  Check(x.ndim() == 2, kOp, "x must have shape [N, in] but has ", x.shape());
  CheckLayer(kOp, x.shape(), x.dtype(), x.device(), w1, b1);
  CheckLayer(kOp, {x.dim(0), w1.dim(0)}, x.dtype(), x.device(), w2, b2);
  return DispatchActivations(x, kOp, [&](auto tag) {
    return RecomputedFeedForward<decltype(tag)>(x, w1, b1, activation, w2, b2);
  });
}

// C = op(A) op(B);  dA = dC op(B)^T, transposed if A was;  dB = op(A)^T dC, transposed if B was
Tensor MatrixProduct(const Tensor& a, const Tensor& b, Transposes transposes) {
  Check(a.ndim() == 2 && b.ndim() == 2, "matmul", "both operands must be matrices but have ",
        a.shape(), " and ", b.shape());
  const int64_t M = a.dim(transposes.a ? 1 : 0), K = a.dim(transposes.a ? 0 : 1);
  const int64_t N = b.dim(transposes.b ? 0 : 1);
  Check(b.dim(transposes.b ? 1 : 0) == K && a.dtype() == b.dtype() && a.device() == b.device(),
        "matmul", "cannot multiply ", ToString(a.dtype()), " ", a.shape(), transposes.a ? "^T" : "",
        " by ", ToString(b.dtype()), " ", b.shape(), transposes.b ? "^T" : "");
  return DispatchActivations(a, "matmul", [&](auto tag) {
    using T = decltype(tag);
    Tensor c = Tensor::Empty({M, N}, a.dtype(), a.device());
    Gemm(a.device(), transposes, M, N, K, a.data<T>(), a.dim(1), b.data<T>(), b.dim(1), 0,
         c.data<T>(), N);
    return Record(
        "matmul", c, {a, b}, {a, b},
        [a = a.Detach(), b = b.Detach(), transposes](BackwardContext& context) {
          const Tensor& dc = context.grad_output();
          if (context.NeedsInputGrad(0)) {
            context.SetGrad(0, transposes.a ? MatrixProduct(b, dc, {.a = transposes.b, .b = true})
                                            : MatrixProduct(dc, b, {.b = !transposes.b}));
          }
          if (context.NeedsInputGrad(1)) {
            context.SetGrad(1, transposes.b ? MatrixProduct(dc, a, {.a = true, .b = transposes.a})
                                            : MatrixProduct(a, dc, {.a = !transposes.a}));
          }
        });
  });
}

}  // namespace lathe
