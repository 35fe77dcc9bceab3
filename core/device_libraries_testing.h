// Helpers for tests of the libraries that are opened on demand (device_libraries.h).
#pragma once

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

// Returns true if this process has opened a library whose path contains `library`.
inline bool IsLoaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

// Calls `open` with `files` and returns the message of its error, or "" if there is none. The error
// must say that a precondition failed, and its hint must contain each of `hints`.
template <typename Open>
std::string WhyNotOpened(Open open, const std::vector<std::string>& files,
                         std::initializer_list<const char*> hints) {
  try {
    open(files);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
    for (const char* hint : hints) EXPECT_NE(e.hint().find(hint), std::string::npos) << hint;
    return e.message();
  }
  return "";
}

}  // namespace lathe
