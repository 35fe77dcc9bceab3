#include "lathe/core/ops/shape.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/broadcast.h"
#include "lathe/core/kernels/shape_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/scatter_add.h"

namespace lathe {
namespace {

int64_t RowSize(const Tensor& x) {
  int64_t n = 1;
  for (int d = 1; d < x.ndim(); ++d) n *= x.dim(d);
  return n;
}

// Copies a block of `rows` rows and `columns` columns between two matrices on `device`. `in` and
// `out` point to the block's first element, and the strides are the matrices' row lengths.
template <typename T>
void CopyBlock(Device device, const T* in, int64_t in_stride, T* out, int64_t out_stride,
               int64_t rows, int64_t columns) {
  if (columns == 0) return;
  if (!device.is_cpu()) {
    return DeviceKernels<ShapeKernels>().copy_block(in, in_stride, out, out_stride, rows, columns,
                                                    sizeof(T));
  }
#pragma omp parallel for schedule(static) if (rows * columns > kParallelSize)
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * out_stride, in + r * in_stride, static_cast<size_t>(columns) * sizeof(T));
  }
}

// Returns the numbers of an int32 or int64 index. Throws for one outside [0, num_rows).
std::vector<int64_t> CheckedRows(const Tensor& index, int64_t num_rows) {
  const Tensor wide = index.To(DType::kI64);
  std::vector<int64_t> rows = wide.ToVector<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    Check(rows[i] >= 0 && rows[i] < num_rows, "gather_rows", "index[", i, "] is ", rows[i],
          " but x has ", num_rows, " rows");
  }
  return rows;
}

// dx[rows[i]] += dy[i]. Each thread owns a range of dx's rows. So the additions have the order of
// the index, whatever the number of threads.
template <typename T>
void ScatterAdd(const T* dy, const std::vector<int64_t>& rows, T* dx, int64_t num_rows,
                int64_t columns) {
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t owners = count * columns > kParallelSize ? 16 : 1;
#pragma omp parallel for schedule(static) if (owners > 1)
  for (int64_t owner = 0; owner < owners; ++owner) {
    const int64_t first = num_rows * owner / owners, end = num_rows * (owner + 1) / owners;
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i] < first || rows[i] >= end) continue;
      for (int64_t j = 0; j < columns; ++j) {
        T& to = dx[rows[i] * columns + j];
        cpu::Store(to, cpu::Load(to) + cpu::Load(dy[i * columns + j]));
      }
    }
  }
}

}  // namespace

// y = x in another shape;  dx = dy in x's shape
Tensor Reshape(const Tensor& x, Shape shape) {
  return Record("reshape", x.Reshape(std::move(shape)), {x}, {},
                [shape_of_x = x.shape()](BackwardContext& context) {
                  context.SetGrad(0, context.grad_output().Reshape(shape_of_x));
                });
}

// y = x[begin:end];  dx = dy there, 0 elsewhere
Tensor SliceRows(const Tensor& x, int64_t begin, int64_t end) {
  return Record("slice_rows", x.Slice(begin, end), {x}, {},
                [shape = x.shape(), begin, end](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  Tensor dx = context.LeafGrad(0);
                  const bool into_leaf = dx.defined();
                  if (!into_leaf) dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
                  Tensor rows = dx.Slice(begin, end);
                  AddInPlace(rows, dy);
                  if (!into_leaf) context.SetGrad(0, dx);
                });
}

// y = x[:, begin:end];  dx = dy there, 0 elsewhere
Tensor SliceColumns(const Tensor& x, int64_t begin, int64_t end) {
  Check(x.ndim() == 2, "slice_columns", "expected shape [R, C] but got ", x.shape());
  Check(0 <= begin && begin <= end && end <= x.dim(1), "slice_columns", "columns ", begin, " to ",
        end, " don't exist in shape ", x.shape());
  const AllocationTag allocation_tag = AllocationTag::Op("slice_columns");
  Tensor y = Tensor::Empty({x.dim(0), end - begin}, x.dtype(), x.device());
  DispatchActivations(x, "slice_columns", [&](auto tag) {
    using T = decltype(tag);
    CopyBlock(x.device(), x.data<T>() + begin, x.dim(1), y.data<T>(), end - begin, x.dim(0),
              end - begin);
  });
  return Record("slice_columns", y, {x}, {},
                [shape = x.shape(), begin, end](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  Tensor dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
                  DispatchActivations(dy, "slice_columns", [&](auto tag) {
                    using T = decltype(tag);
                    CopyBlock(dy.device(), dy.data<T>(), end - begin, dx.data<T>() + begin,
                              shape[1], shape[0], end - begin);
                  });
                  context.SetGrad(0, dx);
                });
}

// y = the parts one below the other;  dx_i = dy's rows of part i
Tensor ConcatRows(const std::vector<Tensor>& parts) {
  Check(!parts.empty(), "concat_rows", "expected at least one tensor but got none");
  Check(parts[0].ndim() >= 1, "concat_rows", "expected at least one dimension but got a scalar");
  Shape shape = parts[0].shape();
  std::vector<int64_t> begins = {0};
  for (size_t i = 0; i < parts.size(); ++i) {
    Shape expected = parts[0].shape();
    if (parts[i].ndim() >= 1) expected[0] = parts[i].dim(0);
    Check(parts[i].shape() == expected && parts[i].dtype() == parts[0].dtype(), "concat_rows",
          "part ", i, " has shape ", parts[i].shape(), " ", ToString(parts[i].dtype()),
          " but part 0 has ", parts[0].shape(), " ", ToString(parts[0].dtype()));
    CheckSameDevice("concat_rows", parts[0].device(), {parts[i]});
    begins.push_back(begins.back() + parts[i].dim(0));
  }
  shape[0] = begins.back();
  const AllocationTag allocation_tag = AllocationTag::Op("concat_rows");
  Tensor y = Tensor::Empty(shape, parts[0].dtype(), parts[0].device());
  for (size_t i = 0; i < parts.size(); ++i) y.Slice(begins[i], begins[i + 1]).CopyFrom(parts[i]);
  return Record("concat_rows", y, parts, {}, [begins](BackwardContext& context) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      context.SetGrad(i, context.grad_output().Slice(begins[i], begins[i + 1]));
    }
  });
}

// y = the parts side by side;  dx_i = dy's columns of part i
Tensor ConcatColumns(const std::vector<Tensor>& parts) {
  Check(!parts.empty(), "concat_columns", "expected at least one tensor but got none");
  std::vector<int64_t> begins = {0};
  for (size_t i = 0; i < parts.size(); ++i) {
    Check(parts[i].ndim() == 2 && parts[i].dim(0) == parts[0].dim(0) &&
              parts[i].dtype() == parts[0].dtype(),
          "concat_columns", "part ", i, " has shape ", parts[i].shape(), " ",
          ToString(parts[i].dtype()), " but part 0 has ", parts[0].shape(), " ",
          ToString(parts[0].dtype()));
    CheckSameDevice("concat_columns", parts[0].device(), {parts[i]});
    begins.push_back(begins.back() + parts[i].dim(1));
  }
  const int64_t rows = parts[0].dim(0), columns = begins.back();
  const AllocationTag allocation_tag = AllocationTag::Op("concat_columns");
  Tensor y = Tensor::Empty({rows, columns}, parts[0].dtype(), parts[0].device());
  DispatchActivations(y, "concat_columns", [&](auto tag) {
    using T = decltype(tag);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t width = parts[i].dim(1);
      CopyBlock(y.device(), parts[i].data<T>(), width, y.data<T>() + begins[i], columns, rows,
                width);
    }
  });
  return Record("concat_columns", y, parts, {}, [begins](BackwardContext& context) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      if (!context.NeedsInputGrad(i)) continue;
      context.SetGrad(i, SliceColumns(context.grad_output(), begins[i], begins[i + 1]));
    }
  });
}

namespace {

// Computes GatherRows on a device, where `index` lies, too.
Tensor GatherRowsOnDevice(const Tensor& x, const Tensor& index, const Shape& shape) {
  Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  DispatchActivations(x, "gather_rows", [&](auto tag) {
    using T = decltype(tag);
    DeviceKernels<ShapeKernels>().gather_rows(x.data<T>(), index.raw_data(), index.dtype(),
                                              y.data<T>(), index.numel(), x.dim(0), RowSize(x),
                                              sizeof(T));
  });
  return Record("gather_rows", y, {x}, {}, [index, x_shape = x.shape()](BackwardContext& context) {
    const Tensor& dy = context.grad_output();
    Tensor dx = context.LeafGrad(0);
    const bool into_leaf = dx.defined();
    if (!into_leaf) dx = Tensor::Zeros(x_shape, dy.dtype(), dy.device());
    ScatterAddRowsOnDevice(dx, dy, index);
    if (!into_leaf) context.SetGrad(0, dx);
  });
}

}  // namespace

// y_i = x[index_i];  dx[index_i] += dy_i
Tensor GatherRows(const Tensor& x, const Tensor& index) {
  Check(x.ndim() >= 1, "gather_rows", "expected at least one dimension but got a scalar");
  Check(index.dtype() == DType::kI32 || index.dtype() == DType::kI64, "gather_rows",
        "index must be int32 or int64 but is ", ToString(index.dtype()));
  const int64_t count = index.numel(), columns = RowSize(x);
  Shape shape = index.shape();
  shape.insert(shape.end(), x.shape().begin() + 1, x.shape().end());
  const AllocationTag allocation_tag = AllocationTag::Op("gather_rows");
  const bool on_host = x.device().is_cpu();
  if (!on_host && index.device() == x.device()) return GatherRowsOnDevice(x, index, shape);
  std::vector<int64_t> rows = CheckedRows(index, x.dim(0));
  if (!on_host) return GatherRowsOnDevice(x, index.To(x.device()), shape);
  Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  DispatchActivations(x, "gather_rows", [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.data<T>();
    T* out = y.data<T>();
#pragma omp parallel for schedule(static) if (count * columns > kParallelSize)
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(in + rows[i] * columns, columns, out + i * columns);
    }
  });
  return Record("gather_rows", y, {x}, {},
                [rows = std::move(rows), x_shape = x.shape(), columns](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  Tensor dx = context.LeafGrad(0);
                  const bool into_leaf = dx.defined();
                  if (!into_leaf) {
                    dx = Tensor::Empty(x_shape, dy.dtype(), dy.device());
                    dx.Fill(0);
                  }
                  DispatchActivations(dy, "gather_rows", [&](auto tag) {
                    using T = decltype(tag);
                    ScatterAdd(dy.data<T>(), rows, dx.data<T>(), x_shape[0], columns);
                  });
                  if (!into_leaf) context.SetGrad(0, dx);
                });
}

}  // namespace lathe
