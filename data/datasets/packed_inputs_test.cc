#include <gtest/gtest.h>

#include "lathe/data/datasets/device_batch.h"

namespace lathe {
namespace {

using Ids = std::vector<int32_t>;

TEST(PackedInputsTest, FillsABatchUpToItsShape) {
  const Batch batch = Batch::Pack({{5, 6, 7}, {8}}, {}, Tensor::FromVector<int32_t>({1, 0}));
  const PackedShape shape = {.rows = 8, .sequences = 4, .max_seqlen = 64};
  const Tensor numbers = DeviceBatch::Pack(batch, shape, 9, 0.5f);
  const DeviceBatch inputs = DeviceBatch::In(numbers, batch, shape);
  EXPECT_EQ(inputs.input_ids.ToVector<int32_t>(), (Ids{5, 6, 7, 8, 0, 0, 0, 0}));
  EXPECT_EQ(inputs.token_type_ids.ToVector<int32_t>(), Ids(8));
  EXPECT_EQ(inputs.row_positions.ToVector<int32_t>(), (Ids{0, 1, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(inputs.row_samples.ToVector<int32_t>(), (Ids{0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(inputs.cu_seqlens.ToVector<int32_t>(), (Ids{0, 3, 4, 5, 6}));
  EXPECT_EQ(inputs.sample_ids.ToVector<int32_t>(), (Ids{0, 1, 0, 0}));
  EXPECT_EQ(inputs.first_positions.ToVector<int32_t>(), Ids(4));
  EXPECT_EQ(inputs.num_sequences.ToVector<int32_t>(), Ids{2});
  EXPECT_EQ(inputs.step.ToVector<int32_t>(), Ids{9});
  EXPECT_EQ(inputs.grad_seed.Item(), 0.5);
  EXPECT_EQ(inputs.labels.ToVector<int64_t>(), (std::vector<int64_t>{1, 0, -100, -100}));
  EXPECT_EQ(inputs.max_seqlen, 64);
}

TEST(PackedInputsTest, OtherLabelsAreFilledUpWithZeros) {
  const Batch batch = Batch::Pack({{5}}, {}, Tensor::Full({1, 3}, 2));
  const PackedShape shape = {.rows = 2, .sequences = 2, .max_seqlen = 1};
  const Tensor numbers = DeviceBatch::Pack(batch, shape, 0);
  const Tensor labels = DeviceBatch::In(numbers, batch, shape).labels;
  EXPECT_EQ(labels.shape(), (Shape{2, 3}));
  EXPECT_EQ(labels.ToVector<float>(), (std::vector<float>{2, 2, 2, 0, 0, 0}));
}

TEST(PackedInputsTest, RefusesWhatDoesNotFit) {
  const Batch batch = Batch::Pack({{5, 6, 7}, {8}});
  EXPECT_THROW(DeviceBatch::Pack(batch, {.rows = 3, .sequences = 2, .max_seqlen = 3}, 0), Error);
  EXPECT_THROW(DeviceBatch::Pack(batch, {.rows = 4, .sequences = 3, .max_seqlen = 3}, 0), Error);
  EXPECT_THROW(DeviceBatch::Pack(batch, {.rows = 4, .sequences = 1, .max_seqlen = 3}, 0), Error);
  EXPECT_THROW(DeviceBatch::Pack(batch, {.rows = 4, .sequences = 2, .max_seqlen = 2}, 0), Error);
  const PackedShape shape = {.rows = 4, .sequences = 2, .max_seqlen = 3};
  EXPECT_THROW(DeviceBatch::In(Tensor::Zeros({7}, DType::kU8), batch, shape), Error);
}

}  // namespace
}  // namespace lathe
