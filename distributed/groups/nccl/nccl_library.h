// NCCL's functions, looked up when they are first needed.
//
// Programs don't link libnccl.so.2: they must start on machines without it, and it comes in
// packages of its own.
#pragma once

#include <nccl.h>

#include <span>
#include <string>

namespace lathe {

struct NcclLibrary {
  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclBroadcast) Broadcast;
  std::string file = {};  // the library's file, as given to OpenNccl
};

// Opens the first of the files that is there. A name without a slash is looked for where the system
// keeps its libraries. Throws FailedPrecondition, which says what file is missing, broken or too
// old and what to install.
NcclLibrary OpenNccl(std::span<const std::string> files);

// This machine's NCCL, opened once for the whole process: libnccl.so.2 of the system, or in CUDA's
// folder (CUDA_PATH, /usr/local/cuda).
const NcclLibrary& Nccl();

}  // namespace lathe
