#include "lathe/core/ops/grouped/grouped_linear.h"

#include <optional>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "grouped_linear";

struct Sizes {
  int64_t rows, groups, in, out;  // in, out: columns of one group
  GroupedWeight layout;
  int64_t width() const { return groups * out; }
  bool out_in() const { return layout == GroupedWeight::kOutIn; }
};

// The matrix of group 0, the stride of its rows, and the distance to the next group's matrix.
template <typename T>
struct Matrices {
  T* data;
  int64_t stride, step;
};

template <typename T>
Matrices<T> Rows(T* data, const Sizes& s, int64_t columns) {
  return {data, s.groups * columns, columns};
}

// A group's weight is [out, in] or [in, out].
template <typename T>
Matrices<T> Weights(T* data, const Sizes& s) {
  return {data, s.out_in() ? s.in : s.out, s.in * s.out};
}

// Computes c_g = op(a_g) op(b_g) + beta c_g for all groups; op(a_g) is (M, K), op(b_g) is (K, N).
// bias: (groups * N) or null. a_sums: (groups * M) or null, as in GemmArgs; on devices only.
template <typename T, typename C>
void Products(const Sizes& s, Device device, Transposes transposes, int64_t M, int64_t N, int64_t K,
              Matrices<const T> a, Matrices<const T> b, double beta, Matrices<C> c,
              const MathType<T>* bias = nullptr, MathType<T>* a_sums = nullptr) {
  if (device.is_cpu()) {
    for (int64_t g = 0; g < s.groups; ++g) {
      Gemm(device, transposes, M, N, K, a.data + g * a.step, a.stride, b.data + g * b.step,
           b.stride, beta, c.data + g * c.step, c.stride, bias == nullptr ? nullptr : bias + g * N);
    }
    return;
  }
  if constexpr (!std::is_same_v<T, double>) {
    DeviceKernels<GemmKernels>().product({.transpose_a = transposes.a,
                                          .transpose_b = transposes.b,
                                          .M = M,
                                          .N = N,
                                          .K = K,
                                          .a = a.data,
                                          .lda = a.stride,
                                          .b = b.data,
                                          .ldb = b.stride,
                                          .beta = static_cast<float>(beta),
                                          .c = c.data,
                                          .ldc = c.stride,
                                          .bias = bias,
                                          .type = DTypeOf<T>::value,
                                          .c_type = DTypeOf<C>::value,
                                          .a_sums = a_sums,
                                          .batch = s.groups,
                                          .a_stride = a.step,
                                          .b_stride = b.step,
                                          .c_stride = c.step,
                                          .bias_stride = bias != nullptr ? N : M});
  }
}

Sizes CheckedSizes(const Tensor& x, const GroupedLayer& layer) {
  const auto& [weight, bias, groups, layout] = layer;
  Check(x.ndim() == 2, kOp, "x must have shape [N, in] but has ", x.shape());
  Check(groups >= 1 && x.dim(1) % groups == 0, kOp, "the columns of x ", x.shape(),
        " don't make groups: ", groups);
  Sizes s = {x.dim(0), groups, x.dim(1) / groups, 0, layout};
  if (s.out_in()) {
    Check(
        weight.ndim() >= 2 && weight.dim(0) % groups == 0 && weight.numel() == weight.dim(0) * s.in,
        kOp, "weight must have ", groups, " times as many rows as a group's outputs, of ", s.in,
        " elements each, but has shape ", weight.shape());
    s.out = weight.dim(0) / groups;
  } else {
    Check(weight.ndim() == 3 && weight.dim(0) == groups && weight.dim(1) == s.in, kOp,
          "weight must have shape [", groups, ", ", s.in, ", out] but has ", weight.shape());
    s.out = weight.dim(2);
  }
  Check(weight.dtype() == MathDType(x.dtype()), kOp, "weight must be ",
        ToString(MathDType(x.dtype())), " for ", ToString(x.dtype()), " x but is ",
        ToString(weight.dtype()));
  if (bias.defined()) {
    Check(bias.numel() == s.width(), kOp, "bias must have ", s.width(), " elements but has shape ",
          bias.shape());
    Check(bias.dtype() == weight.dtype(), kOp, "weight is ", ToString(weight.dtype()),
          " but bias is ", ToString(bias.dtype()));
  }
  CheckSameDevice(kOp, x.device(), {weight, bias});
  return s;
}

// Computes the output of one layer, y: (rows, width).
template <typename T>
void Forward(T* y, const Tensor& x, const GroupedLayer& layer, const Sizes& s) {
  Products(s, x.device(), {.b = s.out_in()}, s.rows, s.out, s.in,
           Rows<const T>(x.data<T>(), s, s.in), Weights(WeightData<T>(layer.weight), s), 0,
           Rows(y, s, s.out), layer.bias.defined() ? layer.bias.data<MathType<T>>() : nullptr);
}

// Adds to the gradients of a layer's weight and bias, which are inputs `at` and `at` + 1.
//   kOutIn: dW_g += dy_g^T x_g;  kInOut: dW_g += x_g^T dy_g;  db += column sums of dy
template <typename T>
void ParameterGradients(BackwardContext& context, size_t at, const T* dy, const Tensor& x,
                        const GroupedLayer& layer, const Sizes& s) {
  using M = MathType<T>;
  const Device device = x.device();
  const auto of_dy = Rows(dy, s, s.out), of_x = Rows<const T>(x.data<T>(), s, s.in);
  std::optional<GradTarget> dw, db;
  if (context.NeedsInputGrad(at)) dw.emplace(context, at, layer.weight);
  if (layer.bias.defined() && context.NeedsInputGrad(at + 1)) {
    db.emplace(context, at + 1, layer.bias);
  }
  // On a device the product with dy^T can sum up the gradient of the bias, too.
  const bool sums = dw && db && s.out_in() && !device.is_cpu() && db->overwrite == dw->overwrite;
  if (dw) {
    const auto to = Weights(dw->tensor.template data<M>(), s);
    const double beta = dw->overwrite ? 0 : 1;
    if (s.out_in()) {
      Products(s, device, {.a = true}, s.out, s.in, s.rows, of_dy, of_x, beta, to, nullptr,
               sums ? db->tensor.template data<M>() : nullptr);
    } else {
      Products(s, device, {.a = true}, s.in, s.out, s.rows, of_x, of_dy, beta, to);
    }
  }
  if (!db || sums) return;
  if (db->overwrite) db->tensor.Fill(0);
  KernelsOf<T, cpu::ActivationKernels>(device).column_sums(db->tensor.template data<M>(), dy,
                                                           s.rows, s.width(), s.width());
}

// kOutIn: dx_g = sum dy_g W_g;  kInOut: dx_g = sum dy_g W_g^T
template <typename T>
void StackBackward(BackwardContext& context, const Tensor& x,
                   const std::vector<GroupedLayer>& layers, const std::vector<Sizes>& sizes) {
  const T* const dys = context.grad_output().template data<T>();
  Tensor dx =
      context.NeedsInputGrad(0) ? Tensor::Empty(x.shape(), x.dtype(), x.device()) : Tensor();
  for (size_t i = layers.size(); i-- > 0;) {
    const Sizes& s = sizes[i];
    const T* const dy = dys + static_cast<int64_t>(i) * s.rows * s.width();
    if (dx.defined()) {
      Products(s, x.device(), {.b = !s.out_in()}, s.rows, s.in, s.out, Rows(dy, s, s.out),
               Weights(WeightData<T>(layers[i].weight), s), i + 1 == layers.size() ? 0 : 1,
               Rows(dx.data<T>(), s, s.in));
    }
    ParameterGradients(context, 1 + 2 * i, dy, x, layers[i], s);
  }
  if (dx.defined()) context.SetGrad(0, dx);
}

}  // namespace

Tensor GroupedLinear(const Tensor& x, const GroupedLayer& layer) {
  return GroupedLinearStack(x, {layer});
}

Tensor GroupedLinearStack(const Tensor& x, const std::vector<GroupedLayer>& layers) {
  Check(!layers.empty(), kOp, "expected at least one layer");
  std::vector<Sizes> sizes;
  std::vector<Tensor> inputs = {x};
  for (const GroupedLayer& layer : layers) {
    sizes.push_back(CheckedSizes(x, layer));
    Check(sizes.back().width() == sizes[0].width(), kOp, "layers must have ", sizes[0].width(),
          " columns each but one has ", sizes.back().width());
    inputs.push_back(layer.weight);
    inputs.push_back(layer.bias);
  }
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const int64_t rows = x.dim(0), width = sizes[0].width();
    const Tensor y = Tensor::Empty({std::ssize(layers) * rows, width}, x.dtype(), x.device());
    for (size_t i = 0; i < layers.size(); ++i) {
      Forward(y.data<T>() + static_cast<int64_t>(i) * rows * width, x, layers[i], sizes[i]);
    }
    return Record(kOp, y, inputs, inputs,
                  [x = x.Detach(), layers, sizes](BackwardContext& context) {
                    StackBackward<T>(context, x, layers, sizes);
                  });
  });
}

Tensor GroupedLinearComposed(const Tensor& x, const GroupedLayer& layer) {
  const Sizes s = CheckedSizes(x, layer);
  const Tensor stacked =
      Reshape(layer.weight, s.out_in() ? Shape{s.width(), s.in} : Shape{s.groups * s.in, s.out});
  const int64_t height = s.out_in() ? s.out : s.in;
  std::vector<Tensor> parts;
  for (int64_t g = 0; g < s.groups; ++g) {
    parts.push_back(MatrixProduct(SliceColumns(x, g * s.in, (g + 1) * s.in),
                                  SliceRows(stacked, g * height, (g + 1) * height),
                                  {.b = s.out_in()}));
  }
  const Tensor y = ConcatColumns(parts);
  return layer.bias.defined() ? Add(y, Reshape(layer.bias, {s.width()})) : y;
}

}  // namespace lathe
