// How a test prints a JSON value that is not the expected one; see test_prelude_source.h.
#include <nlohmann/json.hpp>
#include <ostream>

namespace nlohmann {

void PrintTo(const json& value, std::ostream* out) { *out << value; }

}  // namespace nlohmann
