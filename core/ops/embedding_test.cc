#include "lathe/core/ops/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Embedding, Sum) {
  const Tensor words = Tensor::FromVector<int32_t>({3, 0, 3, 1});
  const Tensor types = Tensor::FromVector<int32_t>({0, 1, 1, 0});
  CheckOp(
      {.name = "embedding_sum",
       .op =
           [&](const Tensors& x) {
             const Device device = x[0].device();
             return EmbeddingSum({words.To(device), types.To(device)}, {x[0], x[1]});
           },
       .composed =
           [&](const Tensors& x) { return Add(GatherRows(x[0], words), GatherRows(x[1], types)); },
       .shapes = {{{4, 8}, {2, 8}}, {{5, 33}, {3, 33}}}});
  const Tensor none = Tensor::Empty({0}, DType::kI32);
  CheckOp({.name = "embedding_of_nothing",
           .op = [&](const Tensors& x) { return EmbeddingSum({none.To(x[0].device())}, {x[0]}); },
           .composed = [&](const Tensors& x) { return GatherRows(x[0], none); },
           .shapes = {{{4, 8}}}});
}

TEST(Embedding, PaddingRowGetsNoGradient) {
  Tensor table = Tensor::Full({3, 2}, 1).SetRequiresGrad(true);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 1, 0, 2, 2});
  Backward(EmbeddingSum({ids}, {table}, {0}), Tensor::Full({5, 2}, 1));
  EXPECT_EQ(table.grad().ToVector<float>(), (std::vector<float>{0, 0, 1, 1, 2, 2}));
}

// Few and many ids, rare and frequent, more rows than a chunk of the sums has, five tables.
TEST(Embedding, ManyRowsOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const int32_t n : {1, 3, 36, 132, 300}) {
    SCOPED_TRACE(std::to_string(n) + " columns");
    constexpr int32_t kRows = 700;
    std::vector<Tensor> ids;
    std::vector<Tensor> tables;
    for (const int32_t size : {1, 2, 50, 1000, 9}) {
      std::vector<int32_t> of_table;
      for (int32_t r = 0; r < kRows; ++r) {
        of_table.push_back(static_cast<int32_t>(int64_t{r} * r * 7919 % (size + 13) % size));
      }
      ids.push_back(Tensor::FromVector(of_table));
      tables.push_back(Tensor::Empty({size, n}));
      for (int64_t i = 0; i < tables.back().numel(); ++i) {
        tables.back().data<float>()[i] = std::sin(static_cast<float>(i + size));
      }
    }
    Tensor dy = Tensor::Empty({kRows, n});
    for (int64_t i = 0; i < dy.numel(); ++i) {
      dy.data<float>()[i] = std::cos(static_cast<float>(i));
    }
    const std::vector<int64_t> padding = {-1, -1, 3, 0, -1};
    const auto run = [&](Device on, Device ids_on) {
      std::vector<Tensor> leaves, indices;
      for (const Tensor& table : tables) leaves.push_back(table.Clone().To(on));
      for (Tensor& leaf : leaves) leaf.SetRequiresGrad(true);
      for (const Tensor& i : ids) indices.push_back(i.To(ids_on));
      const Tensor y = EmbeddingSum(indices, leaves, padding);
      Backward(y, dy.To(on));
      std::vector<std::vector<float>> result = {y.ToVector<float>()};
      for (const Tensor& leaf : leaves) result.push_back(leaf.grad().ToVector<float>());
      return result;
    };
    const auto expected = run({}, {}), actual = run(device, device);
    EXPECT_EQ(actual[0], expected[0]);
    for (size_t t = 1; t < expected.size(); ++t) {
      for (size_t i = 0; i < expected[t].size(); ++i) {
        ASSERT_NEAR(actual[t][i], expected[t][i], 1e-3) << "table " << t - 1 << ", element " << i;
      }
    }
    EXPECT_EQ(run(device, Device{}), actual);  // ids that the op copies itself
  }
}

TEST(Embedding, IdOutsideItsTableOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  Tensor table = Tensor::Full({3, 2}, 1).To(device).SetRequiresGrad(true);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 3, -1, 2});
  const Tensor y = EmbeddingSum({ids.To(device)}, {table});
  const std::vector<float> values = y.ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i >= 2 && i < 6);
  }
  Backward(y, Tensor::Full({4, 2}, 1).To(device));
  EXPECT_EQ(table.grad().ToVector<float>(), (std::vector<float>{1, 1, 0, 0, 1, 1}));
  EXPECT_THROW(EmbeddingSum({ids}, {table}), Error);
}

TEST(Embedding, IdOutsideItsTable) {
  const Tensor table = Tensor::Zeros({3, 2});
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({0, 3})}, {table}), Error);
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({-1})}, {table}), Error);
}

}  // namespace
}  // namespace lathe
