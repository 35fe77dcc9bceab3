#include "lathe/core/device_libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace lathe {
namespace {

// Returns the variable's value, or an empty string if it isn't set.
std::string FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::vector<std::function<std::string()>>& Registered() {
  static std::vector<std::function<std::string()>> registered;
  return registered;
}

}  // namespace

OpenedLibrary::OpenedLibrary(std::span<const std::string> files, Unusable unusable)
    : unusable_(unusable) {
  std::string problems;
  for (const std::string& file : files) {
    // RTLD_NOW makes missing symbols fail here, and not in the middle of a step.
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    file_ = file;
    if (handle_ != nullptr) return;
    problems += (problems.empty() ? "" : "; ") + std::string(dlerror());
  }
  throw unusable_(problems);
}

void* OpenedLibrary::Address(const char* name) const {
  void* const address = dlsym(handle_, name);
  if (address == nullptr) throw unusable_(file_ + " has no " + name);
  return address;
}

std::vector<std::string> DeviceLibraryFiles(std::initializer_list<std::string_view> names,
                                            const char* variable) {
  if (variable != nullptr) {
    if (const std::string named = FromEnvironment(variable); !named.empty()) return {named};
  }
  std::string root = FromEnvironment("CUDA_PATH");
  if (root.empty()) root = "/usr/local/cuda";
  std::vector<std::string> files;
  for (const std::string_view view : names) {
    const std::string name(view);
    files.insert(files.end(), {name, root + "/lib64/" + name, root + "/lib/" + name});
  }
  return files;
}

bool RegisterDeviceLibrary(std::function<std::string()> describe) {
  Registered().push_back(std::move(describe));
  return true;
}

std::vector<std::string> DescribeDeviceLibraries() {
  std::vector<std::string> lines;
  for (const auto& describe : Registered()) lines.push_back(describe());
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lathe
