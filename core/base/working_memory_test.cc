#include "lathe/core/base/working_memory.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>

#include "lathe/core/base/error.h"

namespace lathe::cpu {
namespace {

void ExpectNone(void (*ask)(size_t), size_t bytes) {
  try {
    ask(bytes);
    ADD_FAILURE() << bytes << " bytes came";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(std::string(e.what()).find(std::to_string(bytes) + " bytes of working memory"),
              std::string::npos)
        << e.what();
  }
}

TEST(WorkingMemory, IsOnALinesBoundaryAndIsKept) {
  void* const first = WorkingMemory(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  std::memset(first, 1, 1000);
  EXPECT_EQ(WorkingMemory(10), first);
  std::memset(WorkingMemory(100000), 1, 100000);
}

TEST(WorkingMemory, EachThreadHasItsOwn) {
  void* const mine = WorkingMemory(1000);
  std::thread([mine] { EXPECT_NE(WorkingMemory(1000), mine); }).join();
}

TEST(WorkingMemory, ItsLackIsAnError) {
  // More than any machine has, and a size that would wrap around to a small one when rounded up.
  for (const size_t bytes : {size_t{1} << 60, SIZE_MAX - 8}) {
    ExpectNone([](size_t n) { WorkingMemory(n); }, bytes);
    ExpectNone([](size_t n) { ReserveWorkingMemory(n); }, bytes);
  }
  ReserveWorkingMemory(1000);
  std::memset(WorkingMemory(1000), 1, 1000);
}

}  // namespace
}  // namespace lathe::cpu
