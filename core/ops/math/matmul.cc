#include "lathe/core/ops/math/matmul.h"

#include <omp.h>

#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/math/product_threads.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

constexpr const char* kOp = "matmul";

// Matrices of one shape. Their number along each leading dimension is in `leading`.
struct Matrices {
  Tensor tensor;
  Shape leading;
  int64_t rows, columns;  // as stored
  bool transpose;

  int64_t size() const { return rows * columns; }
  Matrices Transposed() const { return {tensor, leading, rows, columns, !transpose}; }
  int64_t OpRows() const { return transpose ? columns : rows; }
  int64_t OpColumns() const { return transpose ? rows : columns; }
  // Returns the strides, in elements, by which the matrices are read along `target`.
  Shape StridesIn(const Shape& target) const {
    Shape strides = BroadcastStrides(leading, target);
    for (int64_t& stride : strides) stride *= size();
    return strides;
  }
};

Matrices MatricesOf(const Tensor& x, bool transpose) {
  return {x, Shape(x.shape().begin(), x.shape().end() - 2), x.dim(-2), x.dim(-1), transpose};
}

// Makes the matrices one, with all rows below each other.
void Stack(Matrices& m) {
  m.rows *= NumElements(m.leading);
  m.leading.clear();
}

// Returns the offset of matrix `i`, counted along `leading`.
int64_t OffsetOf(int64_t i, const Shape& leading, const Shape& strides) {
  int64_t offset = 0;
  for (size_t d = leading.size(); d-- > 0;) {
    offset += i % leading[d] * strides[d];
    i /= leading[d];
  }
  return offset;
}

// Returns true if `count` products divide well among the threads.
bool DividesWell(int64_t count) {
  const int64_t threads = omp_get_max_threads();
  return count % threads == 0 || count >= 4 * threads;
}

// c_i = op(x_i) op(y_i) on a device, for all matrices along `leading`, one behind the other. C is T
// or float.
template <typename T, typename C>
void ProductsOnDevice(const Matrices& x, const Matrices& y, const Shape& leading, const Tensor& c) {
  const int64_t M = x.OpRows(), N = y.OpColumns();
  const WalkDims dims = MergedDims(leading, x.StridesIn(leading), y.StridesIn(leading));
  const int last = dims.count - 1;
  const int64_t batch = dims.count == 0 ? 1 : dims.sizes[last];
  const int64_t launches = NumElements(leading) / batch;
  for (int64_t i = 0; i < launches; ++i) {
    int64_t rest = i, x_at = 0, y_at = 0;
    for (int d = last - 1; d >= 0; --d) {
      x_at += rest % dims.sizes[d] * dims.a_strides[d];
      y_at += rest % dims.sizes[d] * dims.b_strides[d];
      rest /= dims.sizes[d];
    }
    DeviceKernels<GemmKernels>().product({.transpose_a = x.transpose,
                                          .transpose_b = y.transpose,
                                          .M = M,
                                          .N = N,
                                          .K = x.OpColumns(),
                                          .a = x.tensor.data<T>() + x_at,
                                          .lda = x.columns,
                                          .b = y.tensor.data<T>() + y_at,
                                          .ldb = y.columns,
                                          .beta = 0,
                                          .c = c.data<C>() + i * batch * M * N,
                                          .ldc = N,
                                          .bias = nullptr,
                                          .type = DTypeOf<T>::value,
                                          .c_type = DTypeOf<C>::value,
                                          .batch = batch,
                                          .a_stride = dims.count == 0 ? 0 : dims.a_strides[last],
                                          .b_stride = dims.count == 0 ? 0 : dims.b_strides[last],
                                          .c_stride = M * N});
  }
}

Shape With(Shape leading, int64_t rows, int64_t columns) {
  leading.push_back(rows);
  leading.push_back(columns);
  return leading;
}

// Returns op(x) op(y) for all matrices along `leading`, summed over the dimensions along which
// `target` has size 1. The result's leading dimensions are `target`.
template <typename T>
Tensor Products(const Matrices& x, const Matrices& y, const Shape& leading, const Shape& target) {
  using M = MathType<T>;
  const Device device = x.tensor.device();
  const DType dtype = x.tensor.dtype();
  const int64_t rows = x.OpRows(), columns = y.OpColumns(), depth = x.OpColumns();
  const int64_t count = NumElements(leading);
  const Shape shape = With(target, rows, columns);
  if (NumElements(shape) == 0 || count == 0 || depth == 0) {
    return Tensor::Zeros(shape, dtype, device);
  }
  const bool sums = leading != target;
  if (!device.is_cpu()) {
    if constexpr (!std::is_same_v<T, double>) {
      const Tensor all =
          Tensor::Empty(With(leading, rows, columns), sums ? DType::kF32 : dtype, device);
      if (!sums) {
        ProductsOnDevice<T, T>(x, y, leading, all);
        return all;
      }
      ProductsOnDevice<T, float>(x, y, leading, all);
      return SumToShape(all, shape).To(dtype);
    }
  }
  if constexpr (!std::is_same_v<T, Float16>) {
    const Shape x_strides = x.StridesIn(leading), y_strides = y.StridesIn(leading);
    const T* const x_data = x.tensor.data<T>();
    const T* const y_data = y.tensor.data<T>();
    const auto product = [&](int64_t i, auto* c, double beta) {
      Gemm(device, {.a = x.transpose, .b = y.transpose}, rows, columns, depth,
           x_data + OffsetOf(i, leading, x_strides), x.columns,
           y_data + OffsetOf(i, leading, y_strides), y.columns, beta, c, columns);
    };
    const int64_t size = rows * columns;
    if (!sums) {
      const Tensor c = Tensor::Empty(shape, dtype, device);
      T* const to = c.data<T>();
      ForProducts(count, DividesWell(count),
                  [&](int64_t i, int64_t) { product(i, to + i * size, 0); });
      return c;
    }
    const Tensor c = Tensor::Empty(shape, DTypeOf<M>::value, device);
    Shape c_strides = BroadcastStrides(target, leading);
    std::vector<bool> has_values(static_cast<size_t>(NumElements(target)));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = OffsetOf(i, leading, c_strides);
      product(i, c.data<M>() + at * size, has_values[static_cast<size_t>(at)] ? 1 : 0);
      has_values[static_cast<size_t>(at)] = true;
    }
    return c.To(dtype);
  }
  return {};
}

std::string DimensionName(bool last) {
  return last ? "last dimension" : "second-to-last dimension";
}

// Throws unless the operands fit each other.
void CheckOperands(const Tensor& a, const Tensor& b, Transposes transposes) {
  Check(a.dtype() == b.dtype(), kOp, "expected operands of one dtype but got ", ToString(a.dtype()),
        " and ", ToString(b.dtype()));
  CheckSameDevice(kOp, a.device(), {b});
  Check(a.ndim() >= 1 && b.ndim() >= 1, kOp, "operands need at least one dimension: ", a.shape(),
        " and ", b.shape());
  Check((a.ndim() > 1 || !transposes.a) && (b.ndim() > 1 || !transposes.b), kOp,
        "a vector can't be transposed: ", a.shape(), " and ", b.shape());
  const bool a_last = !transposes.a, b_last = transposes.b || b.ndim() == 1;
  Check(a.dim(a_last ? -1 : -2) == b.dim(b_last ? -1 : -2), kOp, "the ", DimensionName(a_last),
        " of a and the ",
        b_last == a_last ? DimensionName(b_last)
        : b_last         ? "last"
                         : "second-to-last",
        " of b must agree: ", a.shape(), " and ", b.shape());
}

}  // namespace

// C = op(A) op(B);  dA = dC op(B)^T, transposed if A was;  dB = op(A)^T dC, transposed if B was.
// Both are summed over the dimensions along which the operand was broadcast.
Tensor Matmul(const Tensor& a, const Tensor& b, Transposes transposes) {
  CheckOperands(a, b, transposes);
  if (a.ndim() == 1 || b.ndim() == 1) {
    const Tensor y = Matmul(a.ndim() == 1 ? Reshape(a, {1, a.dim(0)}) : a,
                            b.ndim() == 1 ? Reshape(b, {b.dim(0), 1}) : b, transposes);
    Shape shape = y.shape();
    if (b.ndim() == 1) shape.pop_back();
    if (a.ndim() == 1) shape.erase(shape.end() - (b.ndim() == 1 ? 1 : 2));
    return Reshape(y, shape);
  }
  Matrices left = MatricesOf(a, transposes.a), right = MatricesOf(b, transposes.b);
  Shape leading;
  try {
    leading = BroadcastShape(kOp, left.leading, right.leading);
  } catch (const Error&) {
    Check(false, kOp, "the leading dimensions of a and b must broadcast: ", a.shape(), " and ",
          b.shape());
  }
  const Shape shape = With(leading, left.OpRows(), right.OpColumns());
  // A single right matrix multiplies all rows at once.
  if (!left.transpose && NumElements(right.leading) == 1) {
    Stack(left);
    Stack(right);
    leading.clear();
  }
  return DispatchActivations(a, kOp, [&](auto tag) {
    using T = decltype(tag);
    left.tensor = a.Detach();
    right.tensor = b.Detach();
    const Tensor c = Products<T>(left, right, leading, leading).Reshape(shape);
    return Record(kOp, c, {a, b}, {a, b}, [left, right, leading](BackwardContext& context) {
      const Matrices dc = {context.grad_output(), leading, left.OpRows(), right.OpColumns(), false};
      const auto target = [&](const Matrices& m) {
        Shape padded(leading.size() - m.leading.size(), 1);
        padded.insert(padded.end(), m.leading.begin(), m.leading.end());
        return padded;
      };
      // The gradient of op(X) is `x y`, and that of X its transpose if X was transposed.
      const auto set = [&](size_t i, const Matrices& of, const Matrices& x, const Matrices& y) {
        if (!context.NeedsInputGrad(i)) return;
        const Tensor d = of.transpose
                             ? Products<T>(y.Transposed(), x.Transposed(), leading, target(of))
                             : Products<T>(x, y, leading, target(of));
        context.SetGrad(i, d.Reshape(of.tensor.shape()));
      };
      set(0, left, dc, right.Transposed());
      set(1, right, left.Transposed(), dc);
    });
  });
}

Tensor MatmulComposed(const Tensor& a, const Tensor& b, Transposes transposes) {
  const Matrices left = MatricesOf(a, transposes.a);
  const Matrices right = MatricesOf(b, transposes.b);
  const Shape leading = BroadcastShape(kOp, left.leading, right.leading);
  if (NumElements(leading) == 0) {
    const Tensor nothing =
        Tensor::Zeros(With(leading, left.OpRows(), right.OpColumns()), a.dtype(), a.device());
    return Mul(nothing, Add(Sum(a), Sum(b)));  // both get gradients
  }
  const Tensor lefts = Reshape(a, {NumElements(left.leading) * left.rows, left.columns});
  const Tensor rights = Reshape(b, {NumElements(right.leading) * right.rows, right.columns});
  std::vector<Tensor> products;
  for (int64_t i = 0; i < NumElements(leading); ++i) {
    const int64_t l = OffsetOf(i, leading, BroadcastStrides(left.leading, leading)) * left.rows;
    const int64_t r = OffsetOf(i, leading, BroadcastStrides(right.leading, leading)) * right.rows;
    products.push_back(MatrixProduct(SliceRows(lefts, l, l + left.rows),
                                     SliceRows(rights, r, r + right.rows), transposes));
  }
  return Reshape(ConcatRows(products), With(leading, left.OpRows(), right.OpColumns()));
}

}  // namespace lathe
