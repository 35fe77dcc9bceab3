// Shows what a program says that was built without CUDA.
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/nccl/nccl_group.h"

namespace lathe {
namespace {

TEST(NcclBackend, IsMissingInAProgramThatDoesNotLinkIt) {
  try {
    RequireNccl();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(e.message(), "[nccl] this program was built without CUDA and NCCL");
    EXPECT_NE(e.hint().find("CUDA_PATH"), std::string::npos);
  }
  const RankDevice device = DescribeRankDevice(0);
  EXPECT_EQ(device.problem, "[nccl] this program was built without CUDA and NCCL");
  EXPECT_NE(device.hint, "");
  EXPECT_EQ(device.visible, 0);
}

}  // namespace
}  // namespace lathe
