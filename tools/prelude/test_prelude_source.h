// What most tests include; see prelude_source.h. It is another header because tests are not
// optimized.
#ifndef __clang__
#include <gtest/gtest.h>

#include "prelude.h"

// GoogleTest would compile the library's own output of a value in each test that compares two.
namespace nlohmann {
void PrintTo(const json& value, std::ostream* out);
}  // namespace nlohmann
#endif
