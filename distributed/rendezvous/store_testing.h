// Helpers for tests of the store and its sockets.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lathe/core/base/error.h"

namespace lathe {

inline constexpr char kHost[] = "127.0.0.1";

// Returns the message of the Error that `body` throws. Expects that it has this code and a hint.
inline std::string MessageOf(const std::function<void()>& body, absl::StatusCode code) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.message();
    EXPECT_NE(e.hint(), "") << e.message();
    return e.message();
  }
  return "nothing was thrown";
}

}  // namespace lathe
