#include "lathe/core/ops/shape.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(ShapeOps, Views) {
  CheckOp({.name = "reshape",
           .op =
               [](const Tensors& x) {
                 return Reshape(x[0], {2, -1});
               },
           .shapes = {{{4, 3}}, {{2}}, {{0, 3}}},
           .activations = {0}});
  CheckOp({.name = "slice_rows",
           .op = [](const Tensors& x) { return SliceRows(x[0], 1, 4); },
           .shapes = {{{5, 3}}, {{4}}, {{4, 2, 3}}, {{5, 0}}},
           .activations = {0}});
  CheckOp({.name = "slice_no_rows",
           .op = [](const Tensors& x) { return SliceRows(x[0], 0, 0); },
           .shapes = {{{5, 3}}, {{0, 3}}}});
}

TEST(ShapeOps, Copies) {
  CheckOp({.name = "slice_columns",
           .op = [](const Tensors& x) { return SliceColumns(x[0], 1, 3); },
           .shapes = {{{5, 4}}, {{1, 3}}, {{0, 3}}, {{300, 70}}},
           .activations = {0}});
  CheckOp({.name = "slice_wide_columns",
           .op = [](const Tensors& x) { return SliceColumns(x[0], 16, 48); },
           .shapes = {{{5, 64}}},
           .activations = {0}});
  CheckOp({.name = "concat_rows",
           .op = [](const Tensors& x) { return ConcatRows(x); },
           .shapes = {{{2, 3}, {1, 3}, {4, 3}}, {{2}, {3}}, {{0, 3}, {2, 3}}, {{2, 2, 2}}}});
  CheckOp({.name = "concat_two_rows",
           .op = [](const Tensors& x) { return ConcatRows(x); },
           .shapes = {{{2, 3}, {1, 3}}, {{4, 64}, {9, 64}}, {{2}, {3}}},
           .activations = {0, 1}});
  CheckOp({.name = "concat_rows_of_one_tensor",
           .op =
               [](const Tensors& x) {
                 return ConcatRows({x[0], x[0]});
               },
           .shapes = {{{2, 3}}},
           .activations = {0}});
  CheckOp({.name = "concat_columns",
           .op = [](const Tensors& x) { return ConcatColumns(x); },
           .shapes = {{{2, 3}, {2, 1}, {2, 4}}, {{0, 3}, {0, 2}}, {{2, 0}, {2, 3}}}});
  CheckOp({.name = "concat_two_columns",
           .op = [](const Tensors& x) { return ConcatColumns(x); },
           .shapes = {{{9, 64}, {9, 32}}, {{3, 5}, {3, 2}}},
           .activations = {0, 1}});
}

TEST(ShapeOps, GatherRows) {
  const Tensor index = Tensor::FromVector<int64_t>({2, 0, 2, 1, 2}, {5});
  CheckOp({.name = "gather_rows",
           .op = [&](const Tensors& x) { return GatherRows(x[0], index); },
           .shapes = {{{3, 4}}, {{3}}, {{4, 2, 3}}, {{3, 0}}, {{3, 72}}},
           .activations = {0}});
  CheckOp({.name = "gather_rows_by_index_on_device",
           .op = [&](const Tensors& x) { return GatherRows(x[0], index.To(x[0].device())); },
           .shapes = {{{3, 4}}, {{3}}, {{4, 2, 3}}, {{3, 0}}, {{3, 72}}},
           .activations = {0}});
  CheckOp({.name = "gather_no_rows",
           .op = [](const Tensors& x) { return GatherRows(x[0], Tensor::Empty({0}, DType::kI64)); },
           .shapes = {{{3, 4}}, {{0, 4}}}});
  std::vector<int32_t> many;
  for (int i = 0; i < 600; ++i) many.push_back(i * i % 37);
  const Tensor many_index = Tensor::FromVector(many, {20, 30});
  CheckOp({.name = "gather_many_rows",
           .op = [&](const Tensors& x) { return GatherRows(x[0], many_index.To(x[0].device())); },
           .composed =
               [&](const Tensors& x) {
                 std::vector<Tensor> rows;
                 for (int32_t i : many) rows.push_back(SliceRows(x[0], i, i + 1));
                 return Reshape(ConcatRows(rows), {20, 30, 40});
               },
           .shapes = {{{37, 40}}},
           .activations = {0}});
}

TEST(ShapeOps, FrequentRowsOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  std::vector<int64_t> frequent;
  for (int64_t i = 0; i < 500; ++i) frequent.push_back(i % 5 == 0 ? i % 3 : 1);
  for (const DType dtype : {DType::kI64, DType::kI32}) {
    const Tensor index = Tensor::FromVector(frequent).To(dtype);
    CheckOp({.name = "gather_frequent_rows",
             .op = [&](const Tensors& x) { return GatherRows(x[0], index.To(x[0].device())); },
             .shapes = {{{4, 40}}, {{3, 5}}},
             .activations = {0}});
  }
}

TEST(ShapeOps, IndexOutsideOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor x = Tensor::Full({2, 3}, 1, dtype).To(device).SetRequiresGrad(true);
    const Tensor index = Tensor::FromVector<int64_t>({1, -1, 2, int64_t{1} << 40}).To(device);
    const Tensor y = GatherRows(x, index);
    const std::vector<float> values = y.To(DType::kF32).ToVector<float>();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i >= 3);
    Backward(y, Tensor::Full({4, 3}, 1, dtype).To(device));
    EXPECT_EQ(x.grad().To(DType::kF32).ToVector<float>(), (std::vector<float>{0, 0, 0, 1, 1, 1}));
    EXPECT_THROW(GatherRows(x, index.To(Device{})), Error);
  }
  EXPECT_THROW(ConcatRows({Tensor::Zeros({2, 3}), Tensor::Zeros({2, 3}).To(device)}), Error);
}

TEST(ShapeOps, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(SliceColumns(x, 1, 3).ToVector<float>(), (std::vector<float>{2, 3, 5, 6}));
  EXPECT_EQ(ConcatColumns({x, x}).Slice(0, 1).ToVector<float>(),
            (std::vector<float>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(SliceRows(x, 1, 2).raw_data(), x.data<float>() + 3);  // a view
}

TEST(ShapeOps, Errors) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_THROW(Reshape(x, {4}), Error);
  EXPECT_THROW(SliceRows(x, 1, 3), Error);
  EXPECT_THROW(SliceColumns(x, 2, 1), Error);
  EXPECT_THROW(ConcatRows({}), Error);
  EXPECT_THROW(ConcatRows({x, Tensor::Zeros({2, 2})}), Error);
  EXPECT_THROW(ConcatRows({x, Tensor::Zeros({})}), Error);
  EXPECT_THROW(ConcatColumns({x, Tensor::Zeros({3, 3})}), Error);
  EXPECT_THROW(GatherRows(x, Tensor::Zeros({1})), Error);
  try {
    GatherRows(x, Tensor::FromVector<int64_t>({0, 2}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[gather_rows] index[1] is 2 but x has 2 rows");
  }
}

}  // namespace
}  // namespace lathe
