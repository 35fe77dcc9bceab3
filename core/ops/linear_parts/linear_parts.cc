#include "lathe/core/ops/linear_parts/linear_parts.h"

#include <optional>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/activation.h"
#include "lathe/core/gemm.h"
#include "lathe/core/kernels/gemm_kernels.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "linear_parts";

// The sizes of a call: x is [rows, in], and each part has `width` outputs, the first of which is
// output `begin` of `out`.
struct Sizes {
  int64_t rows, in, out, begin, width, parts;
  bool whole() const { return begin == 0 && width * parts == out; }
};

Sizes CheckedSizes(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const LinearPartsOptions& options) {
  Check(x.ndim() == 2, kOp, "x must have shape [N, in] but has ", x.shape());
  Check(weight.ndim() == 2, kOp, "weight must have shape [out, in] but has ", weight.shape());
  Check(weight.dim(1) == x.dim(1), kOp, "x ", x.shape(), " doesn't fit weight ", weight.shape());
  Check(weight.dtype() == MathDType(x.dtype()), kOp, "weight must be ",
        ToString(MathDType(x.dtype())), " for ", ToString(x.dtype()), " x but is ",
        ToString(weight.dtype()));
  const int64_t out = weight.dim(0), end = options.end < 0 ? out : options.end;
  if (bias.defined()) {
    Check(bias.shape() == Shape({out}), kOp, "bias must have shape [", out, "] but has ",
          bias.shape());
    Check(bias.dtype() == weight.dtype(), kOp, "weight is ", ToString(weight.dtype()),
          " but bias is ", ToString(bias.dtype()));
  }
  CheckSameDevice(kOp, x.device(), {weight, bias});
  Check(0 <= options.begin && options.begin <= end && end <= out, kOp, "outputs ", options.begin,
        " to ", end, " don't exist in a layer of ", out);
  Check(options.parts >= 1 && (end - options.begin) % options.parts == 0, kOp, "the ",
        end - options.begin, " outputs can't be cut into ", options.parts, " parts of one size");
  return {x.dim(0),     x.dim(1), out, options.begin, (end - options.begin) / options.parts,
          options.parts};
}

// Returns the first of the weights that the call reads, in T.
template <typename T>
const T* WeightData(const Tensor& weight, const Sizes& sizes) {
  return lathe::WeightData<T>(weight) + sizes.begin * sizes.in;
}

// The buffer of input i's gradient, of which the call writes the part that it read.
struct PartTarget {
  PartTarget(BackwardContext& context, size_t i, const Shape& shape, const Tensor& like, bool whole)
      : tensor(whole ? context.LeafGrad(i, &overwrite) : context.LeafGrad(i)) {
    if (tensor.defined()) return;
    tensor = Tensor::Zeros(shape, MathDType(like.dtype()), like.device());
    context.SetGrad(i, tensor);
  }
  bool overwrite = false;  // the buffer's contents are void; if false, add to them
  Tensor tensor;
};

// Computes all parts of x W^T + b.
template <typename T>
Tensor Products(const Tensor& x, const Tensor& weight, const Tensor& bias, const Sizes& s) {
  const Tensor y = Tensor::Empty({s.parts * s.rows, s.width}, x.dtype(), x.device());
  const T* const w = WeightData<T>(weight, s);
  const MathType<T>* const b = bias.defined() ? bias.data<MathType<T>>() + s.begin : nullptr;
  if constexpr (!std::is_same_v<T, double>) {
    if (!x.device().is_cpu()) {
      DeviceKernels<GemmKernels>().product({.transpose_a = false,
                                            .transpose_b = true,
                                            .M = s.rows,
                                            .N = s.width,
                                            .K = s.in,
                                            .a = x.data<T>(),
                                            .lda = s.in,
                                            .b = w,
                                            .ldb = s.in,
                                            .beta = 0,
                                            .c = y.raw_data(),
                                            .ldc = s.width,
                                            .bias = b,
                                            .type = x.dtype(),
                                            .c_type = x.dtype(),
                                            .batch = s.parts,
                                            .b_stride = s.width * s.in,
                                            .c_stride = s.rows * s.width,
                                            .bias_stride = b == nullptr ? 0 : s.width});
      return y;
    }
  }
  for (int64_t p = 0; p < s.parts; ++p) {
    Gemm(x.device(), {.b = true}, s.rows, s.width, s.in, x.data<T>(), s.in, w + p * s.width * s.in,
         s.in, 0, y.data<T>() + p * s.rows * s.width, s.width,
         b == nullptr ? nullptr : b + p * s.width);
  }
  return y;
}

// Adds the weight's and the bias's gradients to their targets, or overwrites these. Null targets
// want none.
template <typename T>
void AddGradients(const PartTarget* dw, const PartTarget* db, const Tensor& dy, const Tensor& x,
                  const Sizes& s) {
  using M = MathType<T>;
  M* const to = dw == nullptr ? nullptr : dw->tensor.data<M>() + s.begin * s.in;
  M* const sums = db == nullptr ? nullptr : db->tensor.data<M>() + s.begin;
  const int64_t part = s.rows * s.width;
  if constexpr (!std::is_same_v<T, double>) {
    const bool together = db == nullptr || (dw != nullptr && db->overwrite == dw->overwrite);
    if (!x.device().is_cpu() && dw != nullptr && together) {
      DeviceKernels<GemmKernels>().product({.transpose_a = true,
                                            .transpose_b = false,
                                            .M = s.width,
                                            .N = s.in,
                                            .K = s.rows,
                                            .a = dy.raw_data(),
                                            .lda = s.width,
                                            .b = x.raw_data(),
                                            .ldb = s.in,
                                            .beta = dw->overwrite ? 0.0f : 1.0f,
                                            .c = to,
                                            .ldc = s.in,
                                            .bias = nullptr,
                                            .type = x.dtype(),
                                            .c_type = DType::kF32,
                                            .a_sums = sums,
                                            .batch = s.parts,
                                            .a_stride = part,
                                            .c_stride = s.width * s.in,
                                            .bias_stride = sums == nullptr ? 0 : s.width});
      return;
    }
  }
  if (db != nullptr && db->overwrite) Tensor(db->tensor).Fill(0);
  for (int64_t p = 0; p < s.parts; ++p) {
    const T* const dyp = dy.data<T>() + p * part;
    if (dw != nullptr) {
      Gemm(x.device(), {.a = true}, s.width, s.in, s.rows, dyp, s.width, x.data<T>(), s.in,
           dw->overwrite ? 0 : 1, to + p * s.width * s.in, s.in);
    }
    if (db != nullptr) {
      KernelsOf<T, cpu::ActivationKernels>(x.device())
          .column_sums(sums + p * s.width, dyp, s.rows, s.width, s.width);
    }
  }
}

}  // namespace

// y_p = x W_p^T + b_p;  dW_p = dy_p^T x;  db_p = the column sums of dy_p;  dx = sum_p dy_p W_p
Tensor LinearParts(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const LinearPartsOptions& options) {
  const Sizes sizes = CheckedSizes(x, weight, bias, options);
  return DispatchActivations(x, kOp, [&](auto tag) {
    using T = decltype(tag);
    const std::vector<Tensor> inputs = {x, weight, bias};
    return Record(
        kOp, Products<T>(x, weight, bias, sizes), inputs, inputs,
        [sizes, weight, has_bias = bias.defined(), x = x.Detach()](BackwardContext& context) {
          const Tensor& dy = context.grad_output();
          if (context.NeedsInputGrad(1) || (has_bias && context.NeedsInputGrad(2))) {
            std::optional<PartTarget> dw, db;
            if (context.NeedsInputGrad(1)) {
              dw.emplace(context, 1, weight.shape(), x, sizes.whole());
            }
            if (has_bias && context.NeedsInputGrad(2)) {
              db.emplace(context, 2, Shape({sizes.out}), x, sizes.whole());
            }
            AddGradients<T>(dw ? &*dw : nullptr, db ? &*db : nullptr, dy, x, sizes);
          }
          if (!context.NeedsInputGrad(0)) return;
          const Tensor dx = Tensor::Empty(x.shape(), x.dtype(), x.device());
          const T* const w = WeightData<T>(weight, sizes);
          for (int64_t p = sizes.parts; p-- > 0;) {
            Gemm(x.device(), {}, sizes.rows, sizes.in, sizes.width,
                 dy.data<T>() + p * sizes.rows * sizes.width, sizes.width,
                 w + p * sizes.width * sizes.in, sizes.in, p == sizes.parts - 1 ? 0 : 1,
                 dx.data<T>(), sizes.in);
          }
          context.SetGrad(0, dx);
        });
  });
}

Tensor LinearPartsComposed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const LinearPartsOptions& options) {
  const Tensor y = Linear(x, weight, bias);
  const int64_t end = options.end < 0 ? y.dim(1) : options.end;
  const int64_t width = (end - options.begin) / options.parts;
  std::vector<Tensor> parts;
  for (int64_t p = 0; p < options.parts; ++p) {
    const int64_t begin = options.begin + p * width;
    parts.push_back(SliceColumns(y, begin, begin + width));
  }
  return ConcatRows(parts);
}

}  // namespace lathe
