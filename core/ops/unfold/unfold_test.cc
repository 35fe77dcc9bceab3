#include "lathe/core/ops/unfold/unfold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// The last shapes have more rows than the sequences, and more columns than a block has threads.
TEST(Unfold, Op) {
  const PackedSequences packed = Packed({0, 3, 4, 9});
  for (const UnfoldOrder order :
       {UnfoldOrder::kTaps, UnfoldOrder::kTapsReversed, UnfoldOrder::kColumns}) {
    for (const int64_t taps : {1, 2, 3, 4, 9, 30}) {
      CheckOp(
          {.name = "unfold",
           .op =
               [=](const Tensors& x) { return PackedUnfold(x[0], At(x[0], packed), taps, order); },
           .composed =
               [=](const Tensors& x) { return PackedUnfoldComposed(x[0], packed, taps, order); },
           .shapes = {{{9, 1}}, {{9, 5}}, {{9, 0}}, {{11, 4}}, {{9, 300}}},
           .activations = {0}});
    }
  }
}

// More rows than a grid has blocks, and sequences of many lengths.
TEST(Unfold, ManySequences) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 400; ++i) lengths.push_back(1 + i * i % 31);
  const PackedSequences packed = Packed(WithLengths(lengths));
  const int64_t tokens = packed.cu_seqlens.ToVector<int32_t>().back();
  ASSERT_GT(tokens, 4096);
  std::vector<float> numbers(static_cast<size_t>(tokens) * 4);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
  const Tensor x = Tensor::FromVector(numbers, {tokens, 4});
  const Tensor there = x.To(CheckedDevice());
  EXPECT_EQ(PackedUnfold(there, At(there, packed), 3).To(Device{}).ToVector<float>(),
            PackedUnfoldComposed(x, packed, 3).ToVector<float>());
}

TEST(Unfold, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {6, 1}).SetRequiresGrad(true);
  const Tensor y = PackedUnfold(x, Packed({0, 2, 5}), 3);      // the last row is surplus
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{0, 1, 2,  //
                                                     1, 2, 0,  //
                                                     0, 3, 4,  //
                                                     3, 4, 5,  //
                                                     4, 5, 0,  //
                                                     0, 0, 0}));
  Backward(y, Tensor::Full({6, 3}, 1));
  EXPECT_EQ(x.grad().ToVector<float>(), (std::vector<float>{2, 2, 2, 3, 2, 0}));
}

// Row 0 of each column's taps is the row before, row 1 the row itself, row 2 the row behind.
TEST(Unfold, Orders) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2});
  const auto unfolded = [&](UnfoldOrder order) {
    return PackedUnfold(x, Packed({0, 2}), 3, order).ToVector<float>();
  };
  EXPECT_EQ(unfolded(UnfoldOrder::kTaps), (std::vector<float>{0, 0, 1, 2, 3, 4,  //
                                                              1, 2, 3, 4, 0, 0}));
  EXPECT_EQ(unfolded(UnfoldOrder::kTapsReversed), (std::vector<float>{3, 4, 1, 2, 0, 0,  //
                                                                      0, 0, 3, 4, 1, 2}));
  EXPECT_EQ(unfolded(UnfoldOrder::kColumns), (std::vector<float>{0, 1, 3, 0, 2, 4,  //
                                                                 1, 3, 0, 2, 4, 0}));
}

// A NaN stays in its own sequence, and one in a surplus row reaches nothing.
TEST(Unfold, SequencesAreSeparate) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::FromVector<float>({1, 2, nan, 4, nan}, {5, 1});
  const std::vector<float> y = PackedUnfold(x, Packed({0, 2, 4}), 5).ToVector<float>();
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / 5, from = row + i % 5;  // two more than the number of x's row
    EXPECT_EQ(std::isnan(y[i]), from == 4 && (row == 2 || row == 3)) << row << " " << i % 5;
  }
}

TEST(Unfold, Errors) {
  const auto error = [](const Tensor& x, const PackedSequences& packed, int64_t taps) {
    try {
      PackedUnfold(x, packed, taps);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  const Tensor x = Tensor::Zeros({4, 2});
  EXPECT_EQ(error(x, Packed({0, 1, 4}), 3), "");
  EXPECT_EQ(error(x, Packed({0}), 3), "");
  EXPECT_EQ(error(Tensor::Zeros({4}), Packed({0, 4}), 3),
            "[unfold] x must have shape [T, C] but has [4]");
  EXPECT_EQ(error(x, Packed({0, 4}), 0), "[unfold] expected at least one tap but got 0");
  EXPECT_EQ(error(x, Packed({0, 5}), 3),
            "[unfold] the sequences have 5 rows but x has shape [4, 2]");
  PackedSequences packed;
  const auto with = [&](const std::vector<int32_t>& cu) {
    packed.cu_seqlens = Tensor::FromVector(cu, {static_cast<int64_t>(cu.size())});
    return packed;
  };
  EXPECT_EQ(error(x, with({1, 4}), 3), "[unfold] cu_seqlens must start with 0 but starts with 1");
  EXPECT_EQ(error(x, with({0, 3, 2}), 3), "[unfold] cu_seqlens must not decrease");
  packed.cu_seqlens = Tensor::Empty({0}, DType::kI32);
  EXPECT_EQ(error(x, packed, 3),
            "[unfold] cu_seqlens must be int32 of shape [B + 1] but is int32 of shape [0]");
}

}  // namespace
}  // namespace lathe
