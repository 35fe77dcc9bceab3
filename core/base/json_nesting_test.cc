#include "lathe/core/base/json_nesting.h"

#include <gtest/gtest.h>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

TEST(JsonNesting, CountsBracketsOutsideOfStrings) {
  const std::string open(200, '['), close(200, ']');
  CheckJsonNesting(open + close + open + close, "f");
  CheckJsonNesting(open + "\"[{\\\"[{\"" + close, "f");
  CheckJsonNesting("\"" + open + open + "\"", "f");
  for (const std::string more : {"[", "{", "\"\\\\\"["}) {
    try {
      CheckJsonNesting(open + more, "f.json:3");
      ADD_FAILURE() << more;
    } catch (const Error& e) {
      EXPECT_EQ(e.message(), "f.json:3: the JSON is nested more than 200 levels deep");
    }
  }
}

}  // namespace
}  // namespace lathe
