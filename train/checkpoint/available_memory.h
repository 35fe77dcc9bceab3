// How much memory this process could still take.
#pragma once

#include <cstdint>
#include <string>

namespace lathe {

// Returns the bytes that the system, and each control group (version 1 or 2) around this process,
// could still give. Returns the largest number if none of them says. Files that the kernel keeps in
// memory count as free. `root` stands before /proc and /sys, for tests.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace lathe
