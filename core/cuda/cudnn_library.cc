#include "lathe/core/cuda/cudnn_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

// The oldest version that is used, and the first that is too new. Versions 9.10.0 and 9.10.1 are
// broken. 9.12 gives NaN in the backward pass. Before 9.13.1 there are accesses out of bounds. Up
// to 9.15.0, CUDA graphs give wrong results at some lengths. The source is TransformerEngine's and
// cudnn-frontend's lists of known errors.
constexpr size_t kOldest = 91501, kNext = 100000;

Error Unusable(const std::string& problem) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "[cuda] cuDNN can't be used: " + problem,
      "install NVIDIA's package libcudnn9-cuda-13 (libcudnn9-cuda-12 for CUDA 12), put the "
      "folder of libcudnn.so.9 into LD_LIBRARY_PATH, name the file in LATHE_CUDNN, or "
      "leave attention to Lathe's own kernels (LATHE_ATTENTION=own)");
}

std::string FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

CudnnLibrary OpenCudnn(std::span<const std::string> files) {
  std::string problems;
  CudnnLibrary cudnn;
  void* handle = nullptr;
  for (const std::string& candidate : files) {
    handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    cudnn.file = candidate;
    if (handle != nullptr) break;
    problems += (problems.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (handle == nullptr) throw Unusable(problems);
  // The library stays open, because queued work needs it until the process ends.
  const auto find = [&]<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) throw Unusable(cudnn.file + " has no " + name);
  };
  find("cudnnGetVersion", cudnn.GetVersion);
  if (const std::string why = WhyCudnnIsRefused(cudnn.GetVersion()); !why.empty()) {
    throw Unusable(cudnn.file + ": " + why);
  }
  find("cudnnGetErrorString", cudnn.GetErrorString);
  find("cudnnGetLastErrorString", cudnn.GetLastErrorString);
  find("cudnnCreate", cudnn.Create);
  find("cudnnSetStream", cudnn.SetStream);
  find("cudnnBackendCreateDescriptor", cudnn.BackendCreateDescriptor);
  find("cudnnBackendDestroyDescriptor", cudnn.BackendDestroyDescriptor);
  find("cudnnBackendSetAttribute", cudnn.BackendSetAttribute);
  find("cudnnBackendGetAttribute", cudnn.BackendGetAttribute);
  find("cudnnBackendFinalize", cudnn.BackendFinalize);
  find("cudnnBackendExecute", cudnn.BackendExecute);
  return cudnn;
}

std::vector<std::string> CudnnFiles() {
  if (const std::string named = FromEnvironment("LATHE_CUDNN"); !named.empty()) return {named};
  std::string root = FromEnvironment("CUDA_PATH");
  if (root.empty()) root = "/usr/local/cuda";
  const std::string name = "libcudnn.so.9";
  return {name, root + "/lib64/" + name, root + "/lib/" + name};
}

std::string CudnnVersion(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string WhyCudnnIsRefused(size_t version) {
  if (version >= kNext) {
    return "version " + std::to_string(version) + " is not known to work; use version 9";
  }
  if (version < kOldest) {
    return "version " + CudnnVersion(version) + " has known errors in attention; use version " +
           CudnnVersion(kOldest) + " or newer";
  }
  return "";
}

const CudnnLibrary& Cudnn() {
  static const CudnnLibrary cudnn = OpenCudnn(CudnnFiles());
  return cudnn;
}

}  // namespace lathe::cuda
