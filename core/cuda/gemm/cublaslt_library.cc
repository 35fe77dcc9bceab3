#include "lathe/core/cuda/gemm/cublaslt_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "lathe/core/base/error.h"

namespace lathe::cuda {
namespace {

Error Unusable(const std::string& problem) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "[cuda] matrix products on a GPU need cuBLASLt, which can't be used: " + problem,
               "install NVIDIA's package libcublas-13-0 (libcublas-12-9 for CUDA 12), put the "
               "folder of libcublasLt.so.13 into LD_LIBRARY_PATH, name the file in LATHE_CUBLASLT, "
               "or use the CPU");
}

std::string FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

CublasLtLibrary OpenCublasLt(std::span<const std::string> files) {
  std::string problems, file;
  void* handle = nullptr;
  for (const std::string& candidate : files) {
    // RTLD_NOW makes missing symbols fail here, and not in the middle of a step.
    handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    file = candidate;
    if (handle != nullptr) break;
    problems += (problems.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (handle == nullptr) throw Unusable(problems);
  // The library stays open, because queued work needs it until the process ends.
  const auto find = [&]<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) throw Unusable(file + " has no " + name);
  };
  CublasLtLibrary lt;
  find("cublasLtGetStatusString", lt.GetStatusString);
  find("cublasLtCreate", lt.Create);
  find("cublasLtGetVersion", lt.GetVersion);
  find("cublasLtMatmulDescCreate", lt.MatmulDescCreate);
  find("cublasLtMatmulDescDestroy", lt.MatmulDescDestroy);
  find("cublasLtMatmulDescSetAttribute", lt.MatmulDescSetAttribute);
  find("cublasLtMatrixLayoutCreate", lt.MatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", lt.MatrixLayoutDestroy);
  find("cublasLtMatrixLayoutSetAttribute", lt.MatrixLayoutSetAttribute);
  find("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate);
  find("cublasLtMatmulPreferenceDestroy", lt.MatmulPreferenceDestroy);
  find("cublasLtMatmulPreferenceSetAttribute", lt.MatmulPreferenceSetAttribute);
  find("cublasLtMatmulAlgoGetHeuristic", lt.MatmulAlgoGetHeuristic);
  find("cublasLtMatmulAlgoCheck", lt.MatmulAlgoCheck);
  find("cublasLtMatmul", lt.Matmul);
  return lt;
}

std::vector<std::string> CublasLtFiles() {
  if (const std::string named = FromEnvironment("LATHE_CUBLASLT"); !named.empty()) return {named};
  std::string root = FromEnvironment("CUDA_PATH");
  if (root.empty()) root = "/usr/local/cuda";
  std::vector<std::string> files;
  for (const char* version : {"13", "12"}) {
    const std::string name = std::string("libcublasLt.so.") + version;
    files.insert(files.end(), {name, root + "/lib64/" + name, root + "/lib/" + name});
  }
  return files;
}

const CublasLtLibrary& CublasLt() {
  static const CublasLtLibrary lt = OpenCublasLt(CublasLtFiles());
  return lt;
}

}  // namespace lathe::cuda
