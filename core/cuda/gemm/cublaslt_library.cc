#include "lathe/core/cuda/gemm/cublaslt_library.h"

#include <absl/status/status.h>

#include "lathe/core/base/error.h"
#include "lathe/core/device_libraries.h"

namespace lathe::cuda {
namespace {

Error Unusable(const std::string& problem) {
  return Error(absl::StatusCode::kFailedPrecondition,
               "[cuda] matrix products on a GPU need cuBLASLt, which can't be used: " + problem,
               "install NVIDIA's package libcublas-13-0 (libcublas-12-9 for CUDA 12), put the "
               "folder of libcublasLt.so.13 into LD_LIBRARY_PATH, name the file in LATHE_CUBLASLT, "
               "or use the CPU");
}

}  // namespace

CublasLtLibrary OpenCublasLt(std::span<const std::string> files) {
  const OpenedLibrary library(files, Unusable);
  CublasLtLibrary lt;
  library.Find("cublasLtGetStatusString", lt.GetStatusString);
  library.Find("cublasLtCreate", lt.Create);
  library.Find("cublasLtGetVersion", lt.GetVersion);
  library.Find("cublasLtMatmulDescCreate", lt.MatmulDescCreate);
  library.Find("cublasLtMatmulDescDestroy", lt.MatmulDescDestroy);
  library.Find("cublasLtMatmulDescSetAttribute", lt.MatmulDescSetAttribute);
  library.Find("cublasLtMatrixLayoutCreate", lt.MatrixLayoutCreate);
  library.Find("cublasLtMatrixLayoutDestroy", lt.MatrixLayoutDestroy);
  library.Find("cublasLtMatrixLayoutSetAttribute", lt.MatrixLayoutSetAttribute);
  library.Find("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate);
  library.Find("cublasLtMatmulPreferenceDestroy", lt.MatmulPreferenceDestroy);
  library.Find("cublasLtMatmulPreferenceSetAttribute", lt.MatmulPreferenceSetAttribute);
  library.Find("cublasLtMatmulAlgoGetHeuristic", lt.MatmulAlgoGetHeuristic);
  library.Find("cublasLtMatmulAlgoCheck", lt.MatmulAlgoCheck);
  library.Find("cublasLtMatmul", lt.Matmul);
  return lt;
}

std::vector<std::string> CublasLtFiles() {
  return DeviceLibraryFiles({"libcublasLt.so.13", "libcublasLt.so.12"}, "LATHE_CUBLASLT");
}

const CublasLtLibrary& CublasLt() {
  static const CublasLtLibrary lt = OpenCublasLt(CublasLtFiles());
  return lt;
}

}  // namespace lathe::cuda
