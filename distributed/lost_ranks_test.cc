#include "lathe/distributed/lost_ranks.h"

#include <gtest/gtest.h>

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
  // The second of two machines with 2 ranks each, and the third of one machine's 4.
  const auto rank_2 = [](int local_rank, int local_world_size) {
    ProcessEnvironment environment;
    environment.rank = 2;
    environment.world_size = 4;
    environment.local_rank = local_rank;
    environment.local_world_size = local_world_size;
    return environment;
  };
  const ProcessEnvironment second = rank_2(0, 2), third = rank_2(2, 4);
  const auto tells = [](const Error& error, const ProcessEnvironment& environment) {
    return TellsOfLostRanks(error, environment);
  };
  EXPECT_TRUE(tells(Lost("rank 0 has ended"), second));
  EXPECT_FALSE(tells(Lost("rank 3 has ended"), second));  // that machine's launcher does
  EXPECT_TRUE(tells(Lost("rank 3 does not answer"), second));
  EXPECT_TRUE(tells(Lost("rank 3 has ended", "; the model is in out"), second));
  EXPECT_FALSE(tells(Lost("rank 0 has ended"), third));
  EXPECT_FALSE(tells(Lost("rank 0 does not answer"), third));  // rank 1 tells
  EXPECT_TRUE(tells(Lost("rank 0 does not answer, rank 1 does not answer"), third));
}

}  // namespace
}  // namespace lathe
