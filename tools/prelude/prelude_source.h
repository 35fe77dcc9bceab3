// What most sources include. Each source of a library or a program begins with it, compiled once
// for all of them, which saves a fourth of the time that they take to compile. A source includes
// what it uses all the same: clang compiles without this header, so a build with it misses what a
// source forgets. There is no #pragma once, of which GCC warns in a header that it compiles.
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
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
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
