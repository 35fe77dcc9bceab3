#include "lathe/core/ops/windows/unfold1d.h"

#include <gtest/gtest.h>

#include <vector>

#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Unfold1d, Op) {
  for (const WindowOptions options : {WindowOptions{}, WindowOptions{.stride = 2, .padding = 3},
                                      WindowOptions{.stride = 1, .padding = 1, .dilation = 2}}) {
    CheckOp({.name = "unfold1d",
             .op = [=](const Tensors& x) { return Unfold1d(x[0], 3, options); },
             .shapes = {{{1, 1, 5}}, {{3, 2, 7}}, {{0, 2, 7}}, {{3, 40, 90}}},
             .nan_check = options.stride == 1,
             .activations = {0}});
  }
}

TEST(Unfold1d, Values) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {1, 2, 3});
  EXPECT_EQ(Unfold1d(x, 2, {.padding = 1}).ToVector<float>(),
            (std::vector<float>{0, 1, 0, 4, 1, 2, 4, 5, 2, 3, 5, 6, 3, 0, 6, 0}));
  EXPECT_THROW(Unfold1d(x, 4), Error);
  EXPECT_THROW(Unfold1d(Tensor::Zeros({2, 3}), 1), Error);
}

TEST(SwapLast, Op) {
  CheckOp({.name = "swap_last",
           .op = [](const Tensors& x) { return SwapLast(x[0]); },
           .shapes = {{{1, 1, 5}}, {{3, 2, 7}}, {{0, 2, 7}}, {{2, 33, 40}}, {{2, 0, 3}}},
           .activations = {0}});
  EXPECT_EQ(SwapLast(Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {1, 2, 3})).ToVector<float>(),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_THROW(SwapLast(Tensor::Zeros({2, 3})), Error);
}

}  // namespace
}  // namespace lathe
