#include "lathe/core/ops/print/tensor_text.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "lathe/core/ops/create/create.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

// tests/tensor_text_golden_test.cc compares many more with NumPy.
TEST(TensorText, Examples) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const auto text = [](const Tensor& x) {
    std::ostringstream out;
    out << x.To(CheckedDevice());
    return out.str();
  };
  EXPECT_EQ(text(Arange(6).Reshape({2, 3})), "[[0 1 2]\n [3 4 5]]");
  EXPECT_EQ(text(Tensor::FromVector<float>({1, 2.5, -0.125})), "[ 1.     2.5   -0.125]");
  EXPECT_EQ(text(Tensor::Full({}, 0.1)), "0.1");
  EXPECT_EQ(text(Tensor::Zeros({0, 3})), "[]");
  EXPECT_EQ(text(Arange(2000)), "[   0    1    2 ... 1997 1998 1999]");
}

// bfloat16, which NumPy lacks, has as many digits as tell a number from its neighbours.
TEST(TensorText, BFloat16) {
  const Tensor x = Tensor::FromVector<float>({0.1f, 3, -1.5f, 100}).To(DType::kBF16);
  EXPECT_EQ(ToString(x), "[  0.1   3.   -1.5 100. ]");
}

TEST(TensorText, WithoutValues) {
  EXPECT_EQ(ToString(Tensor()), "undefined");
  EXPECT_EQ(ToString(Tensor::Unallocated({2})), "unallocated");
}

TEST(TensorText, Options) {
  const Tensor x = Tensor::FromVector<double>({0.123456789, 2});
  EXPECT_EQ(ToString(x, {.precision = 3}), "[0.123 2.   ]");
  EXPECT_EQ(ToString(Arange(9), {.threshold = 8, .edge_items = 2}), "[0 1 ... 7 8]");
  EXPECT_EQ(ToString(Arange(6), {.line_width = 8}), "[0 1 2\n 3 4 5]");
}

}  // namespace
}  // namespace lathe
