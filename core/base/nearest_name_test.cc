#include "lathe/core/base/nearest_name.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

TEST(NearestNameTest, FindsTyposOnly) {
  EXPECT_EQ(NearestName("perdict", {"predict", "help"}), "predict");
  EXPECT_EQ(NearestName("evaluation_strategy", {"eval_strategy", "seed"}), "eval_strategy");
  EXPECT_EQ(NearestName("train", {"predict"}), std::nullopt);
}

}  // namespace
}  // namespace lathe
