#include "lathe/core/json/json_nesting.h"

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

// Files that were being written when the power went may end in NULs.
TEST(JsonNesting, RefusesNul) {
  CheckJsonNesting(std::string("\"\0\"", 3), "f");  // the library refuses it
  try {
    CheckJsonNesting(std::string("{}\0\0", 4), "f.json");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "f.json: the JSON has a NUL at byte 3");
  }
}

}  // namespace
}  // namespace lathe
