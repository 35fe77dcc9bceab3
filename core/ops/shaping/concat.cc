#include "lathe/core/ops/shaping/concat.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/dimensions.h"
#include "lathe/core/ops/shaping/strided_copy.h"
#include "lathe/core/ops/shaping/view.h"

namespace lathe {
namespace {

// The elements begin, begin + step, ... of a dimension; `count` of them.
struct Part {
  int dim;
  int64_t begin, count, step;
};

StridedElements ElementsOf(const Tensor& x, const Part& part) {
  Shape strides = ContiguousStrides(x.shape());
  const int64_t begin = part.begin * strides[part.dim];
  strides[part.dim] *= part.step;
  return {x, strides, begin};
}

// Returns a part of x without a record: a view if the part's elements follow each other.
Tensor PartOf(const char* op, const Tensor& x, const Part& part) {
  if (part.dim == 0 && part.step == 1) return x.Slice(part.begin, part.begin + part.count);
  Shape shape = x.shape();
  shape[part.dim] = part.count;
  const Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  CopyStrided(op, shape, ElementsOf(x, part), {y, ContiguousStrides(shape)});
  return y;
}

// Writes y over a part of x.
void WritePart(const char* op, const Tensor& y, const Tensor& x, const Part& part) {
  CopyStrided(op, y.shape(), {y, ContiguousStrides(y.shape())}, ElementsOf(x, part));
}

// y = a part of x;  dx = dy there, 0 elsewhere
Tensor SliceOf(const char* op, const Tensor& x, const Part& part) {
  if (part.dim == 0 && part.step == 1) return SliceRows(x, part.begin, part.begin + part.count);
  const AllocationTag allocation_tag = AllocationTag::Op(op);
  return Record(op, PartOf(op, x, part), {x}, {},
                [op, part, shape = x.shape()](BackwardContext& context) {
                  const Tensor& dy = context.grad_output();
                  const Tensor dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
                  WritePart(op, dy, dx, part);
                  context.SetGrad(0, dx);
                });
}

// Returns parts that share one gradient of x. The first backward function to run makes it, and the
// others write their parts into it before x's producer reads it. So the work does not grow with the
// number of parts times x's size.
std::vector<Tensor> PartsOfComputed(const Tensor& x, const std::vector<Part>& parts) {
  const auto dx = std::make_shared<Tensor>();
  const Tensor whole = Record("split", x.Detach(), {x}, {}, [dx](BackwardContext& context) {
    *dx = Tensor();
    context.SetGrad(0, context.grad_output());
  });
  std::vector<Tensor> outputs;
  for (const Part& part : parts) {
    outputs.push_back(Record("split", PartOf("split", x, part), {whole}, {},
                             [part, dx, shape = x.shape()](BackwardContext& context) {
                               const Tensor& dy = context.grad_output();
                               const bool is_first = !dx->defined();
                               if (is_first) *dx = Tensor::Zeros(shape, dy.dtype(), dy.device());
                               WritePart("split", dy, *dx, part);
                               if (is_first) context.SetGrad(0, *dx);
                             }));
  }
  return outputs;
}

}  // namespace

Tensor Slice(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  const int d = CheckedDim("slice", x.shape(), dim);
  const int64_t size = x.dim(d);
  const int64_t first = begin < 0 ? begin + size : begin;
  const int64_t last = end == kToEnd ? size : end < 0 ? end + size : end;
  Check(0 <= first && first <= last && last <= size, "slice", "elements ", begin, " to ",
        end == kToEnd ? size : end, " of dimension ", d, " don't exist in shape ", x.shape());
  Check(step >= 1, "slice", "expected a step of at least 1 but got ", step);
  return SliceOf("slice", x, {d, first, DivideUp(last - first, step), step});
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
  const int d = CheckedDim("split", x.shape(), dim);
  std::vector<Part> parts;
  int64_t begin = 0;
  bool fits = true;
  for (const int64_t size : sizes) {
    fits = fits && size >= 0 && size <= x.dim(d) - begin;
    if (fits) parts.push_back({d, std::exchange(begin, begin + size), size, 1});
  }
  Check(fits && begin == x.dim(d), "split", "sizes ", Shape(sizes.begin(), sizes.end()),
        " don't add up to dimension ", d, " of shape ", x.shape());
  const AllocationTag allocation_tag = AllocationTag::Op("split");
  if (NeedsRecord({x}) && !x.is_leaf()) return PartsOfComputed(x, parts);
  std::vector<Tensor> outputs;
  for (const Part& part : parts) outputs.push_back(SliceOf("split", x, part));
  return outputs;
}

std::vector<Tensor> Split(const Tensor& x, int64_t size, int64_t dim) {
  const int d = CheckedDim("split", x.shape(), dim);
  Check(size >= 1, "split", "expected parts of at least one element but got ", size);
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim(d) / size), size);
  if (x.dim(d) % size != 0 || x.dim(d) == 0) sizes.push_back(x.dim(d) % size);
  return Split(x, sizes, d);
}

// y = the tensors in a row;  dx_i = dy's part of tensor i
Tensor Concat(const std::vector<Tensor>& tensors, int64_t dim) {
  Check(!tensors.empty(), "concat", "expected at least one tensor but got none");
  const Tensor& first = tensors[0];
  const int d = CheckedDim("concat", first.shape(), dim);
  std::vector<Part> parts;
  Shape shape = first.shape();
  shape[d] = 0;
  for (const Tensor& t : tensors) {
    Check(t.dtype() == first.dtype(), "concat", "expected tensors of one dtype but got ",
          ToString(first.dtype()), " and ", ToString(t.dtype()));
    CheckSameDevice("concat", first.device(), {t});
    Shape expected = first.shape();
    if (t.ndim() == first.ndim()) expected[d] = t.dim(d);
    Check(t.shape() == expected, "concat", "tensors must agree in all dimensions but ", d, ": ",
          first.shape(), " and ", t.shape());
    parts.push_back({d, shape[d], t.dim(d), 1});
    shape[d] += t.dim(d);
  }
  const AllocationTag allocation_tag = AllocationTag::Op("concat");
  const Tensor y = Tensor::Empty(shape, first.dtype(), first.device());
  for (size_t i = 0; i < tensors.size(); ++i) WritePart("concat", tensors[i], y, parts[i]);
  return Record("concat", y, tensors, {}, [parts](BackwardContext& context) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!context.NeedsInputGrad(i)) continue;
      context.SetGrad(i, PartOf("concat", context.grad_output(), parts[i]));
    }
  });
}

Tensor Stack(const std::vector<Tensor>& tensors, int64_t dim) {
  Check(!tensors.empty(), "stack", "expected at least one tensor but got none");
  const Tensor& first = tensors[0];
  Check(dim >= -first.ndim() - 1 && dim <= first.ndim(), "stack", "shape ", first.shape(),
        " can't get a dimension ", dim);
  std::vector<Tensor> raised;
  for (const Tensor& t : tensors) {
    Check(t.shape() == first.shape() && t.dtype() == first.dtype(), "stack",
          "tensors must have one shape and dtype: ", first.shape(), " ", ToString(first.dtype()),
          " and ", t.shape(), " ", ToString(t.dtype()));
    raised.push_back(Unsqueeze(t, dim));
  }
  return Concat(raised, dim);
}

}  // namespace lathe
