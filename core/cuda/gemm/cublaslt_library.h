// The functions of cuBLASLt, which are found when they are first needed.
//
// Programs don't link libcublasLt.so, because they must start and use the CPU on machines without
// it.
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

// Opens the first of `files` that can be opened. The system's library folders are searched for a
// name without a slash. Throws FailedPrecondition if there is none or it lacks a function. The
// message says which files are missing or broken and what to install.
CublasLtLibrary OpenCublasLt(std::span<const std::string> files);

// Returns the files to try. If LATHE_CUBLASLT names a file, that is the only one. Otherwise these
// are the files in the system's folders and in CUDA's (CUDA_PATH or /usr/local/cuda), version 13
// before 12.
std::vector<std::string> CublasLtFiles();

// Returns this process's library, which the first call opens. Throws as OpenCublasLt does, on every
// call.
const CublasLtLibrary& CublasLt();

}  // namespace lathe::cuda
