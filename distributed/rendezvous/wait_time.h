// Times of waits: what is left of one, and how messages show one.
#pragma once

#include <chrono>
#include <string>

namespace lathe {

// Returns the time until the deadline; 0 if it has passed.
std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point deadline);

// Returns the time in seconds with three digits or, if it is longer, in whole seconds: "0.612 s",
// "10.5 s", "3600 s".
std::string SecondsText(std::chrono::duration<double> time);

}  // namespace lathe
