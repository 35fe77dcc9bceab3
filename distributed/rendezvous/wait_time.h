// Times of waits: what is left of one, and how messages show one.
#pragma once

#include <absl/strings/str_format.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace lathe {

// A wait that ends so much too late shows that this process, or its machine, stood still: by
// SIGSTOP, or because a virtual machine was suspended. Such a time doesn't count as waiting.
inline constexpr std::chrono::seconds kStandstill(1);

// Returns the time until the deadline, rounded up; 0 if it has passed.
inline std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), {});
}

// Returns the time in seconds with three digits or, if it is longer, in whole seconds: "0.612 s",
// "10.5 s", "3600 s".
inline std::string SecondsText(std::chrono::duration<double> time) {
  // Three digits don't show all whole seconds of longer times.
  if (time.count() < 999.5) return absl::StrFormat("%.3g s", time.count());
  return absl::StrFormat("%.0f s", time.count());
}

}  // namespace lathe
