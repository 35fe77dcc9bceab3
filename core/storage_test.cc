#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "lathe/core/pages.h"
#include "lathe/core/tensor.h"

#ifndef __SANITIZE_ADDRESS__  // which reserves addresses without limit

namespace lathe {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

Tensor Mebibytes(int64_t n) { return Tensor::Empty({n * kMebibyte / 4}, DType::kF32); }
char* Begin(const Tensor& t) { return reinterpret_cast<char*>(t.values<float>().data()); }

// Limits this process to `more` further bytes of addresses, like `ulimit -v`.
void LimitAddresses(int64_t more) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(pages * kPageBytes + more);
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
}

// If addresses are limited, tensors' memory comes in regions of 64 MiB, and each is used to its
// end.
TEST(HostMemoryDeathTest, LimitedAddressesAreUsedToTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    LimitAddresses(180 * kMebibyte);
    const Tensor a = Mebibytes(40), b = Mebibytes(40), c = Mebibytes(20), d = Mebibytes(20);
    const auto follows = [](const Tensor& x, const Tensor& y) {
      return Begin(x) + 40 * kMebibyte == Begin(y);
    };
    std::cerr << follows(a, c) << follows(b, d);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "^11$");
}

TEST(HostMemoryDeathTest, TheirLackIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    LimitAddresses(100 * kMebibyte);
    const Tensor a = Mebibytes(40);
    try {
      Mebibytes(90);
    } catch (const Error& e) {
      Mebibytes(20);  // there is still room for smaller tensors
      std::cerr << e.message();
      std::_Exit(e.code() == absl::StatusCode::kResourceExhausted ? 3 : 4);
    }
    std::_Exit(5);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(3), "out of memory: a tensor needs 94371840 bytes");
}

}  // namespace
}  // namespace lathe

#endif
