#include "lathe/core/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <dnnl.hpp>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "lathe/core/error.h"
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

// The level asked for, where the machine has it (tests/with_isa.sh skips the others), else all that
// the machine has.
TEST(IsaLevel, IsWhatIsAskedForOrAll) {
  const char* cap = std::getenv("LATHE_MAX_ISA");
  const int all = SystemNames("avx512_bf16") && SystemNames("avx512vl") ? 5
                  : SystemNames("avx512bw") && SystemNames("avx512vl")  ? 4
                  : SystemNames("avx2") && SystemNames("fma")           ? 3
                                                                        : 2;
  EXPECT_EQ(cpu::IsaLevel(), cap == nullptr ? all : std::atoi(cap));
}

// Products are capped together with the kernels.
TEST(IsaLevel, IsThatOfProducts) {
  if (std::getenv("LATHE_MAX_ISA") == nullptr) GTEST_SKIP() << "nothing is capped";
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
