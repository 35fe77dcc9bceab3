#include "lathe/core/ops/indexing/gather.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"
#include "lathe/core/ops/shaping/concat.h"
#include "lathe/core/ops/shaping/permute.h"
#include "lathe/core/ops/shaping/view.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

Device OpDevice() { return HasCheckedDevice() ? CheckedDevice() : Device{}; }

// Returns irregular numbers in [0, size), with repetitions.
Tensor Index(const Shape& shape, int64_t size, DType dtype = DType::kI64) {
  std::vector<int64_t> numbers(static_cast<size_t>(NumElements(shape)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<int64_t>((i * i + i / 3) % static_cast<size_t>(size));
  }
  return Tensor::FromVector(numbers, shape).To(dtype);
}

// Picks by a product with rows of zeros and ones, along the last dimension.
Tensor GatherLastComposed(const Tensor& x, const Tensor& index) {
  const int64_t size = x.dim(-1);
  const Tensor hot = OneHot(index, size, x.dtype());  // [..., count, size]
  Shape shape = x.shape();
  shape.insert(shape.end() - 1, 1);
  return Squeeze(SumLast(Mul(hot, Reshape(x, shape))), -1);
}

Tensor GatherComposed(const Tensor& x, int64_t dim, const Tensor& index) {
  Tensor corner = x;
  for (int d = 0; d < x.ndim(); ++d) {
    if (d != dim) corner = Slice(corner, d, 0, index.dim(d));
  }
  return Transpose(GatherLastComposed(Transpose(corner, dim, -1), Transpose(index, dim, -1)), dim,
                   -1);
}

void CheckGather(const char* name, const Shape& x_shape, int64_t dim, const Shape& index_shape) {
  const Tensor index = Index(index_shape, x_shape[dim]);
  CheckOp({.name = name,
           .op = [&](const Tensors& x) { return Gather(x[0], dim, index.To(x[0].device())); },
           .composed = [&](const Tensors& x) { return GatherComposed(x[0], dim, index); },
           .shapes = {{x_shape}},
           .nan_check = false,
           .activations = {0}});
}

TEST(Gather, Op) {
  CheckGather("gather_columns", {3, 4}, 1, {3, 6});
  CheckGather("gather_rows_of_columns", {3, 4}, 0, {5, 4});
  CheckGather("gather_one_column", {5, 7}, 1, {5, 1});
  CheckGather("gather_middle", {2, 3, 4}, 1, {2, 5, 4});
  CheckGather("gather_fewer_rows", {4, 5}, 1, {2, 3});
  CheckGather("gather_fewer_of_all", {4, 5, 6}, 1, {2, 8, 3});
  CheckGather("gather_vector", {5}, 0, {9});
  CheckGather("gather_none", {3, 4}, 1, {3, 0});
  CheckGather("gather_no_rows", {0, 4}, 1, {0, 2});
  CheckGather("gather_many_in_a_line", {2, 30}, 1, {2, 300});
  CheckGather("gather_many_rows", {20, 3}, 0, {200, 3});
}

TEST(Gather, IndexOfInt32OnTheHost) {
  const Tensor index = Index({3, 5}, 4, DType::kI32);
  CheckOp({.name = "gather_by_int32",
           .op = [&](const Tensors& x) { return Gather(x[0], -1, index); },
           .composed = [&](const Tensors& x) { return GatherComposed(x[0], 1, index); },
           .shapes = {{{3, 4}}},
           .nan_check = false,
           .activations = {0}});
}

void CheckIndexSelect(const char* name, const Shape& x_shape, int64_t dim, int64_t count) {
  const Tensor index = Index({count}, x_shape[dim]);
  const auto composed = [&](const Tensors& x) {
    if (count == 0) return Slice(x[0], dim, 0, 0);
    std::vector<Tensor> parts;
    for (const int64_t i : index.values<int64_t>()) parts.push_back(Slice(x[0], dim, i, i + 1));
    return Concat(parts, dim);
  };
  CheckOp({.name = name,
           .op = [&](const Tensors& x) { return IndexSelect(x[0], dim, index.To(x[0].device())); },
           .composed = composed,
           .shapes = {{x_shape}},
           .activations = {0}});
}

TEST(IndexSelect, Op) {
  CheckIndexSelect("index_select_rows", {4, 3}, 0, 6);
  CheckIndexSelect("index_select_columns", {3, 5}, 1, 4);
  CheckIndexSelect("index_select_middle", {2, 4, 3}, 1, 7);
  CheckIndexSelect("index_select_wide", {2, 4, 16}, 1, 3);
  CheckIndexSelect("index_select_vector", {6}, 0, 4);
  CheckIndexSelect("index_select_none", {2, 4}, 1, 0);
  CheckIndexSelect("index_select_many_rows", {10, 8}, 0, 200);
  CheckIndexSelect("index_select_many_middle", {3, 10, 8}, 1, 150);
}

// y = x + sum_i onehot(index_i) source_i along the last dimension.
Tensor ScatterAddComposed(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  Tensor used = source;
  for (int d = 0; d < source.ndim(); ++d) used = Slice(used, d, 0, index.dim(d));
  const Tensor hot = OneHot(Transpose(index, dim, -1), x.dim(static_cast<int>(dim)), x.dtype());
  // [..., count, size] times [..., count, 1], summed over count.
  const Tensor placed = Mul(hot, Unsqueeze(Transpose(used, dim, -1), -1));
  Tensor sums = Transpose(SumLast(Transpose(placed, -1, -2)), -2, -1);
  sums = Transpose(Squeeze(sums, -2), dim, -1);
  // Zeros for the elements of x that the index does not reach.
  for (int d = 0; d < x.ndim(); ++d) {
    Shape rest = sums.shape();
    rest[d] = x.dim(d) - rest[d];
    if (rest[d] > 0) sums = Concat({sums, Tensor::Zeros(rest, x.dtype())}, d);
  }
  return Add(x, sums);
}

void CheckScatterAdd(const char* name, const Shape& x_shape, int64_t dim, const Shape& index_shape,
                     const Shape& source_shape) {
  const Tensor index = Index(index_shape, x_shape[dim]);
  CheckOp(
      {.name = name,
       .op = [&](const Tensors& x) { return ScatterAdd(x[0], dim, index.To(x[0].device()), x[1]); },
       .composed = [&](const Tensors& x) { return ScatterAddComposed(x[0], dim, index, x[1]); },
       .shapes = {{x_shape, source_shape}},
       .nan_check = false,
       .activations = {0, 1}});
}

TEST(ScatterAdd, Op) {
  CheckScatterAdd("scatter_add_columns", {3, 4}, 1, {3, 6}, {3, 6});
  CheckScatterAdd("scatter_add_rows", {3, 4}, 0, {5, 4}, {5, 4});
  CheckScatterAdd("scatter_add_middle", {2, 3, 4}, 1, {2, 5, 4}, {2, 5, 4});
  CheckScatterAdd("scatter_add_some", {4, 5}, 1, {2, 3}, {3, 7});
  CheckScatterAdd("scatter_add_vector", {5}, 0, {9}, {9});
  CheckScatterAdd("scatter_add_many", {2, 30}, 1, {2, 300}, {2, 300});
}

// Enough elements for several threads, which divide lines, columns or rows among them. The emulated
// device would take minutes.
TEST(Indexing, ManyOnHost) {
  if (!CheckedDevice().is_cpu()) GTEST_SKIP() << "for the host only";
  CheckGather("gather_on_threads", {150, 40}, 1, {150, 120});
  CheckIndexSelect("index_select_on_threads", {40, 300, 9}, 1, 50);
  CheckScatterAdd("scatter_add_lines_on_threads", {30, 13, 10}, 1, {30, 60, 10}, {30, 60, 10});
  CheckScatterAdd("scatter_add_columns_on_threads", {10, 600}, 0, {30, 600}, {30, 600});
  CheckScatterAdd("scatter_add_rows_on_threads", {40}, 0, {17000}, {17000});
}

TEST(ScatterAdd, NarrowTypesAddUpInFloat32) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    if (dtype == DType::kF16 && !HasCheckedDevice()) continue;
    for (const int64_t count : {100, 1000}) {
      const Tensor index = Tensor::Zeros({count}, DType::kI64).To(OpDevice());
      const Tensor source = Tensor::Full({count}, 1, dtype).To(OpDevice());
      const Tensor x = Tensor::Zeros({2}, dtype).To(OpDevice());
      const Tensor y = ScatterAdd(x, 0, index, source).To(DType::kF32);
      EXPECT_EQ(y.ToVector<float>(), Tensor::FromVector<float>({static_cast<float>(count), 0})
                                         .To(dtype)
                                         .To(DType::kF32)
                                         .ToVector<float>());
    }
  }
}

TEST(Indexing, EveryDType) {
  const Tensor index = Tensor::FromVector<int64_t>({2, 0}).To(OpDevice());
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kI64, DType::kI32, DType::kU8}) {
    const Tensor x = Tensor::FromVector<float>({1, 2, 3}).To(dtype).To(OpDevice());
    const auto numbers = [](const Tensor& t) {
      return t.To(Device{}).To(DType::kF32).ToVector<float>();
    };
    EXPECT_EQ(numbers(Gather(x, 0, index)), (std::vector<float>{3, 1}));
    EXPECT_EQ(numbers(IndexSelect(x, 0, index)), (std::vector<float>{3, 1}));
    const Tensor hot = OneHot(index, 3, dtype);
    EXPECT_EQ(hot.dtype(), dtype);
    EXPECT_EQ(hot.shape(), (Shape{2, 3}));
    EXPECT_EQ(numbers(hot), (std::vector<float>{0, 0, 1, 1, 0, 0}));
  }
  EXPECT_EQ(OneHot(index, 3).dtype(), DType::kI64);
  EXPECT_EQ(OneHot(Tensor::Zeros({2, 0}, DType::kI32).To(OpDevice()), 5).shape(), (Shape{2, 0, 5}));
}

std::string MessageOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.message();
  }
  return "no error";
}

TEST(Indexing, Errors) {
  const Tensor x = Tensor::Zeros({2, 3}).To(OpDevice());
  const Tensor outside = Tensor::FromVector<int64_t>({0, 1, 2, 3}, {2, 2});
  EXPECT_EQ(MessageOf([&] { Gather(x, 1, outside); }),
            "[gather] index[1, 1] is 3 but dimension 1 of shape [2, 3] has 3");
  EXPECT_EQ(MessageOf([&] { ScatterAdd(x, 1, outside, x); }),
            "[scatter_add] index[1, 1] is 3 but dimension 1 of shape [2, 3] has 3");
  EXPECT_EQ(MessageOf([&] {
              IndexSelect(x, 0, Tensor::FromVector<int32_t>({1, -1}));
            }),
            "[index_select] index[1] is -1 but dimension 0 of shape [2, 3] has 2");
  EXPECT_EQ(MessageOf([&] { OneHot(outside, 3); }),
            "[one_hot] index[1, 1] is 3 but num_classes has 3");
  const Tensor index = Tensor::Zeros({2, 2}, DType::kI64);
  EXPECT_EQ(MessageOf([&] { Gather(x, 2, index); }), "[gather] shape [2, 3] has no dimension 2");
  EXPECT_EQ(MessageOf([&] {
              Gather(x, 1, Tensor::Zeros({3, 1}, DType::kI64));
            }),
            "[gather] an index of shape [3, 1] does not fit x of shape [2, 3] along dimension 1");
  EXPECT_EQ(MessageOf([&] { Gather(x, 1, Tensor::Zeros({2}, DType::kI64)); }),
            "[gather] an index of shape [2] does not fit x of shape [2, 3] along dimension 1");
  EXPECT_EQ(MessageOf([&] {
              Gather(x, 1, Tensor::Zeros({2, 2}));
            }),
            "[gather] index must be int32 or int64 but is float32");
  EXPECT_EQ(MessageOf([&] { IndexSelect(x, 1, index); }),
            "[index_select] expected an index of one dimension but got [2, 2]");
  EXPECT_EQ(MessageOf([&] {
              ScatterAdd(x, 1, index, Tensor::Zeros({2, 1}).To(OpDevice()));
            }),
            "[scatter_add] an index of shape [2, 2] does not fit source of shape [2, 1]");
  EXPECT_EQ(MessageOf([&] { ScatterAdd(x, 1, index, x.To(DType::kBF16)); }),
            "[scatter_add] expected tensors of one dtype but got float32 and bfloat16");
  EXPECT_EQ(MessageOf([&] { OneHot(index, 0); }),
            "[one_hot] expected at least one class but got 0");
}

TEST(Indexing, OutsideOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor x = Tensor::Full({2, 3}, 1, dtype).To(device).SetRequiresGrad(true);
    const Tensor index = Tensor::FromVector<int64_t>({0, 3, -1, 1}, {2, 2}).To(device);
    const auto numbers = [](const Tensor& t) { return t.To(DType::kF32).ToVector<float>(); };
    const Tensor y = Gather(x, 1, index);
    const std::vector<float> values = numbers(y);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(values[i]), i == 1 || i == 2);
    Backward(y, Tensor::Full({2, 2}, 1, dtype).To(device));
    EXPECT_EQ(numbers(x.grad()), (std::vector<float>{1, 0, 0, 0, 1, 0}));
    const std::vector<float> sums =
        numbers(ScatterAdd(Tensor::Zeros({3, 3}, dtype).To(device), 1, index,
                           Tensor::Full({2, 2}, 1, dtype).To(device)));
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(std::isnan(sums[i]), i == 0 || i == 3) << i;
      if (!std::isnan(sums[i])) {
        EXPECT_EQ(sums[i], i == 4 ? 1 : 0) << i;
      }
    }
    const std::vector<float> hot = numbers(OneHot(index, 2, dtype));
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(hot[i]), i / 2 == 1 || i / 2 == 2);
  }
  const Tensor vector = Tensor::FromVector<int64_t>({1, 2}).To(device);
  EXPECT_EQ(OneHot(vector, 2).ToVector<int64_t>(), (std::vector<int64_t>{0, 1, -1, -1}));
  EXPECT_THROW(Gather(Tensor::Zeros({3}), 0, vector), Error);
}

// The sum of many numbers with one index has the same bits in every run and for a leaf's buffer.
TEST(Indexing, GradientRepeatsItself) {
  const Tensor index = Index({3, 2000}, 5).To(OpDevice());
  std::vector<float> numbers(6000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i)) / 3;
  const Tensor dy = Tensor::FromVector(numbers, {3, 2000}).To(OpDevice());
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    Tensor x = Tensor::Zeros({3, 5}).To(OpDevice()).SetRequiresGrad(true);
    Backward(Gather(run == 1 ? Scale(x, 1) : x, 1, index), dy);
    const std::vector<float> grad = x.grad().ToVector<float>();
    if (run == 0) first = grad;
    EXPECT_EQ(grad, first);
  }
}

TEST(Indexing, ChangedIndexIsNoticed) {
  Tensor x = Tensor::Zeros({3}).To(OpDevice()).SetRequiresGrad(true);
  Tensor index = Tensor::Zeros({2}, DType::kI64).To(OpDevice());
  const Tensor y = Gather(x, 0, index);
  index.Fill(1);
  EXPECT_THROW(Backward(Sum(y)), Error);
}

}  // namespace
}  // namespace lathe
