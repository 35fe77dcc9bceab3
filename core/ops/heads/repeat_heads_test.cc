#include "lathe/core/ops/heads/repeat_heads.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(RepeatHeads, Op) {
  for (const int64_t heads : {1, 3}) {
    for (const int64_t repeats : {2, 5}) {
      CheckOp(
          {.name = "repeat_heads",
           .op = [=](const Tensors& x) { return RepeatHeads(x[0], heads, repeats); },
           .composed = [=](const Tensors& x) { return RepeatHeadsComposed(x[0], heads, repeats); },
           .shapes = {{{1, heads}}, {{7, heads * 5}}, {{0, heads * 2}}, {{90, heads * 64}}},
           .activations = {0}});
    }
  }
}

TEST(RepeatHeads, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {1, 4});
  EXPECT_EQ(RepeatHeads(x, 2, 2).ToVector<float>(), (std::vector<float>{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(RepeatHeads(x, 2, 1).raw_data(), x.raw_data());
}

TEST(RepeatHeads, Errors) {
  const auto error = [](const Tensor& x, int64_t heads, int64_t repeats) {
    try {
      RepeatHeads(x, heads, repeats);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error(Tensor::Zeros({2, 6}), 3, 2), "");
  EXPECT_EQ(error(Tensor::Zeros({2, 6}), 4, 2),
            "[repeat_heads] x must have shape [N, 4 heads * d] but has [2, 6]");
  EXPECT_EQ(error(Tensor::Zeros({2, 6}), 3, 0),
            "[repeat_heads] expected at least one repetition but got 0");
}

}  // namespace
}  // namespace lathe
