// cuDNN's graph functions, found when they are first needed.
//
// Programs don't link libcudnn.so.9: attention has kernels of Lathe's own, so a machine without it
// lacks nothing but the choice.
#pragma once

#include <cudnn_graph.h>

#include <span>
#include <string>
#include <vector>

namespace lathe::cuda {

struct CudnnLibrary {
  std::string file;  // that was opened
  decltype(&cudnnGetVersion) GetVersion;
  decltype(&cudnnGetErrorString) GetErrorString;
  decltype(&cudnnGetLastErrorString) GetLastErrorString;
  decltype(&cudnnCreate) Create;
  decltype(&cudnnSetStream) SetStream;
  decltype(&cudnnBackendCreateDescriptor) BackendCreateDescriptor;
  decltype(&cudnnBackendDestroyDescriptor) BackendDestroyDescriptor;
  decltype(&cudnnBackendSetAttribute) BackendSetAttribute;
  decltype(&cudnnBackendGetAttribute) BackendGetAttribute;
  decltype(&cudnnBackendFinalize) BackendFinalize;
  decltype(&cudnnBackendExecute) BackendExecute;
};

// Opens the first file that is there; one without a slash is looked for where the system keeps its
// libraries. Throws FailedPrecondition saying which files are missing, broken or of a version that
// isn't used, and what to install.
CudnnLibrary OpenCudnn(std::span<const std::string> files);

// Where it is looked for: in the file that LATHE_CUDNN names; without that in the system's folders
// and in CUDA's (CUDA_PATH, /usr/local/cuda).
std::vector<std::string> CudnnFiles();

// "9.19.0", of what cudnnGetVersion returns.
std::string CudnnVersion(size_t version);
// Why attention of that version isn't used; empty: it is.
std::string WhyCudnnIsRefused(size_t version);

// That of this machine, for the whole process. Throws as OpenCudnn does, again and again.
const CudnnLibrary& Cudnn();

}  // namespace lathe::cuda
