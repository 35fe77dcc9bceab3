// Messages about a program's inner workings, on standard error.
#pragma once

#include <string>

namespace lathe {

// Turns LogDebug's output on or off; it is off at first.
void ShowDebugLog(bool show);
bool DebugLogIsShown();
// Prints a line "debug: <text>" if the output is on.
void LogDebug(const std::string& text);

}  // namespace lathe
