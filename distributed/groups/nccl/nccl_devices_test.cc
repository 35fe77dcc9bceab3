// Tests what ranks tell each other about their GPUs.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"

namespace lathe {
namespace {

// Returns what CheckRankDevices says; "" if it throws nothing.
std::string Verdict(std::vector<RankDevice> devices) {
  try {
    CheckRankDevices(devices);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(e.hint(), "");
    return e.message();
  }
  return "";
}

RankDevice Device(const std::string& host, const std::string& uuid, int visible) {
  return {.host = host, .uuid = uuid, .bus_id = "0000:3b:00.0", .visible = visible};
}
RankDevice Without(const std::string& host, const std::string& problem) {
  return {.host = host, .problem = problem, .hint = "install one"};
}

TEST(RankDevices, TravelAsText) {
  const RankDevice device = {.host = "node 1",
                             .problem = "no\nluck",
                             .hint = "",
                             .uuid = "GPU-12",
                             .bus_id = "0000:3b:00.0",
                             .visible = 8};
  const RankDevice back = ParseRankDevice(Serialize(device));
  EXPECT_EQ(back.host, "node 1");
  EXPECT_EQ(back.problem, "no luck");
  EXPECT_EQ(back.hint, "");
  EXPECT_EQ(back.uuid, "GPU-12");
  EXPECT_EQ(back.bus_id, "0000:3b:00.0");
  EXPECT_EQ(back.visible, 8);
  for (const char* bad : {"", "host\nproblem", "a\nb\nc\nd\ne\nmany\n"}) {
    EXPECT_THROW(ParseRankDevice(bad), Error) << bad;
  }
}

TEST(RankDevices, OneForEachRankIsRight) {
  EXPECT_EQ(Verdict({Device("a", "1", 1)}), "");
  EXPECT_EQ(Verdict({Device("a", "1", 2), Device("a", "2", 2), Device("b", "3", 1)}), "");
  // A scheduler may show each process only its own device.
  EXPECT_EQ(Verdict({Device("a", "1", 1), Device("a", "2", 1)}), "");
}

TEST(RankDevices, OneForTwoRanksIsRefused) {
  EXPECT_EQ(Verdict({Device("a", "1", 2), Device("a", "2", 2), Device("a", "1", 2)}),
            "ranks 0 and 2 would share the GPU 0000:3b:00.0 of a; rank 2 sees 2 GPUs");
  // Two containers may run on one machine.
  EXPECT_EQ(
      Verdict({Device("a", "1", 1), Device("b", "1", 1)}),
      "ranks 0 and 1 would share the GPU 0000:3b:00.0 of a (also named b); rank 1 sees 1 GPU");
}

TEST(RankDevices, WhoHasNoneIsNamed) {
  EXPECT_EQ(Verdict({Without("a", "no CUDA device: x")}), "no CUDA device: x");
  EXPECT_EQ(Verdict({Without("a", "no CUDA device: x"), Without("a", "no CUDA device: x")}),
            "no CUDA device: x");
  EXPECT_EQ(Verdict({Device("a", "1", 1), Without("b", "no CUDA device: x")}),
            "rank 1 (b): no CUDA device: x");
}

}  // namespace
}  // namespace lathe
