// What most sources include. GCC compiles it once, and most sources of libraries and programs begin
// with it, which saves a third of the time that these take. A source includes what it uses all the
// same. For clang this header is empty, so a build with clang fails where an include is missing.
// There is no #pragma once, of which GCC warns in a header that it compiles.
#ifndef __clang__

// Each source that includes JSON's header makes its literal "..."_json, and so compiles the whole
// parser. Nothing uses the literal, so it becomes a template here, which is compiled only if used.
#define _json(text, size)    \
  _json(text, size);         \
  template <typename = void> \
  nlohmann::json ParseUnusedLiteral(text, size)
#include <nlohmann/json.hpp>
#undef _json

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <istream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#endif
