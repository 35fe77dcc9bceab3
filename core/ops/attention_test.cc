#include "lathe/core/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

PackedSequences Packed(const std::vector<int32_t>& cu_seqlens) {
  PackedSequences packed;
  packed.cu_seqlens = Tensor::FromVector(cu_seqlens);
  std::vector<int32_t> samples;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    samples.push_back(static_cast<int32_t>(i));
    packed.max_seqlen = std::max<int64_t>(packed.max_seqlen, cu_seqlens[i + 1] - cu_seqlens[i]);
  }
  packed.sample_ids = Tensor::FromVector(samples);
  return packed;
}

TEST(Attention, Packed) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (int64_t heads : {1, 2}) {
    for (bool first : {false, true}) {
      AttentionOptions options;
      options.num_heads = heads;
      options.first_query_only = first;
      const int64_t rows = first ? 3 : 9;
      CheckOp({.name = "packed_attention",
               .op = [=](const Tensors& x) { return PackedAttention(x[0], x[1], packed, options); },
               .composed =
                   [=](const Tensors& x) {
                     return PackedAttentionComposed(x[0], x[1], packed, options);
                   },
               .shapes = {{{rows, 8}, {9, 16}}, {{rows, 64}, {9, 128}}}});
    }
  }
}

// With dropout the oracle is the op itself in float64 and its differences.
TEST(Attention, Dropout) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  AttentionOptions options;
  options.num_heads = 2;
  options.dropout.p = 0.3;
  options.dropout.key = {.seed = 1, .step = 2, .site = 3};
  CheckOp({.name = "packed_attention_dropout",
           .op = [=](const Tensors& x) { return PackedAttention(x[0], x[1], packed, options); },
           .shapes = {{{9, 8}, {9, 16}}},
           .nan_check = false});
}

}  // namespace
}  // namespace lathe
