// Tests PreNormLayer with dropout. The golden models have none.
#include "lathe/nn/pre_norm_layer.h"

#include <gtest/gtest.h>

#include <vector>

namespace lathe::nn {
namespace {

PreNormLayerOptions Options() {
  return {.hidden_size = 12,
          .num_attention_heads = 3,
          .intermediate_size = 20,
          .hidden_dropout_prob = 0.5,
          .attention_probs_dropout_prob = 0,
          .initializer_range = 0.5};
}

// Returns the context of two sequences with 3 tokens and 1 token.
ForwardContext Context(bool training) {
  ForwardContext context;
  context.sequences = {.cu_seqlens = Tensor::FromVector<int32_t>({0, 3, 4}),
                       .sample_ids = Tensor::FromVector<int32_t>({5, 8}),
                       .max_seqlen = 3};
  context.row_samples = Tensor::FromVector<int32_t>({5, 5, 5, 8});
  context.row_positions = Tensor::FromVector<int32_t>({0, 1, 2, 0});
  context.first_positions = Tensor::Zeros({2}, DType::kI32);
  context.training = training;
  context.seed = 3;
  return context;
}

Tensor RunLayer(const PreNormLayerOptions& options, bool training, bool first_tokens_only = false) {
  PreNormLayer layer(options);
  layer.Initialize(7);
  std::vector<float> x;
  for (int i = 0; i < 48; ++i) x.push_back(static_cast<float>(i * i % 17) / 8);
  return layer.Forward(Tensor::FromVector(x, {4, 12}), Context(training), first_tokens_only,
                       "layer.0");
}

TEST(PreNormLayer, EachDropoutIsOnUnlessItsOptionIsOff) {
  PreNormLayerOptions options = Options();
  const std::vector<float> evaluated = RunLayer(options, false).ToVector<float>();
  const std::vector<float> both = RunLayer(options, true).ToVector<float>();
  EXPECT_NE(both, evaluated);
  options.drops_output = false;
  const std::vector<float> attention = RunLayer(options, true).ToVector<float>();
  EXPECT_NE(attention, evaluated);
  EXPECT_NE(attention, both);
  options.drops_attention_output = false;
  EXPECT_EQ(RunLayer(options, true).ToVector<float>(), evaluated);
}

TEST(PreNormLayer, FirstTokensHaveTheRowsOfTheFullResult) {
  for (const bool training : {false, true}) {
    const Tensor full = RunLayer(Options(), training);
    const std::vector<float> expected =
        FirstTokens(full, Context(training).sequences.cu_seqlens).ToVector<float>();
    const std::vector<float> first = RunLayer(Options(), training, true).ToVector<float>();
    ASSERT_EQ(first.size(), expected.size());
    for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], expected[i], 1e-5) << i;
  }
}

TEST(PreNormLayer, HiddenStatesStayFloat32) {
  PreNormLayer layer(Options());
  layer.Initialize(7);
  layer.SetComputeDType(DType::kBF16);
  const Tensor x = Tensor::Full({4, 12}, 1);
  EXPECT_EQ(layer.Forward(x, Context(true), false, "layer.0").dtype(), DType::kF32);
}

}  // namespace
}  // namespace lathe::nn
