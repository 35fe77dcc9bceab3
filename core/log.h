// What a program says of its inner workings, on standard error.
#pragma once

#include <string>

namespace lathe {

// Whether LogDebug says anything; off at first.
void ShowDebugLog(bool show);
bool DebugLogIsShown();
// A line "debug: <text>".
void LogDebug(const std::string& text);

}  // namespace lathe
