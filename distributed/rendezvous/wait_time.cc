#include "lathe/distributed/rendezvous/wait_time.h"

#include <absl/strings/str_format.h>

#include <algorithm>

namespace lathe {

std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point deadline) {
  using Milliseconds = std::chrono::milliseconds;
  return std::max(std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now()),
                  Milliseconds(0));
}

std::string SecondsText(std::chrono::duration<double> time) {
  // Three digits don't show all whole seconds of longer times.
  if (time.count() < 999.5) return absl::StrFormat("%.3g s", time.count());
  return absl::StrFormat("%.0f s", time.count());
}

}  // namespace lathe
