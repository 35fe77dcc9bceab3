#include "lathe/distributed/rendezvous/wait_time.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace lathe {

std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point deadline) {
  using Milliseconds = std::chrono::milliseconds;
  return std::max(
      std::chrono::duration_cast<Milliseconds>(deadline - std::chrono::steady_clock::now()),
      Milliseconds(0));
}

std::string SecondsText(std::chrono::duration<double> time) {
  constexpr double kLong = 999.5;  // three digits don't show all whole seconds from here on
  std::ostringstream text;
  if (time.count() < kLong) {
    text.precision(3);
    text << time.count();
  } else {
    text << std::llround(time.count());
  }
  text << " s";
  return text.str();
}

}  // namespace lathe
