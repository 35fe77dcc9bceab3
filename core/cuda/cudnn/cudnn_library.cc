#include "lathe/core/cuda/cudnn/cudnn_library.h"

#include <absl/status/status.h>

#include "lathe/core/base/error.h"
#include "lathe/core/device_libraries.h"

namespace lathe::cuda {
namespace {

// Lathe uses versions from kOldest on and below kNext. Older ones have errors, which
// TransformerEngine and cudnn-frontend list. Versions 9.10.0 and 9.10.1 are broken, and 9.12 gives
// NaN in the backward pass. Versions before 9.13.1 access memory out of bounds. Up to 9.15.0, CUDA
// graphs give wrong results at some lengths.
constexpr size_t kOldest = 91501, kNext = 100000;

Error Unusable(const std::string& problem) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "[cuda] cuDNN can't be used: " + problem,
      "install NVIDIA's package libcudnn9-cuda-13 (libcudnn9-cuda-12 for CUDA 12), put the "
      "folder of libcudnn.so.9 into LD_LIBRARY_PATH, name the file in LATHE_CUDNN, or "
      "leave attention to Lathe's own kernels (LATHE_ATTENTION=own)");
}

}  // namespace

CudnnLibrary OpenCudnn(std::span<const std::string> files) {
  const OpenedLibrary library(files, Unusable);
  CudnnLibrary cudnn;
  cudnn.file = library.file();
  library.Find("cudnnGetVersion", cudnn.GetVersion);
  if (const std::string why = WhyCudnnIsRefused(cudnn.GetVersion()); !why.empty()) {
    throw Unusable(cudnn.file + ": " + why);
  }
  library.Find("cudnnGetErrorString", cudnn.GetErrorString);
  library.Find("cudnnGetLastErrorString", cudnn.GetLastErrorString);
  library.Find("cudnnCreate", cudnn.Create);
  library.Find("cudnnSetStream", cudnn.SetStream);
  library.Find("cudnnBackendCreateDescriptor", cudnn.BackendCreateDescriptor);
  library.Find("cudnnBackendDestroyDescriptor", cudnn.BackendDestroyDescriptor);
  library.Find("cudnnBackendSetAttribute", cudnn.BackendSetAttribute);
  library.Find("cudnnBackendGetAttribute", cudnn.BackendGetAttribute);
  library.Find("cudnnBackendFinalize", cudnn.BackendFinalize);
  library.Find("cudnnBackendExecute", cudnn.BackendExecute);
  return cudnn;
}

std::vector<std::string> CudnnFiles() {
  return DeviceLibraryFiles({"libcudnn.so.9"}, "LATHE_CUDNN");
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
