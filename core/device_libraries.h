// The libraries that a device's backend opens on demand, listed for people.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lathe {

// Called before main by the user of a library. `describe` opens the library and returns "cuDNN
// 9.19.0 (libcudnn.so.9)", or why it can't be used; it must not throw. Returns true.
bool RegisterDeviceLibrary(std::function<std::string()> describe);
// Returns one line per library, in alphabetical order.
std::vector<std::string> DescribeDeviceLibraries();

}  // namespace lathe
