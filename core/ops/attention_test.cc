#include "lathe/core/ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Attention, Packed) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (int64_t heads : {1, 2}) {
    for (bool first : {false, true}) {
      AttentionOptions options;
      options.num_heads = heads;
      options.first_query_only = first;
      const int64_t rows = first ? 3 : 9;
      CheckOp({.name = "packed_attention",
               .op =
                   [=](const Tensors& x) {
                     return PackedAttention(x[0], x[1], At(x[0], packed), options);
                   },
               .composed =
                   [=](const Tensors& x) {
                     return PackedAttentionComposed(x[0], x[1], packed, options);
                   },
               .shapes = {{{rows, 8}, {18, 8}}, {{rows, 64}, {18, 64}}},
               .activations = {0, 1}});
    }
  }
}

// Queries above keys and values give what they give on their own.
TEST(Attention, Stacked) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (const int64_t window : {-1, 1}) {
    AttentionOptions options;
    options.num_heads = 2;
    options.window = window;
    CheckOp(
        {.name = "attention_stacked",
         .op =
             [=](const Tensors& x) { return PackedSelfAttention(x[0], At(x[0], packed), options); },
         .composed =
             [=](const Tensors& x) {
               return PackedAttentionComposed(SliceRows(x[0], 0, 9), SliceRows(x[0], 9, 27), packed,
                                              options);
             },
         .shapes = {{{27, 8}}, {{27, 32}}},
         .nan_check = false,  // see the header for what a window does to NaN
         .activations = {0}});
  }
}

// Values above keys give the same numbers as keys above values.
TEST(Attention, ValuesFirst) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  const PackedSequences packed = Packed({0, 3, 4, 9});
  constexpr int64_t kRows = 11, kH = 16;  // two more rows than the sequences have
  std::vector<float> numbers(3 * kRows * kH);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
  const Tensor all = Tensor::FromVector(numbers, {3 * kRows, kH});
  const auto part = [&](int64_t i) { return all.Slice(i * kRows, (i + 1) * kRows); };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (dtype == DType::kF16 && CheckedDevice().is_cpu())
      continue;  // the host has no kernels for it
    const auto run = [&](bool values_first) {
      const Tensor kv =
          ConcatRows(values_first ? Tensors{part(2), part(1)} : Tensors{part(1), part(2)})
              .To(dtype)
              .To(CheckedDevice())
              .SetRequiresGrad(true);
      const Tensor q = part(0).To(dtype).To(CheckedDevice()).SetRequiresGrad(true);
      AttentionOptions options;
      options.num_heads = 2;
      options.values_first = values_first;
      const Tensor out = PackedAttention(q, kv, At(q, packed), options);
      Backward(out, q.Detach());
      const Tensor dk = kv.grad().Slice(values_first ? kRows : 0, values_first ? 2 * kRows : kRows);
      const Tensor dv = kv.grad().Slice(values_first ? 0 : kRows, values_first ? kRows : 2 * kRows);
      std::vector<std::vector<float>> results;
      for (const Tensor& x : {out, q.grad(), dk, dv}) {
        results.push_back(x.Detach().To(Device{}).To(DType::kF32).ToVector<float>());
      }
      return results;
    };
    EXPECT_EQ(run(true), run(false)) << ToString(dtype);
  }
}

// Rows beyond the last sequence give 0 and get gradient 0. They don't change the other rows.
TEST(Attention, SurplusRows) {
  const PackedSequences packed = Packed({0, 3, 9});
  AttentionOptions options;
  options.num_heads = 2;
  CheckOp(
      {.name = "attention_surplus_rows",
       .op =
           [=](const Tensors& x) { return PackedAttention(x[0], x[1], At(x[0], packed), options); },
       .composed =
           [=](const Tensors& x) {
             const Tensor real = PackedAttentionComposed(
                 SliceRows(x[0], 0, 9),
                 ConcatRows({SliceRows(x[1], 0, 9), SliceRows(x[1], 11, 20)}), packed, options);
             return ConcatRows({real, Tensor::Zeros({2, 8}, real.dtype())});
           },
       .shapes = {{{11, 8}, {22, 8}}},
       .nan_check = false,
       .activations = {0, 1}});
}

// Scores of any size give finite results, at a length that doesn't fill a whole line.
TEST(Attention, HugeScores) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  const PackedSequences packed = Packed({0, 3});
  for (const float score : {-1e36f, -1e31f, 1e31f}) {
    const Tensor q = Tensor::FromVector<float>({score, score, score}, {3, 1}).To(CheckedDevice());
    const Tensor kv = Tensor::FromVector<float>({1, 1, 1, 3, 6, 9}, {6, 1}).To(CheckedDevice());
    for (const float o : PackedAttention(q, kv, At(q, packed), {}).ToVector<float>())
      EXPECT_FLOAT_EQ(o, 6) << score;
  }
}

// Scores that overflow have no softmax and give NaN, whether a row fills whole lines or not.
TEST(Attention, OverflownScoresAreNotANumber) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t head_dim : {1, 32}) {
      for (const int32_t length : {3, 16, 17}) {
        SCOPED_TRACE(testing::Message() << ToString(dtype) << head_dim << " " << length);
        const Tensor q = Tensor::Full({length, head_dim}, -1e36, dtype);
        const Tensor kv = Tensor::Full({2 * length, head_dim}, 1e3, dtype);
        const Tensor out = PackedAttention(q, kv, Packed({0, length}), {});
        for (const float o : out.To(DType::kF32).ToVector<float>()) ASSERT_TRUE(std::isnan(o));
      }
    }
  }
}

TEST(Attention, SaysWhatDoesNotFit) {
  const auto error = [](const PackedSequences& packed, double dropout) -> std::string {
    const Tensor q = Tensor::Full({4, 2}, 1), kv = Tensor::Full({8, 2}, 1);
    AttentionOptions options;
    options.dropout.p = dropout;
    try {
      PackedAttention(q, kv, packed, options);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  PackedSequences packed = Packed({0, 1, 4});
  packed.sample_ids = Tensor::FromVector(std::vector<int32_t>{7}, {1});
  EXPECT_EQ(error(packed, 0.5), "[attention] there are 2 sequences but only 1 sample_ids");
  packed.sample_ids = {};
  EXPECT_EQ(error(packed, 0), "");
  EXPECT_EQ(error(packed, 0.5), "[attention] dropout needs sample_ids");
  packed = Packed({0, 4});
  packed.cu_seqlens = Tensor::Empty({0}, DType::kI32);
  EXPECT_EQ(error(packed, 0),
            "[attention] cu_seqlens must be int32 of shape [B + 1] but is int32 of shape [0]");
  const auto error_of_stack = [](const Tensor& qkv, bool first) -> std::string {
    AttentionOptions options;
    options.first_query_only = first;
    try {
      PackedSelfAttention(qkv, Packed({0, 2}), options);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(error_of_stack(Tensor::Zeros({6, 2}), false), "");
  EXPECT_EQ(error_of_stack(Tensor::Zeros({4, 2}), false),
            "[attention] qkv must have shape [3 T, H] but has [4, 2]");
  EXPECT_EQ(error_of_stack(Tensor::Zeros({6, 2}), true),
            "[attention] first queries alone don't lie above keys and values");
  // max_seqlen is only an upper limit and may be huge.
  packed = Packed({0, 4});
  packed.max_seqlen = int64_t{1} << 61;
  EXPECT_EQ(error(packed, 0), "");
}

// bfloat16 agrees with float64 on the same inputs, at lengths of one tile and several, odd ones
// too.
TEST(Attention, LongSequencesInBFloat16) {
  const PackedSequences packed = Packed(WithLengths({1, 257, 64, 512, 333}));
  const int64_t T = packed.cu_seqlens.ToVector<int32_t>().back(), rows = T + 3;
  for (const int64_t head_dim : {20, 32, 64, 96}) {
    for (const bool first : {false, true}) {
      SCOPED_TRACE(testing::Message() << head_dim << " first " << first);
      const int64_t H = 2 * head_dim, q_rows = first ? packed.size() : rows;
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      const auto draw = [&](int64_t n) {
        std::vector<float> values(static_cast<size_t>(n * H));
        for (float& value : values) value = BFloat16(normal(random));
        return Tensor::FromVector(values, {n, H});
      };
      const Tensor q = draw(q_rows), kv = draw(2 * rows), dout = draw(q_rows);
      const auto run = [&](DType dtype) {
        const Tensor tq = q.To(dtype).Clone().SetRequiresGrad(true),
                     tkv = kv.To(dtype).Clone().SetRequiresGrad(true);
        const Tensor out = PackedAttention(tq, tkv, packed, Options(2, first, 0.2));
        Backward(out, dout.To(dtype));
        {
          NoGradGuard no_grad;
          const Tensor again = PackedAttention(tq, tkv, packed, Options(2, first, 0.2));
          EXPECT_EQ(again.To(DType::kF64).ToVector<double>(),
                    out.To(DType::kF64).ToVector<double>());
        }
        return Tensors{out.Detach(), tq.grad(), tkv.grad()};
      };
      const Tensors narrow = run(DType::kBF16), wide = run(DType::kF64);
      const std::vector<int32_t> cu = packed.cu_seqlens.ToVector<int32_t>();
      // Compares each sequence by itself, because the numbers of longer sequences are smaller.
      const auto compare = [&](const char* what, size_t i, int64_t begin, int64_t end) {
        const Tensor expected = wide[i].Slice(begin, end);
        // With one key the scores' gradients are 0 except for the output's rounding.
        double largest = end - begin == 1 ? 2 : 0;
        for (const double value : expected.ToVector<double>())
          largest = std::max(largest, std::fabs(value));
        // Most of the error comes from storing the output and the gradients in bfloat16.
        EXPECT_LE(MaxDifference(narrow[i].Slice(begin, end), expected.ToVector<double>()),
                  0.02 * largest)
            << what << " of rows " << begin << " to " << end;
      };
      for (int64_t s = 0; s < packed.size(); ++s) {
        const int64_t begin = cu[static_cast<size_t>(s)], end = cu[static_cast<size_t>(s + 1)];
        for (const size_t i : {0, 1}) {
          compare(i == 0 ? "output" : "dq", i, first ? s : begin, first ? s + 1 : end);
        }
        compare("dk", 2, begin, end);
        compare("dv", 2, rows + begin, rows + end);
      }
    }
  }
}

// The working memory suffices for the widest heads.
TEST(Attention, WideHeadsInBFloat16) {
  for (const int64_t head_dim : {4096, 8192}) {
    for (const int32_t length : {1, 16, 77}) {
      const PackedSequences packed = Packed(WithLengths({length}));
      const Tensor q = Tensor::Full({length, head_dim}, 0.01, DType::kBF16).SetRequiresGrad(true);
      const Tensor kv =
          Tensor::Full({2 * length, head_dim}, 0.5, DType::kBF16).SetRequiresGrad(true);
      const Tensor out = PackedAttention(q, kv, packed, Options(1, false, 0.1));
      Backward(out, q.Detach());
      for (const float value : kv.grad().To(DType::kF32).ToVector<float>())
        ASSERT_TRUE(std::isfinite(value));
    }
  }
}

// --- the device against the host ---

class AttentionOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (CheckedDevice().is_cpu()) GTEST_SKIP() << "compares a device with the host";
    if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(AttentionOnDevice, HeadDims) {
  for (const int64_t head_dim : {1, 7, 8, 16, 32, 48, 64, 80, 128, 136, 256}) {
    for (const bool first : {false, true}) {
      for (const double p : {0.0, 0.3}) {
        CompareWithHost(head_dim, WithLengths({3, 70, 1}), 2, Options(2, first, p));
      }
    }
  }
}

TEST_F(AttentionOnDevice, EveryLength) {
  std::vector<int32_t> lengths;
  for (int32_t length = 1; length <= 130; ++length) lengths.push_back(length);
  CompareWithHost(16, WithLengths(lengths), 0, Options(1, false, 0.2));
  CompareWithHost(16, WithLengths(lengths), 5, Options(1, true, 0.2));
}

TEST_F(AttentionOnDevice, LongSequences) {
  CompareWithHost(64, WithLengths({512}), 1, Options(1, false, 0.1));
  CompareWithHost(20, WithLengths({30, 257}), 0, Options(1, false, 0));
}

// The kernels without tensor cores agree with the host, too, in bfloat16 and float16.
TEST_F(AttentionOnDevice, PlainKernels) {
  ASSERT_EQ(setenv("LATHE_ATTENTION", "plain", 1), 0);
  for (const int64_t head_dim : {7, 64, 128}) {
    CompareWithHost(head_dim, WithLengths({3, 70, 1}), 2, Options(2, false, 0.3));
    CompareWithHost(head_dim, WithLengths({3, 70, 1}), 2, Options(2, true, 0.3));
  }
  ASSERT_EQ(unsetenv("LATHE_ATTENTION"), 0);
}

TEST_F(AttentionOnDevice, MasksAreTheHostsBitForBit) {
  const PackedSequences packed = Packed(WithLengths({1, 2, 5, 16, 17, 63, 64, 65, 100, 128}));
  const AttentionOptions options = Options(2, false, 0.4);
  const MaskCase mask = MaskCaseOf(packed, 2, 128);
  const std::vector<bool> expected = Kept(mask, packed, options, DType::kF32, Device{});
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(Kept(mask, packed, options, dtype, CheckedDevice()) == expected) << ToString(dtype);
  }
}

TEST_F(AttentionOnDevice, RepeatsItselfBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto run = [&] {
      return RunOn(CheckedDevice(), dtype, dtype, 64, WithLengths({130, 7}), 0,
                   Options(3, false, 0.1));
    };
    const Outcome a = run(), b = run();
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(a.dq, b.dq);
    EXPECT_EQ(a.dkv, b.dkv);
  }
}

TEST_F(AttentionOnDevice, SaysWhatItCannotTake) {
  const PackedSequences packed = Packed({0, 3});
  const auto attend = [&](int64_t H, const PackedSequences& sequences) {
    const Tensor q = Tensor::Zeros({3, H}, DType::kF32, CheckedDevice());
    const Tensor kv = Tensor::Zeros({6, H}, DType::kF32, CheckedDevice());
    PackedAttention(q, kv, sequences, {});
  };
  const Tensor there = Tensor::Zeros({1}, DType::kF32, CheckedDevice());
  EXPECT_THROW(attend(257, At(there, packed)), Error);
  EXPECT_THROW(attend(8, packed), Error);  // the sequences lie on the host
  PackedSequences too_many = At(there, packed);
  too_many.num_tokens = 4;
  EXPECT_THROW(attend(8, too_many), Error);
}

}  // namespace
}  // namespace lathe
