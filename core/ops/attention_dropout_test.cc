#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/ops/attention.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// With dropout the oracle is the op itself in float64, and its central differences.
TEST(AttentionDropout, Op) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  AttentionOptions options;
  options.num_heads = 2;
  options.dropout.p = 0.3;
  options.dropout.key = {.seed = 1, .step = 2, .site = 3};
  CheckOp(
      {.name = "packed_attention_dropout",
       .op =
           [=](const Tensors& x) { return PackedAttention(x[0], x[1], At(x[0], packed), options); },
       .shapes = {{{9, 8}, {18, 8}}},
       .nan_check = false,
       .activations = {0, 1}});
}

// Returns true if dropout drops the probability of key j, out of `keys`, for query i. Computed
// straight from Philox. A query's keys are spread over blocks of four words, word by word. The head
// is part of Philox's key.
bool Dropped(const DropoutSpec& spec, int32_t sample, int64_t head, int64_t i, int64_t j,
             int64_t keys) {
  const int64_t blocks = (keys + 3) / 4;
  const PhiloxBlock block =
      Philox4x32({{static_cast<uint32_t>(j % blocks), static_cast<uint32_t>(i),
                   static_cast<uint32_t>(sample), spec.key.step}},
                 spec.key.key0(), spec.key.key1() + static_cast<uint32_t>(head) * 0x9E3779B9u);
  return block.v[j / blocks] < DropThreshold(spec.p);
}

struct Reference {
  std::vector<double> out, dq, dkv;
  double dropped = 0;  // the share of the probabilities that is dropped
};

// Computes attention and its gradients in plain loops. With m the mask, 0 or 1 / (1 - p):
//   O = (m P) V;  dP = m (dO V^T);  dS = P (dP - sum_k P_ik dP_ik) / sqrt(d)
Reference PlainAttention(const std::vector<double>& q, const std::vector<double>& kv,
                         const std::vector<double>& dout, int64_t H, const PackedSequences& packed,
                         const AttentionOptions& options) {
  Reference r{std::vector<double>(q.size()), std::vector<double>(q.size()),
              std::vector<double>(kv.size())};
  const int64_t d = H / options.num_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const int32_t* cu = packed.cu_seqlens.data<int32_t>();
  int64_t total = 0;
  for (int64_t s = 0; s < packed.size(); ++s) {
    const int64_t keys = cu[s + 1] - cu[s], queries = options.first_query_only ? 1 : keys;
    const int64_t first = options.first_query_only ? s : cu[s];
    for (int64_t h = 0; h < options.num_heads; ++h) {
      const auto k_at = [&](int64_t j) { return (cu[s] + j) * H + h * d; };
      const int64_t to_v = static_cast<int64_t>(kv.size()) / 2;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = (first + i) * H + h * d;
        std::vector<double> p(keys), m(keys), dp(keys);
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < keys; ++j) {
          for (int64_t c = 0; c < d; ++c) p[j] += q[row + c] * kv[k_at(j) + c] * scale;
          sum += p[j] = std::exp(p[j]);
        }
        for (int64_t j = 0; j < keys; ++j) {
          p[j] /= sum;
          const bool dropped =
              Dropped(options.dropout, packed.sample_ids.data<int32_t>()[s], h, i, j, keys);
          m[j] = dropped ? 0 : 1 / (1 - options.dropout.p);
          r.dropped += dropped;
          ++total;
          for (int64_t c = 0; c < d; ++c) {
            r.out[row + c] += m[j] * p[j] * kv[k_at(j) + to_v + c];
            r.dkv[k_at(j) + to_v + c] += m[j] * p[j] * dout[row + c];
            dp[j] += m[j] * dout[row + c] * kv[k_at(j) + to_v + c];
          }
          dot += p[j] * dp[j];
        }
        for (int64_t j = 0; j < keys; ++j) {
          const double ds = p[j] * (dp[j] - dot) * scale;
          for (int64_t c = 0; c < d; ++c) {
            r.dq[row + c] += ds * kv[k_at(j) + c];
            r.dkv[k_at(j) + c] += ds * q[row + c];
          }
        }
      }
    }
  }
  r.dropped /= static_cast<double>(total);
  return r;
}

TEST(AttentionDropout, EqualsPlainLoopsWithTheMaskOfPhilox) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  PackedSequences packed = Packed({0, 3, 4, 9, 86});  // the last sequence has more than one tile
  packed.sample_ids = Tensor::FromVector<int32_t>({5, 0, 7, 2});
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<double> values(n);
    for (double& value : values) value = BFloat16(normal(random));  // exact in each dtype
    return values;
  };
  const int64_t T = packed.cu_seqlens.ToVector<int32_t>().back();
  // Heads of 32 and 64 have bfloat16 kernels of their own.
  for (const auto& [H, first] :
       {std::pair<int64_t, bool>{12, false}, {12, true}, {96, false}, {96, true}, {192, false}}) {
    AttentionOptions options;
    options.num_heads = 3;
    options.first_query_only = first;
    options.dropout.p = 0.3;
    options.dropout.key = {.seed = (uint64_t{9} << 32) + 1, .step = 2, .site = 0xF0000003};
    const int64_t rows = first ? packed.size() : T;
    const auto q = draw(rows * H), kv = draw(2 * T * H), dout = draw(rows * H);
    const Reference expected = PlainAttention(q, kv, dout, H, packed, options);
    EXPECT_NEAR(expected.dropped, 0.3, first ? 0.12 : 0.02);
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      SCOPED_TRACE(testing::Message() << ToString(dtype) << " H " << H << " first " << first);
      // The largest error, relative to the largest value.
      const double limit = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF64 ? 1e-12 : 1e-2;
      const Device device = dtype == DType::kF32 ? CheckedDevice() : Device{};
      const auto leaf = [&, H = H](const std::vector<double>& values, int64_t n) {
        return Tensor::FromVector(values, {n, H}).To(dtype).To(device).SetRequiresGrad(true);
      };
      const auto expect_near = [&](const Tensor& actual, const std::vector<double>& values) {
        double largest = 1;
        for (const double value : values) largest = std::max(largest, std::fabs(value));
        EXPECT_LE(MaxDifference(actual, values), limit * largest);
      };
      const Tensor tq = leaf(q, rows), tkv = leaf(kv, 2 * T);
      const Tensor out = PackedAttention(tq, tkv, At(tq, packed), options);
      expect_near(out, expected.out);
      Backward(out, Tensor::FromVector(dout, {rows, H}).To(dtype).To(device));
      expect_near(tq.grad(), expected.dq);
      expect_near(tkv.grad(), expected.dkv);
    }
  }
}

TEST(AttentionDropout, MasksArePhiloxAtEveryLength) {
  constexpr int64_t kHeads = 2, kDim = 160, kMost = 140;  // bfloat16's own kernel takes such heads
  std::vector<int32_t> cu = {0};
  for (int32_t length = 1; length <= kMost; ++length) cu.push_back(cu.back() + length);
  const PackedSequences packed = Packed(cu);
  AttentionOptions options;
  options.num_heads = kHeads;
  options.dropout.p = 0.4;
  options.dropout.key = {.seed = 77, .step = 5, .site = 6};
  const MaskCase mask = MaskCaseOf(packed, kHeads, kDim);
  const int64_t rows = cu.back(), H = kHeads * kDim;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const std::vector<bool> kept = Kept(mask, packed, options, dtype, Device{});
    for (int64_t s = 0; s < packed.size(); ++s) {
      const int32_t sample = packed.sample_ids.data<int32_t>()[s];
      const int64_t begin = cu[s], S = cu[s + 1] - begin;
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < S; ++i) {
          for (int64_t j = 0; j < S; ++j) {
            const bool expected = !Dropped(options.dropout, sample, h, i, j, S);
            ASSERT_EQ(kept[(begin + i) * H + h * kDim + j], expected)
                << ToString(dtype) << ", " << S << " keys, head " << h << ", " << i << ", " << j;
            ASSERT_EQ(kept[(rows + begin + j) * H + h * kDim + i], expected)
                << ToString(dtype) << ", " << S << " keys, head " << h << ", " << i << ", " << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
