#include "lathe/core/json/json_number.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using nlohmann::json;

TEST(JsonNumberTest, TakesOnlyWholeNumbersThatFit) {
  EXPECT_EQ(WholeNumber(ParseJson("-3")), -3);
  EXPECT_EQ(WholeNumber(ParseJson("9223372036854775807")), INT64_MAX);
  EXPECT_EQ(WholeNumber(ParseJson("-9223372036854775808")), INT64_MIN);
  for (const char* text : {"9223372036854775808", "18446744073709551615", "1e300", "-1e300", "1.0",
                           "0.5", "true", "null", "\"1\"", "[1]"}) {
    EXPECT_EQ(WholeNumber(ParseJson(text)), std::nullopt) << text;
  }
}

TEST(JsonNumberTest, TakesOnlyNumbersInTheRange) {
  EXPECT_EQ(WholeNumber(json(0), 0, 5), 0);
  EXPECT_EQ(WholeNumber(json(5u), 0, 5), 5);
  EXPECT_EQ(WholeNumber(json(-1), 0, 5), std::nullopt);
  EXPECT_EQ(WholeNumber(json(6u), 0, 5), std::nullopt);
}

TEST(JsonNumberTest, GetsWholeNumbersOfAType) {
  EXPECT_EQ(GetWholeNumber<int64_t>(json(-3)), -3);
  EXPECT_EQ(GetWholeNumber<int>(json(7)), 7);
  EXPECT_EQ(GetWholeNumber<uint64_t>(json(UINT64_MAX)), UINT64_MAX);
  for (const char* text : {"1.7e34", "2.0", "null", "\"2\"", "4294967296", "[2]"})
    EXPECT_THROW(GetWholeNumber<int>(ParseJson(text)), json::type_error) << text;
  for (const char* text : {"-1", "-1.5", "1e3", "null"})
    EXPECT_THROW(GetWholeNumber<uint64_t>(ParseJson(text)), json::type_error) << text;
  EXPECT_THROW(GetWholeNumber<int64_t>(json(UINT64_MAX)), json::type_error);
}

}  // namespace
}  // namespace lathe
