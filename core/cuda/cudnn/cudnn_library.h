// The graph functions of cuDNN, which are found when they are first needed.
//
// Programs don't link libcudnn.so.9. A machine without cuDNN can still use Lathe's own
// attention kernels.
#pragma once

#include <cudnn_graph.h>

#include <span>
#include <string>
#include <vector>

namespace lathe::cuda {

struct CudnnLibrary {
  std::string file;  // the file that was opened
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

// Opens the first of `files` that can be opened. The system's library folders are searched for a
// name without a slash. Throws FailedPrecondition if there is none, it lacks a function, or its
// version isn't used. The message says which files are unusable and what to install.
CudnnLibrary OpenCudnn(std::span<const std::string> files);

// Returns the files to try. If LATHE_CUDNN names a file, that is the only one. Otherwise these are
// the files in the system's folders and in CUDA's (CUDA_PATH or /usr/local/cuda).
std::vector<std::string> CudnnFiles();

// Formats the result of cudnnGetVersion like "9.19.0".
std::string CudnnVersion(size_t version);
// Returns why attention doesn't use that version, or an empty string if it does.
std::string WhyCudnnIsRefused(size_t version);

// Returns this process's library, which the first call opens. Throws as OpenCudnn does, on every
// call.
const CudnnLibrary& Cudnn();

}  // namespace lathe::cuda
