// The libraries that a device's backend opens on demand, and a list of them for people.
//
//   const OpenedLibrary library(files, Unusable);  // Unusable makes the error
//   library.Find("cudnnCreate", cudnn.Create);     // with decltype(&cudnnCreate) Create
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

// A library that has been opened. It stays open until the process ends, because queued work and
// threads of its own may need it.
class OpenedLibrary {
 public:
  // Makes the error that says what is wrong with a library, and what to do.
  using Unusable = Error (*)(const std::string& problem);

  // Opens the first of `files` that can be opened. The system's library folders are searched for a
  // name without a slash. If there is none, throws the error that names each file's problem.
  OpenedLibrary(std::span<const std::string> files, Unusable unusable);

  // The file that was opened.
  const std::string& file() const { return file_; }

  // Sets `function`, a pointer, to the library's function `name`. Throws if it has none.
  template <typename Function>
  void Find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(Address(name));
  }

 private:
  void* Address(const char* name) const;

  Unusable unusable_;
  std::string file_;
  void* handle_ = nullptr;
};

// Returns the files to try for a library with one of `names`, in their order. Each is sought in the
// system's folders and then in CUDA's (CUDA_PATH or /usr/local/cuda). If the environment variable
// `variable` names a file, that is the only one.
std::vector<std::string> DeviceLibraryFiles(std::initializer_list<std::string_view> names,
                                            const char* variable = nullptr);

// Called before main by the user of a library. `describe` opens the library and returns "cuDNN
// 9.19.0 (libcudnn.so.9)", or why it can't be used; it must not throw. Returns true.
bool RegisterDeviceLibrary(std::function<std::string()> describe);
// Returns one line per library, in alphabetical order.
std::vector<std::string> DescribeDeviceLibraries();

}  // namespace lathe
