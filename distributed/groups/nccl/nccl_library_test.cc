#include "lathe/distributed/groups/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/device_libraries_testing.h"

namespace lathe {
namespace {

std::string WhyNot(const std::vector<std::string>& files) {
  return WhyNotOpened(OpenNccl, files, {"libnccl2"});
}

TEST(NcclLibrary, SaysWhichFilesAreMissing) {
  EXPECT_EQ(WhyNot({"libnccl-none.so.2", "/nowhere/libnccl.so.2"}),
            "NCCL can't be used: libnccl-none.so.2: cannot open shared object file: No such file "
            "or directory; /nowhere/libnccl.so.2: cannot open shared object file: No such file or "
            "directory");
}

TEST(NcclLibrary, RefusesAnotherLibrary) {
  EXPECT_EQ(WhyNot({"libm.so.6"}), "NCCL can't be used: libm.so.6 has no ncclGetVersion");
}

// Opening NCCL needs no GPU; only its use does.
TEST(NcclLibrary, FindsAllFunctions) {
  const NcclLibrary* nccl = nullptr;
  try {
    nccl = &Nccl();
  } catch (const Error& e) {
    GTEST_SKIP() << e.message();  // built where NCCL's header is, run where the library is not
  }
  int version = 0;
  EXPECT_EQ(nccl->GetVersion(&version), ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION(2, 18, 1));
  EXPECT_STREQ(nccl->GetErrorString(ncclSuccess), "no error");
}

}  // namespace
}  // namespace lathe
