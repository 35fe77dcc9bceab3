// Libraries that a device's backend opens when it needs them, for people to see what there is.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lathe {

// Called before main by those who use one. `describe` opens it: "cuDNN 9.19.0 (libcudnn.so.9)", or
// why it can't be used; it must not throw. Returns true.
bool RegisterDeviceLibrary(std::function<std::string()> describe);
// A line for each, in alphabetical order.
std::vector<std::string> DescribeDeviceLibraries();

}  // namespace lathe
