// What most tests include; see prelude_source.h. Tests need a header of their own because they are
// compiled without optimization.
#ifndef __clang__
#include <gtest/gtest.h>

#include "prelude.h"

// GoogleTest would compile the library's own output of a value in each test that compares two.
namespace nlohmann {
void PrintTo(const json& value, std::ostream* out);
}  // namespace nlohmann

#define LATHE_EXTERN extern
#include "instances.h"
#undef LATHE_EXTERN
#endif
