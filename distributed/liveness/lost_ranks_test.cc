#include "lathe/distributed/liveness/lost_ranks.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <optional>

#include "lathe/distributed/liveness/ended_ranks.h"

namespace lathe {
namespace {

Error Lost(const std::string& problem, const std::string& more = "") {
  return Error(absl::StatusCode::kUnavailable, "[all_reduce] rank 2 can't go on: " + problem,
               kLostRankHint + more);
}

TEST(LostRanks, AreThoseThatTheErrorBlames) {
  using Ranks = std::vector<int>;
  const auto ranks = [](const std::string& problem) { return FindLostRanks(Lost(problem)).ranks; };
  EXPECT_EQ(ranks("rank 0 has ended"), Ranks{0});
  EXPECT_EQ(ranks("rank 12 has ended while training"), Ranks{12});
  EXPECT_EQ(ranks("rank 0 does not answer; this rank was training"), Ranks{0});
  EXPECT_EQ(ranks("rank 1 does not answer while training, rank 3 does not answer"), (Ranks{1, 3}));
  EXPECT_EQ(ranks("rank 1: out of memory"), Ranks{1});
  EXPECT_EQ(ranks("rank 2: out of memory"), Ranks{});
  EXPECT_EQ(ranks("the ranks' calls don't match: rank 0 is in barrier, rank 1 is in gather"),
            Ranks{});
  EXPECT_EQ(ranks("the connection to another rank failed: rank 7: broken"), Ranks{});
  EXPECT_TRUE(FindLostRanks(Lost("rank 1 does not answer")).hang);
  EXPECT_FALSE(FindLostRanks(Lost("rank 1 has ended")).hang);
}

TEST(LostRanks, OtherErrorsAreAboutSomethingElse) {
  for (const char* message :
       {"rank 1 has ended", "[all_reduce] rank 1 has ended", "[all_reduce] rank x can't go on: "}) {
    EXPECT_TRUE(FindLostRanks(Error(absl::StatusCode::kUnavailable, message)).ranks.empty());
  }
  EXPECT_TRUE(
      FindLostRanks(InvalidArgument("[op] rank 2 can't go on: rank 0 has ended")).ranks.empty());
}

TEST(LostRanks, OneRankOfEachMachineTells) {
  using Ranks = std::vector<int>;
  const Ranks second = {2, 3}, cyclic = {0, 2}, all = {0, 1, 2, 3};  // of rank 2's machine
  ProcessEnvironment environment;
  environment.rank = 2;
  environment.master_port = 1234;
  // `code`: the exit code with which the other ranks have ended, as their launcher knows; nullopt
  // if none has ended.
  const auto tells = [&](const Error& error, const Ranks& local_ranks,
                         std::optional<int> code = 1) {
    EndedRanks ended;
    for (const int rank : {0, 1, 3}) {
      if (code) ended.Add(rank, *code);
    }
    setenv(kEndedRanks, ended.Variable(1234).c_str(), 1);
    NoteLocalRanks(local_ranks);
    return TellsOfLostRanks(error, environment);
  };
  EXPECT_TRUE(tells(Lost("rank 0 has ended"), second));
  EXPECT_FALSE(tells(Lost("rank 3 has ended"), second));  // rank 3 has reported why
  EXPECT_TRUE(tells(Lost("rank 3 has ended"), second, 128 + SIGKILL));
  EXPECT_TRUE(tells(Lost("rank 3 has ended"), second, std::nullopt));
  EXPECT_TRUE(tells(Lost("rank 3 does not answer"), second));
  EXPECT_TRUE(tells(Lost("rank 3 has ended", "; the model is in out"), second));
  EXPECT_FALSE(tells(Lost("rank 0 has ended"), cyclic));
  EXPECT_FALSE(tells(Lost("rank 1 has ended"), cyclic));  // rank 0 reports it
  EXPECT_FALSE(tells(Lost("rank 1 has ended"), cyclic, std::nullopt));
  EXPECT_TRUE(tells(Lost("rank 0 has ended, rank 1 has ended"), cyclic));
  EXPECT_FALSE(tells(Lost("rank 0 has ended"), all));
  EXPECT_FALSE(tells(Lost("rank 0 does not answer"), all));               // rank 1 reports it
  EXPECT_TRUE(tells(Lost("rank 0 does not answer"), all, std::nullopt));  // rank 1 hangs, too
  EXPECT_TRUE(tells(Lost("rank 0 does not answer, rank 1 does not answer"), all));
  unsetenv(kEndedRanks);
  EXPECT_FALSE(TellsOfLostRanks(Lost("rank 0 does not answer"),
                                environment));  // nobody knows if rank 1 hangs
  EXPECT_TRUE(TellsOfLostRanks(Lost("rank 0 does not answer, rank 1 has ended"), environment));
}

}  // namespace
}  // namespace lathe
