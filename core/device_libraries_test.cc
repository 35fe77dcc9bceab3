#include "lathe/core/device_libraries.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace lathe {
namespace {

Error Unusable(const std::string& problem) {
  return Error(absl::StatusCode::kFailedPrecondition, "unusable: " + problem, "use another");
}

using Files = std::vector<std::string>;

// Returns the message of the error that `body` throws, or an empty string.
template <typename F>
std::string WhyNot(const F& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

TEST(OpenedLibraryTest, TakesTheFirstFileThatOpens) {
  const OpenedLibrary library(Files{"/nowhere/liba.so", "libm.so.6", "/nowhere/libb.so"}, Unusable);
  EXPECT_EQ(library.file(), "libm.so.6");
  double (*cosine)(double) = nullptr;
  library.Find("cos", cosine);
  EXPECT_EQ(cosine(0), 1);
}

TEST(OpenedLibraryTest, SaysWhatIsWrong) {
  EXPECT_EQ(
      WhyNot([] {
        OpenedLibrary(Files{"/nowhere/liba.so", "/nowhere/libb.so"}, Unusable);
      }),
      "unusable: /nowhere/liba.so: cannot open shared object file: No such file or directory; "
      "/nowhere/libb.so: cannot open shared object file: No such file or directory");
  const OpenedLibrary library(Files{"libm.so.6"}, Unusable);
  void (*function)() = nullptr;
  EXPECT_EQ(WhyNot([&] { library.Find("NoSuchFunction", function); }),
            "unusable: libm.so.6 has no NoSuchFunction");
}

TEST(DeviceLibraryFilesTest, AreTheSystemsAndCudasUnlessOneIsNamed) {
  setenv("CUDA_PATH", "/opt/cuda", 1);
  EXPECT_EQ(DeviceLibraryFiles({"liba.so.2", "liba.so.1"}, "LATHE_NO_SUCH_VARIABLE"),
            (Files{"liba.so.2", "/opt/cuda/lib64/liba.so.2", "/opt/cuda/lib/liba.so.2", "liba.so.1",
                   "/opt/cuda/lib64/liba.so.1", "/opt/cuda/lib/liba.so.1"}));
  unsetenv("CUDA_PATH");
  EXPECT_EQ(
      DeviceLibraryFiles({"liba.so.1"}),
      (Files{"liba.so.1", "/usr/local/cuda/lib64/liba.so.1", "/usr/local/cuda/lib/liba.so.1"}));
  setenv("LATHE_LIBA", "/here/liba.so", 1);
  EXPECT_EQ(DeviceLibraryFiles({"liba.so.1"}, "LATHE_LIBA"), Files{"/here/liba.so"});
  unsetenv("LATHE_LIBA");
}

}  // namespace
}  // namespace lathe
