// cuBLASLt's functions, found when they are first needed.
//
// Programs don't link libcublasLt.so: they must start, and use the CPU, on machines without it.
#pragma once

#include <cublasLt.h>

#include <span>
#include <string>
#include <vector>

namespace lathe::cuda {

struct CublasLtLibrary {
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulAlgoCheck) MatmulAlgoCheck;
  decltype(&cublasLtMatmul) Matmul;
};

// Opens the first file that is there; one without a slash is looked for where the system keeps its
// libraries. Throws FailedPrecondition saying which files are missing or broken and what to
// install.
CublasLtLibrary OpenCublasLt(std::span<const std::string> files);

// Where it is looked for: in the file that LATHE_CUBLASLT names; without that in the system's
// folders and in CUDA's (CUDA_PATH, /usr/local/cuda), version 13 before 12.
std::vector<std::string> CublasLtFiles();

// That of this machine, for the whole process.
const CublasLtLibrary& CublasLt();

}  // namespace lathe::cuda
