// Times of waits: what is left of one, and how messages show one.
#pragma once

#include <chrono>
#include <string>

namespace lathe {

// A wait that ends so much too late shows that this process, or its machine, stood still: by
// SIGSTOP, or because a virtual machine was suspended. Such a time doesn't count as waiting.
inline constexpr std::chrono::seconds kStandstill(1);

// Returns the time until the deadline, rounded up; 0 if it has passed.
std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point deadline);

// Returns the time in seconds with three digits or, if it is longer, in whole seconds: "0.612 s",
// "10.5 s", "3600 s".
std::string SecondsText(std::chrono::duration<double> time);

}  // namespace lathe
