// Tests that ranks drop what one process would, in models of one's own.
#include "lathe/models/forward_context.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

constexpr uint64_t kSeed = 42;

// Returns the samples [begin, end) of a global batch, at the step 3.
BatchInfo Share(int32_t begin, int32_t end) {
  BatchInfo batch;
  for (int32_t i = begin; i < end; ++i) batch.sample_ids.push_back(i);
  batch.step = 3;
  return batch;
}

// Returns the rows of two tensors, one below the other.
std::vector<float> Joined(const Tensor& a, const Tensor& b) {
  std::vector<float> joined = a.ToVector<float>();
  for (const float value : b.ToVector<float>()) joined.push_back(value);
  return joined;
}

TEST(ContextOfTest, SharesDropWhatTheWholeBatchDrops) {
  const nn::Dropout dropout(0.5, "hidden");
  const auto drop = [&](const BatchInfo& batch, bool training) {
    return dropout(Tensor::Full({batch.num_samples(), 16}, 1), ContextOf(batch, training, kSeed));
  };
  const std::vector<float> whole = drop(Share(0, 5), true).ToVector<float>();
  EXPECT_EQ(Joined(drop(Share(0, 3), true), drop(Share(3, 5), true)), whole);
  EXPECT_EQ(drop(Share(0, 5), false).ToVector<float>(), std::vector<float>(80, 1));
  BatchInfo next = Share(0, 5);
  ++next.step;
  EXPECT_NE(drop(next, true).ToVector<float>(), whole);
}

TEST(ContextOfTest, PackedSharesDropWhatTheWholeBatchDrops) {
  const nn::Dropout dropout(0.5, "hidden");
  const std::vector<std::vector<int32_t>> masks = {{1, 1, 0}, {1, 1, 1}, {1, 0, 0}};
  const auto drop = [&](int32_t begin, int32_t end, bool first_tokens) {
    std::vector<int32_t> mask;
    for (int32_t b = begin; b < end; ++b)
      mask.insert(mask.end(), masks[static_cast<size_t>(b)].begin(),
                  masks[static_cast<size_t>(b)].end());
    const nn::Packing packing(Tensor::FromVector(mask, {end - begin, 3}));
    const int64_t rows = first_tokens ? end - begin : packing.num_tokens();
    return dropout.Forward(Tensor::Full({rows, 16}, 1),
                           ContextOf(Share(begin, end), packing, true, kSeed), first_tokens);
  };
  for (const bool first_tokens : {false, true}) {
    EXPECT_EQ(Joined(drop(0, 1, first_tokens), drop(1, 3, first_tokens)),
              drop(0, 3, first_tokens).ToVector<float>());
  }
}

TEST(ContextOfTest, WhatDoesNotFitIsAnError) {
  const auto message = [](const BatchInfo& batch) -> std::string {
    try {
      ContextOf(batch, nn::Packing(2, 3), true, kSeed);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(message(Share(0, 2)), "");
  EXPECT_EQ(message(Share(0, 3)),
            "[context] the packing has 2 sequences but the batch has 3 samples");
  BatchInfo own = Share(0, 2);
  own.step = -1;
  EXPECT_EQ(message(own), "[context] the batch has no step; take it from a DataLoader");
}

}  // namespace
}  // namespace lathe
