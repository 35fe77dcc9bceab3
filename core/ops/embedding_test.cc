#include "lathe/core/ops/embedding.h"

#include <gtest/gtest.h>

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
             return EmbeddingSum({words, types}, {x[0], x[1]});
           },
       .composed =
           [&](const Tensors& x) { return Add(GatherRows(x[0], words), GatherRows(x[1], types)); },
       .shapes = {{{4, 8}, {2, 8}}, {{5, 33}, {3, 33}}}});
  const Tensor none = Tensor::Empty({0}, DType::kI32);
  CheckOp({.name = "embedding_of_nothing",
           .op = [&](const Tensors& x) { return EmbeddingSum({none}, {x[0]}); },
           .composed = [&](const Tensors& x) { return GatherRows(x[0], none); },
           .shapes = {{{4, 8}}}});
}

TEST(Embedding, PaddingRowGetsNoGradient) {
  Tensor table = Tensor::Full({3, 2}, 1).SetRequiresGrad(true);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 1, 0, 2, 2});
  Backward(EmbeddingSum({ids}, {table}, {0}), Tensor::Full({5, 2}, 1));
  EXPECT_EQ(table.grad().ToVector<float>(), (std::vector<float>{0, 0, 1, 1, 2, 2}));
}

TEST(Embedding, IdOutsideItsTable) {
  const Tensor table = Tensor::Zeros({3, 2});
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({0, 3})}, {table}), Error);
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({-1})}, {table}), Error);
}

}  // namespace
}  // namespace lathe
