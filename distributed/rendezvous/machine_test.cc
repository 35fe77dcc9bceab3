#include "lathe/distributed/rendezvous/machine.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "lathe/distributed/rendezvous/store_testing.h"

namespace lathe {
namespace {

// Runs `body` in a process of its own, which may not raise its limits again.
void WithLimits(rlim_t soft, rlim_t hard, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limits = {.rlim_cur = soft, .rlim_max = hard};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(OpenFiles, TheLimitIsRaisedAsFarAsAllowed) {
  WithLimits(100, 700, [] {
    EXPECT_EQ(RaiseOpenFileLimit(), 700);
    rlimit limits{};
    getrlimit(RLIMIT_NOFILE, &limits);
    EXPECT_EQ(limits.rlim_cur, 700u);
    EXPECT_EQ(RaiseOpenFileLimit(), 700);
  });
}

TEST(OpenFiles, TooFewAreAnError) {
  WithLimits(100, 700, [] {
    RequireOpenFiles(0, 190);
    RequireOpenFiles(1, 512);
    const auto error_of = [](int rank, int world_size) {
      return MessageOf([=] { RequireOpenFiles(rank, world_size); },
                       absl::StatusCode::kFailedPrecondition);
    };
    EXPECT_EQ(error_of(0, 512), "rank 0 of 512 may open 700 files but needs about 1664");
    EXPECT_EQ(error_of(600, 1024), "rank 600 of 1024 may open 700 files but needs about 1152");
  });
}

}  // namespace
}  // namespace lathe
