// Tests a program that links the CUDA backend while LATHE_CUDNN names a file that doesn't exist.
#include "lathe/core/cuda/cudnn/cudnn_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/cuda/attention/attention_library.h"
#include "lathe/core/device_libraries.h"
#include "lathe/core/device_libraries_testing.h"

namespace lathe::cuda {
namespace {

std::string WhyNot(const std::vector<std::string>& files) {
  return WhyNotOpened(OpenCudnn, files, {"libcudnn9-cuda-13", "LATHE_CUDNN"});
}

constexpr char kMissing[] =
    "cuDNN can't be used: /nowhere/libcudnn.so.9: cannot open shared object file: No such file or "
    "directory";

TEST(CudnnLibrary, IsNotNeeded) {
  EXPECT_FALSE(IsLoaded("libcudnn"));
  std::string why;
  EXPECT_EQ(FindAttentionLibrary(&why), nullptr);
  EXPECT_EQ(why, kMissing);
  EXPECT_EQ(FindAttentionLibrary(&why), nullptr);  // a second call says the same
  EXPECT_EQ(why, kMissing);
  EXPECT_FALSE(IsLoaded("libcudnn"));
}

TEST(CudnnLibrary, IsNamedAmongTheDevicesLibraries) {
  const std::vector<std::string> lines = DescribeDeviceLibraries();
  EXPECT_NE(std::find(lines.begin(), lines.end(), std::string("no cuDNN: ") + kMissing),
            lines.end());
}

TEST(CudnnLibrary, SaysWhatIsWrong) {
  EXPECT_EQ(WhyNot({"libcudnn-none.so.9", "/nowhere/libcudnn.so.9"}),
            "[cuda] cuDNN can't be used: libcudnn-none.so.9: cannot open shared object file: No "
            "such file or directory; /nowhere/libcudnn.so.9: cannot open shared object file: No "
            "such file or directory");
  EXPECT_EQ(WhyNot({"libm.so.6"}), "[cuda] cuDNN can't be used: libm.so.6 has no cudnnGetVersion");
}

TEST(CudnnLibrary, RefusesVersionsWithKnownErrors) {
  for (const size_t version : {90100, 91000, 91200, 91500}) {
    EXPECT_EQ(WhyCudnnIsRefused(version),
              "version " + CudnnVersion(version) +
                  " has known errors in attention; use version 9.15.1 or newer");
  }
  for (const size_t version : {91501, 91900, 99999}) EXPECT_EQ(WhyCudnnIsRefused(version), "");
  EXPECT_NE(WhyCudnnIsRefused(100000), "");
  EXPECT_NE(WhyCudnnIsRefused(8907), "");  // cuDNN 8 counted 1000 for a major version
  EXPECT_EQ(CudnnVersion(91900), "9.19.0");
}

TEST(CudnnLibrary, IsLookedForInCudasFolderUnlessAFileIsNamed) {
  EXPECT_EQ(CudnnFiles(), std::vector<std::string>{"/nowhere/libcudnn.so.9"});
  const std::string named = std::getenv("LATHE_CUDNN");
  unsetenv("LATHE_CUDNN");
  setenv("CUDA_PATH", "/opt/cuda", 1);
  const std::vector<std::string> files = CudnnFiles();
  setenv("LATHE_CUDNN", named.c_str(), 1);
  unsetenv("CUDA_PATH");
  EXPECT_EQ(files, (std::vector<std::string>{"libcudnn.so.9", "/opt/cuda/lib64/libcudnn.so.9",
                                             "/opt/cuda/lib/libcudnn.so.9"}));
}

}  // namespace
}  // namespace lathe::cuda
