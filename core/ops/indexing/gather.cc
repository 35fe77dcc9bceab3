#include "lathe/core/ops/indexing/gather.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/kernels/indexing/gather_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/scatter_add.h"
#include "lathe/core/ops/shaping/dimensions.h"
#include "lathe/core/ops/shaping/strided_copy.h"

namespace lathe {
namespace {

// Calls body(Number{}) with the C++ type of the numbers.
template <typename Body>
void WithNumberType(DType type, Body body) {
  if (type == DType::kI32) return body(int32_t{});
  body(int64_t{});
}

// Returns the place of element number `at` in a tensor of this shape, such as [0, 2].
Shape PlaceOf(int64_t at, const Shape& shape) {
  Shape place = shape;
  for (size_t d = shape.size(); d-- > 0; at /= shape[d]) place[d] = at % shape[d];
  return place;
}

// Checks that the numbers lie in [0, size); `whose` says of what.
void CheckNumbers(const char* op, const Tensor& index, int64_t size, const std::string& whose) {
  WithNumberType(index.dtype(), [&](auto tag) {
    using Number = decltype(tag);
    const Number* const numbers = index.data<Number>();
    const int64_t n = index.numel();
    const uint64_t most = static_cast<uint64_t>(size) - 1;
    // The highest bit of k | (most - k) is set just for numbers k outside. A loop of such bits is
    // faster than one that compares.
    uint64_t bits = 0;
#pragma omp parallel for simd schedule(static) reduction(| : bits) if (parallel : n > kParallelSize)
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t k = static_cast<uint64_t>(int64_t{numbers[i]});
      bits |= k | (most - k);
    }
    if (bits >> 63 == 0) return;
    const auto outside = [&](int64_t k) { return k < 0 || k >= size; };
    const int64_t first_outside = std::find_if(numbers, numbers + n, outside) - numbers;
    Check(false, op, "index", PlaceOf(first_outside, index.shape()), " is ", numbers[first_outside],
          " but ", whose, " has ", size);
  });
}

// Returns the index on x's device. Checks its dtype, and its numbers if they lie on the host.
Tensor CheckedIndex(const char* op, const Tensor& index, Device device, int64_t size,
                    const std::string& whose) {
  Check(index.dtype() == DType::kI32 || index.dtype() == DType::kI64, op,
        "index must be int32 or int64 but is ", ToString(index.dtype()));
  if (!index.device().is_cpu()) {
    CheckSameDevice(op, device, {index});
    return index;
  }
  CheckNumbers(op, index, size, whose);
  return index.To(device);
}
Tensor CheckedIndex(const char* op, const Tensor& index, const Tensor& x, int dim) {
  return CheckedIndex(op, index, x.device(), x.dim(dim),
                      "dimension " + std::to_string(dim) + " of shape " + ToString(x.shape()));
}

// Returns the lines of a tensor of this shape along `dim`, and the numbers that pick from them.
LineIndex LinesOf(const Shape& shape, int dim, const Tensor& index, bool is_shared) {
  LineIndex lines = {index.raw_data(),
                     index.dtype(),
                     is_shared,
                     1,
                     shape[dim],
                     1,
                     is_shared ? index.numel() : index.dim(dim)};
  for (int d = 0; d < dim; ++d) lines.outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) lines.inner *= shape[d];
  return lines;
}

// Returns the shape of the result of picking from x, or of what is added to it.
Shape PickedShape(Shape shape, int dim, int64_t count) {
  shape[dim] = count;
  return shape;
}

template <typename T, typename Number>
void GatherRange(T* y, const T* x, const LineIndex& lines, int64_t first, int64_t end) {
  const int64_t inner = lines.inner;
  if (inner == 1 && lines.count == 1) {  // one element of each line
    const Number* const numbers = static_cast<const Number*>(lines.numbers);
    const int64_t shared = lines.is_shared ? 0 : 1;
    for (int64_t row = first; row < end; ++row)
      y[row] = x[row * lines.size + numbers[row * shared]];
    return;
  }
  for (int64_t row = first; row < end;) {
    const int64_t o = row / lines.count, i = row % lines.count;
    const int64_t n = std::min(lines.count - i, end - row);  // rows from the same lines
    const T* const line = x + o * lines.size * inner;
    const Number* const own =
        static_cast<const Number*>(lines.numbers) + (lines.is_shared ? i : row * inner);
    T* const to = y + row * inner;
    if (inner == 1) {
      for (int64_t k = 0; k < n; ++k) to[k] = line[own[k]];
    } else if (lines.is_shared) {
      for (int64_t k = 0; k < n; ++k) {
        std::memcpy(to + k * inner, line + own[k] * inner, static_cast<size_t>(inner) * sizeof(T));
      }
    } else {
      for (int64_t k = 0; k < n * inner; k += inner) {
        for (int64_t c = 0; c < inner; ++c) to[k + c] = line[own[k + c] * inner + c];
      }
    }
    row += n;
  }
}

template <typename T>
void GatherOnHost(void* y_data, const void* x_data, const LineIndex& lines) {
  T* const y = static_cast<T*>(y_data);
  const T* const x = static_cast<const T*>(x_data);
  const int64_t rows = lines.outer * lines.count, n = rows * lines.inner;
  if (n == 0) return;
  const int64_t at_once = std::max<int64_t>(kParallelSize / lines.inner, 1);
  WithNumberType(lines.type, [&](auto tag) {
#pragma omp parallel for schedule(static) if (n > kParallelSize)
    for (int64_t first = 0; first < rows; first += at_once) {
      GatherRange<T, decltype(tag)>(y, x, lines, first, std::min(first + at_once, rows));
    }
  });
}

// Returns the elements that `lines`, the lines of x, pick. Records nothing.
Tensor GatherLines(const Tensor& x, const LineIndex& lines, const Shape& shape) {
  const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  const int64_t size = SizeOf(x.dtype());
  if (!x.device().is_cpu()) {
    DeviceKernels<GatherKernels>().gather(y.raw_data(), x.raw_data(), size, lines);
  } else if (size == 1) {
    GatherOnHost<uint8_t>(y.raw_data(), x.raw_data(), lines);
  } else if (size == 2) {
    GatherOnHost<uint16_t>(y.raw_data(), x.raw_data(), lines);
  } else if (size == 4) {
    GatherOnHost<uint32_t>(y.raw_data(), x.raw_data(), lines);
  } else {
    GatherOnHost<uint64_t>(y.raw_data(), x.raw_data(), lines);
  }
  return y;
}

// A part of the work of adding to lines: rows [row_begin, row_end) and columns [begin, end) of the
// lines with number `outer`. No other part writes there.
struct AddPart {
  int64_t outer, row_begin, row_end, begin, end;
};

template <typename T, typename Number>
void AddRange(T* to, const T* x, const LineIndex& lines, const AddPart& part) {
  const int64_t inner = lines.inner, first = part.outer * lines.count * inner;
  const Number* const own =
      static_cast<const Number*>(lines.numbers) + (lines.is_shared ? 0 : first);
  const T* const from = x + first;
  T* const line = to + part.outer * lines.size * inner;
  const bool has_all_rows = part.row_begin == 0 && part.row_end == lines.size;
  const auto is_elsewhere = [&](int64_t number) {
    return !has_all_rows && (number < part.row_begin || number >= part.row_end);
  };
  if (inner == 1) {
    for (int64_t i = 0; i < lines.count; ++i) {
      if (!is_elsewhere(own[i])) line[own[i]] += from[i];
    }
    return;
  }
  for (int64_t i = 0; i < lines.count; ++i) {
    const T* const row = from + i * inner;
    if (lines.is_shared) {
      if (is_elsewhere(own[i])) continue;
      T* const target = line + own[i] * inner;
#pragma omp simd
      for (int64_t c = part.begin; c < part.end; ++c) target[c] += row[c];
    } else {
      for (int64_t c = part.begin; c < part.end; ++c) {
        const int64_t number = own[i * inner + c];
        if (!is_elsewhere(number)) line[number * inner + c] += row[c];
      }
    }
  }
}

// Each thread owns what it writes: whole lines, or if there are few, columns or rows of them. So an
// element's additions have the order of the index, whatever the number of threads.
template <typename T>
void AddLinesOnHost(T* to, const T* x, const LineIndex& lines) {
  const bool is_large = lines.outer * lines.count * lines.inner > kParallelSize;
  const int64_t threads = is_large ? omp_get_max_threads() : 1;
  const int64_t parts = lines.outer >= threads ? 1 : threads;
  constexpr int64_t kFewColumns = 64;
  const bool by_columns = lines.inner >= kFewColumns * parts;
  WithNumberType(lines.type, [&](auto tag) {
#pragma omp parallel for schedule(static) if (is_large)
    for (int64_t i = 0; i < lines.outer * parts; ++i) {
      const int64_t p = i % parts;
      AddPart part = {i / parts, 0, lines.size, 0, lines.inner};
      if (by_columns) {
        part.begin = lines.inner * p / parts;
        part.end = lines.inner * (p + 1) / parts;
      } else {
        part.row_begin = lines.size * p / parts;
        part.row_end = lines.size * (p + 1) / parts;
      }
      AddRange<T, decltype(tag)>(to, x, lines, part);
    }
  });
}

void AddLinesOnDevice(const Tensor& to, const Tensor& x, const LineIndex& lines) {
  constexpr int64_t kFew = 128;  // numbers of a line that threads can compare with each other
  const GatherKernels& kernels = DeviceKernels<GatherKernels>();
  if (lines.count <= kFew) {
    return kernels.scatter_add(to.raw_data(), x.raw_data(), to.dtype(), lines);
  }
  const int64_t columns = lines.is_shared ? lines.inner : 1;
  const Tensor rows = Tensor::Empty({x.numel() / columns}, DType::kI64, to.device());
  kernels.rows_of(rows.data<int64_t>(), lines);
  ScatterAddRowsOnDevice(to.Reshape({to.numel() / columns, columns}),
                         x.Reshape({x.numel() / columns, columns}), rows);
}

// to[o, index[o, i, c], c] += x[o, i, c] for the lines of `to`. x has as many elements as the lines
// pick, and the dtype of `to`.
void AddLines(const char* op, Tensor& to, const Tensor& x, const LineIndex& lines) {
  if (x.numel() == 0 || to.numel() == 0) return;
  if (!to.device().is_cpu()) {
    AddLinesOnDevice(to, x, lines);
  } else if (to.dtype() == DType::kBF16 || to.dtype() == DType::kF16) {
    const Tensor wide = to.To(DType::kF32);
    AddLinesOnHost(wide.data<float>(), x.To(DType::kF32).data<float>(), lines);
    return to.CopyFrom(wide);
  } else {
    DispatchFloat(to.dtype(), op, [&](auto tag) {
      using T = decltype(tag);
      AddLinesOnHost(to.data<T>(), x.data<T>(), lines);
    });
  }
  to.impl()->storage->BumpVersion();
}

// Gives input 0, of which `lines` picked, its gradient: dx[o, index[o, i, c], c] += dy[o, i, c].
void SetGradOfPicked(const char* op, BackwardContext& context, const Shape& shape,
                     const LineIndex& lines) {
  const Tensor& dy = context.grad_output();
  Tensor dx = context.LeafGrad(0);
  const bool into_leaf = dx.defined();
  if (!into_leaf) dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
  AddLines(op, dx, dy, lines);
  if (!into_leaf) context.SetGrad(0, dx);
}

// Returns the first elements of x along each dimension, as many as `shape` has: x itself if it has
// that shape.
Tensor CornerOf(const char* op, const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const Tensor corner = Tensor::Empty(shape, x.dtype(), x.device());
  CopyStrided(op, shape, {x, ContiguousStrides(x.shape())}, {corner, ContiguousStrides(shape)});
  return corner;
}

// Does the reverse: writes a corner back into x.
void WriteCorner(const char* op, const Tensor& corner, const Tensor& x) {
  CopyStrided(op, corner.shape(), {corner, ContiguousStrides(corner.shape())},
              {x, ContiguousStrides(x.shape())});
}

// Returns `corner` with zeros behind it, in this shape.
Tensor WithZeros(const char* op, const Tensor& corner, const Shape& shape) {
  if (corner.shape() == shape) return corner;
  const Tensor x = Tensor::Zeros(shape, corner.dtype(), corner.device());
  WriteCorner(op, corner, x);
  return x;
}

// Throws unless the index fits into x in all dimensions but `dim`, which is -1 for none.
void CheckFits(const char* op, const Tensor& index, const char* what, const Tensor& x, int dim) {
  bool fits = index.ndim() == x.ndim();
  for (int d = 0; d < x.ndim() && fits; ++d) fits = d == dim || index.dim(d) <= x.dim(d);
  Check(fits, op, "an index of shape ", index.shape(), " does not fit ", what, " of shape ",
        x.shape(), dim < 0 ? "" : " along dimension " + std::to_string(dim));
}

}  // namespace

// y[o, i, c] = x[o, index[o, i, c], c];  dx[o, index[o, i, c], c] += dy[o, i, c]
Tensor Gather(const Tensor& x, int64_t dim, const Tensor& index) {
  constexpr const char* kOp = "gather";
  const int d = CheckedDim(kOp, x.shape(), dim);
  CheckFits(kOp, index, "x", x, d);
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const Tensor numbers = CheckedIndex(kOp, index, x, d);
  const Shape corner = PickedShape(index.shape(), d, x.dim(d));
  const Tensor y =
      GatherLines(CornerOf(kOp, x, corner), LinesOf(corner, d, numbers, false), index.shape());
  return Record(kOp, y, {x}, {numbers},
                [numbers, corner, d, shape = x.shape()](BackwardContext& context) {
                  const LineIndex lines = LinesOf(corner, d, numbers, false);
                  if (corner == shape) return SetGradOfPicked(kOp, context, shape, lines);
                  const Tensor& dy = context.grad_output();
                  Tensor dx = Tensor::Zeros(corner, dy.dtype(), dy.device());
                  AddLines(kOp, dx, dy, lines);
                  context.SetGrad(0, WithZeros(kOp, dx, shape));
                });
}

// y[o, i, c] = x[o, index[i], c];  dx[o, index[i], c] += dy[o, i, c]
Tensor IndexSelect(const Tensor& x, int64_t dim, const Tensor& index) {
  constexpr const char* kOp = "index_select";
  const int d = CheckedDim(kOp, x.shape(), dim);
  Check(index.ndim() == 1, kOp, "expected an index of one dimension but got ", index.shape());
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const Tensor numbers = CheckedIndex(kOp, index, x, d);
  const Tensor y = GatherLines(x, LinesOf(x.shape(), d, numbers, true),
                               PickedShape(x.shape(), d, index.numel()));
  return Record(kOp, y, {x}, {numbers}, [numbers, d, shape = x.shape()](BackwardContext& context) {
    SetGradOfPicked(kOp, context, shape, LinesOf(shape, d, numbers, true));
  });
}

// y = x, y[o, index[o, i, c], c] += s[o, i, c];  dx = dy,  ds[o, i, c] = dy[o, index[o, i, c], c]
Tensor ScatterAdd(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  constexpr const char* kOp = "scatter_add";
  const int d = CheckedDim(kOp, x.shape(), dim);
  CheckFits(kOp, index, "x", x, d);
  CheckFits(kOp, index, "source", source, -1);
  Check(x.dtype() == source.dtype(), kOp, "expected tensors of one dtype but got ",
        ToString(x.dtype()), " and ", ToString(source.dtype()));
  Check(IsFloating(x.dtype()), kOp, "expected a floating-point dtype but got ",
        ToString(x.dtype()));
  CheckSameDevice(kOp, x.device(), {source});
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const Tensor numbers = CheckedIndex(kOp, index, x, d);
  const Shape corner = PickedShape(index.shape(), d, x.dim(d));
  const Tensor y = x.Clone();
  Tensor sums = CornerOf(kOp, y, corner);
  const LineIndex lines = LinesOf(corner, d, numbers, false);
  AddLines(kOp, sums, CornerOf(kOp, source.Detach(), index.shape()), lines);
  if (!index.device().is_cpu()) {
    DeviceKernels<GatherKernels>().mark_outside(sums.raw_data(), SizeOf(x.dtype()), lines);
  }
  if (corner != x.shape()) WriteCorner(kOp, sums, y);
  return Record(kOp, y, {x, source}, {numbers},
                [numbers, corner, d, shape = source.shape()](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  context.SetGrad(0, dy);
                  if (!context.NeedsInputGrad(1)) return;
                  const Tensor picked =
                      GatherLines(CornerOf(kOp, dy, corner), LinesOf(corner, d, numbers, false),
                                  numbers.shape());
                  context.SetGrad(1, WithZeros(kOp, picked, shape));
                });
}

Tensor OneHot(const Tensor& index, int64_t num_classes, DType dtype) {
  constexpr const char* kOp = "one_hot";
  Check(num_classes >= 1, kOp, "expected at least one class but got ", num_classes);
  const AllocationTag allocation_tag = AllocationTag::Op(kOp);
  const Tensor numbers = CheckedIndex(kOp, index, index.device(), num_classes, "num_classes");
  Shape shape = index.shape();
  shape.push_back(num_classes);
  const int64_t size = SizeOf(dtype);
  const Tensor one = Tensor::Full({}, 1, dtype);
  Tensor y;
  if (index.device().is_cpu()) {
    y = Tensor::Zeros(shape, dtype);
    char* const to = static_cast<char*>(y.raw_data());
    WithNumberType(numbers.dtype(), [&](auto tag) {
      const auto values = numbers.values<decltype(tag)>();
      for (size_t i = 0; i < values.size(); ++i) {
        std::memcpy(to + (static_cast<int64_t>(i) * num_classes + values[i]) * size, one.raw_data(),
                    static_cast<size_t>(size));
      }
    });
  } else {
    y = Tensor::Empty(shape, dtype, index.device());
    uint64_t bits = 0;
    std::memcpy(&bits, one.raw_data(), static_cast<size_t>(size));
    DeviceKernels<GatherKernels>().one_hot(y.raw_data(), size, bits, numbers.raw_data(),
                                           numbers.dtype(), numbers.numel(), num_classes);
  }
  return Record(kOp, y, {}, {}, nullptr);
}

}  // namespace lathe
