#include "lathe/distributed/groups/nccl/nccl_library.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "lathe/core/base/error.h"
#include "lathe/core/device_libraries.h"

namespace lathe {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 1);  // has all that communicators that don't block need

Error Unusable(const std::string& problem) {
  return Error(absl::StatusCode::kFailedPrecondition, "NCCL can't be used: " + problem,
               "install NVIDIA's package libnccl2, or put the folder of libnccl.so.2 into "
               "LD_LIBRARY_PATH");
}

}  // namespace

NcclLibrary OpenNccl(std::span<const std::string> files) {
  const OpenedLibrary library(files, Unusable);
  NcclLibrary nccl;
  library.Find("ncclGetVersion", nccl.GetVersion);
  int version = 0;
  nccl.GetVersion(&version);
  if (version < kOldest) {
    throw Unusable(library.file() + " is version " + std::to_string(version) + ", older than " +
                   std::to_string(kOldest));
  }
  library.Find("ncclGetErrorString", nccl.GetErrorString);
  library.Find("ncclGetLastError", nccl.GetLastError);
  library.Find("ncclGetUniqueId", nccl.GetUniqueId);
  library.Find("ncclCommInitRankConfig", nccl.CommInitRankConfig);
  library.Find("ncclCommGetAsyncError", nccl.CommGetAsyncError);
  library.Find("ncclCommFinalize", nccl.CommFinalize);
  library.Find("ncclCommDestroy", nccl.CommDestroy);
  library.Find("ncclCommAbort", nccl.CommAbort);
  library.Find("ncclAllReduce", nccl.AllReduce);
  library.Find("ncclAllGather", nccl.AllGather);
  library.Find("ncclBroadcast", nccl.Broadcast);
  nccl.file = library.file();
  return nccl;
}

const NcclLibrary& Nccl() {
  static const NcclLibrary nccl = OpenNccl(DeviceLibraryFiles({"libnccl.so.2"}));
  return nccl;
}

namespace {

[[maybe_unused]] const bool named = RegisterDeviceLibrary([]() -> std::string {
  try {
    const NcclLibrary& nccl = Nccl();
    int version = 0;  // 22703 is 2.27.3
    nccl.GetVersion(&version);
    return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                        " (", nccl.file, ")");
  } catch (const Error& e) {
    return "no NCCL: " + WithoutTag(e.message());
  }
});

}  // namespace
}  // namespace lathe
