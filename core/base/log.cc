#include "lathe/core/base/log.h"

#include <atomic>
#include <cstdio>

namespace lathe {
namespace {
std::atomic<bool> shown = false;
}  // namespace

void ShowDebugLog(bool show) { shown = show; }
bool DebugLogIsShown() { return shown; }

void LogDebug(const std::string& text) {
  if (shown) std::fputs(("debug: " + text + "\n").c_str(), stderr);
}

}  // namespace lathe
