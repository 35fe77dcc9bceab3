#include "lathe/data/datasets/batch.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

using Ids = std::vector<int32_t>;

TEST(BatchTest, PacksSequencesOneAfterAnother) {
  Batch batch = Batch::Pack({{5, 6, 7}, {8}, {9, 10}}, {{0, 1, 1}, {0}, {0, 1}},
                            Tensor::FromVector<int64_t>({1, 0, 1}));
  EXPECT_EQ(batch.input_ids.ToVector<int32_t>(), (Ids{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.token_type_ids.ToVector<int32_t>(), (Ids{0, 1, 1, 0, 0, 1}));
  EXPECT_EQ(batch.position_ids.ToVector<int32_t>(), (Ids{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(batch.cu_seqlens.ToVector<int32_t>(), (Ids{0, 3, 4, 6}));
  EXPECT_EQ(batch.sample_ids.ToVector<int32_t>(), (Ids{0, 1, 2}));
  EXPECT_EQ(batch.labels.ToVector<int64_t>(), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(batch.max_seqlen, 3);
  EXPECT_EQ(batch.size(), 3);
  EXPECT_EQ(batch.num_tokens(), 6);
  EXPECT_EQ(batch.step, -1);
}

TEST(BatchTest, TokenTypesDefaultToZero) {
  Batch batch = Batch::Pack({{5, 6}});
  EXPECT_EQ(batch.token_type_ids.ToVector<int32_t>(), (Ids{0, 0}));
  EXPECT_FALSE(batch.labels.defined());
}

TEST(BatchTest, UnpadsAnySideAndKeepsColumnsAsPositions) {
  // Right padding, left padding, none.
  Tensor ids = Tensor::FromVector<int64_t>({5, 6, 0, 0, 7, 8, 9, 10, 11}, {3, 3});
  Tensor mask = Tensor::FromVector<int32_t>({1, 1, 0, 0, 1, 1, 1, 1, 1}, {3, 3});
  Tensor types = Tensor::FromVector<int64_t>({0, 1, 0, 0, 0, 1, 1, 1, 1}, {3, 3});
  Batch batch = Batch::FromPadded(ids, mask, types, Tensor::FromVector<float>({0.5f, 1.0f, 2.0f}));
  EXPECT_EQ(batch.input_ids.ToVector<int32_t>(), (Ids{5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batch.token_type_ids.ToVector<int32_t>(), (Ids{0, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(batch.position_ids.ToVector<int32_t>(), (Ids{0, 1, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.cu_seqlens.ToVector<int32_t>(), (Ids{0, 2, 4, 7}));
  EXPECT_EQ(batch.labels.dim(0), 3);

  Batch gap =
      Batch::FromPadded(ids, Tensor::FromVector<int32_t>({1, 0, 1, 1, 1, 0, 0, 1, 0}, {3, 3}));
  EXPECT_EQ(gap.input_ids.ToVector<int32_t>(), (Ids{5, 0, 0, 7, 10}));
  EXPECT_EQ(gap.position_ids.ToVector<int32_t>(), (Ids{0, 2, 0, 1, 1}));
}

TEST(BatchTest, BadInputs) {
  Tensor ids = Tensor::FromVector<int32_t>({5, 6, 7, 8}, {2, 2});
  Tensor ones = Tensor::Full({2, 2}, 1, DType::kI32);
  EXPECT_THROW(Batch::FromPadded(ids, Tensor::FromVector<int32_t>({1, 1, 0, 0}, {2, 2})), Error);
  EXPECT_THROW(Batch::FromPadded(ids, Tensor::Full({2, 3}, 1, DType::kI32)), Error);
  EXPECT_THROW(Batch::FromPadded(ids, Tensor()), Error);
  EXPECT_THROW(Batch::FromPadded(ids, Tensor::Full({2, 2}, 1, DType::kF32)), Error);
  EXPECT_THROW(Batch::FromPadded(ids.Reshape({4}), ones), Error);
  EXPECT_THROW(Batch::FromPadded(ids, ones, {}, Tensor::Zeros({3}, DType::kI64)), Error);
  EXPECT_THROW(Batch::Pack({}), Error);
  EXPECT_THROW(Batch::Pack({{1}, {}}), Error);
  EXPECT_THROW(Batch::Pack({{1}, {2}}, {{0}}), Error);
  EXPECT_THROW(Batch::Pack({{1, 2}}, {{0}}), Error);
}

}  // namespace
}  // namespace lathe
