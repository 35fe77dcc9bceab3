#include "lathe/core/base/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <dnnl.hpp>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/gemm.h"

namespace lathe {
namespace {

bool SystemNames(const std::string& flag) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    return (line + " ").find(" " + flag + " ") != std::string::npos;
  }
  return false;
}

// The level is the one that was asked for, but at most the highest that the machine has.
TEST(IsaLevel, IsWhatIsAskedForOrAll) {
  const char* cap = std::getenv("LATHE_MAX_ISA");
  const auto names = [](const std::vector<std::string>& flags) {
    return std::all_of(flags.begin(), flags.end(), SystemNames);
  };
  int all = 2;
  // The features that -march=x86-64-v3 allows the compiler. The system calls LZCNT "abm".
  if (names({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})) all = 3;
  if (all == 3 && names({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})) all = 4;
  if (all == 4 && names({"avx512_bf16"})) all = 5;
  EXPECT_EQ(cpu::IsaLevel(), cap == nullptr || *cap == 0 ? all : std::min(all, std::atoi(cap)));
}

// Kernels and oneDNN use the same level if both are capped, as tests/with_isa.sh does.
TEST(IsaLevel, IsThatOfProducts) {
  if (std::getenv("LATHE_MAX_ISA") == nullptr || std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr)
    GTEST_SKIP() << "the kernels or the products are not capped";
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  switch (cpu::IsaLevel()) {
    case 2:
      EXPECT_EQ(isa, dnnl::cpu_isa::sse41);
      break;
    case 3:
      EXPECT_EQ(isa, dnnl::cpu_isa::avx2);
      break;
    case 4:
      EXPECT_EQ(isa, dnnl::cpu_isa::avx512_core);
      break;
    default:
      EXPECT_EQ(isa, dnnl::cpu_isa::avx512_core_bf16);
  }
  EXPECT_EQ(HasFastBFloat16(), cpu::IsaLevel() == 5);
}

TEST(IsaLevelDeathTest, NonsenseIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* cap : {"avx2", "v4", "0", "1", "6", "22", "4 "}) {
    const auto ask = [cap] {
      setenv("LATHE_MAX_ISA", cap, 1);
      try {
        cpu::IsaLevel();
      } catch (const Error& error) {
        std::cerr << error.message() << std::flush;
        std::_Exit(3);
      }
      std::_Exit(0);
    };
    EXPECT_EXIT(ask(), testing::ExitedWithCode(3),
                "^LATHE_MAX_ISA must be 2, 3, 4 or 5 but is \"" + std::string(cap) + "\"$");
  }
}

}  // namespace
}  // namespace lathe
