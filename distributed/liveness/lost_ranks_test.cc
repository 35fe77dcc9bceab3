#include "lathe/distributed/liveness/lost_ranks.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lathe {
namespace {

using Kind = LostRanks::Kind;

TEST(LostRanks, TravelsInsideTheError) {
  const Error error = CannotGoOnError("all_reduce", 2, EndedRankProblem(12, "training"));
  EXPECT_EQ(error.message(), "[all_reduce] rank 2 can't go on: rank 12 has ended while training");
  EXPECT_EQ(error.hint(), kLostRankHint);
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  const LostRanks* lost = FindLostRanks(error);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->ranks, std::vector<int>{12});
  EXPECT_EQ(lost->kind, Kind::kEnded);
  EXPECT_EQ(lost->phase, "training");
  EXPECT_FALSE(lost->hint_was_extended);
  const Error more = AddToHint(error, "; the model is in out");
  EXPECT_EQ(more.hint(), std::string(kLostRankHint) + "; the model is in out");
  EXPECT_EQ(more.message(), error.message());
  ASSERT_NE(FindLostRanks(more), nullptr);
  EXPECT_EQ(FindLostRanks(more)->ranks, std::vector<int>{12});
  EXPECT_TRUE(FindLostRanks(more)->hint_was_extended);
}

TEST(LostRanks, IsNotInOtherErrors) {
  EXPECT_EQ(FindLostRanks(InvalidArgument("[op] rank 2 can't go on: rank 0 has ended")), nullptr);
  EXPECT_EQ(FindLostRanks(AddToHint(InvalidArgument("wrong", "mend it"), ", soon")), nullptr);
  EXPECT_EQ(FindLostRanks(CannotGoOnError("gather", 2, {.text = "the ranks' calls don't match"})),
            nullptr);
}

TEST(LostRanks, NoRankIsToldThatItIsLostItself) {
  for (const int self : {1, 2}) {
    for (const GroupProblem& problem : {EndedRankProblem(1, ""), HangingRankProblem(1, "training"),
                                        FailedRankProblem(1, "out of memory")}) {
      EXPECT_EQ(FindLostRanks(CannotGoOnError("gather", self, problem)) == nullptr, self == 1);
    }
  }
}

TEST(LostRanks, PassesThroughTheStore) {
  GroupProblem two = HangingRankProblem(1, "training");
  two.lost->ranks.push_back(30);
  two.text += ", rank 30 does not answer\nhint: none";
  for (const GroupProblem& problem :
       {two, EndedRankProblem(0, ""), FailedRankProblem(3, "out of memory"),
        GroupProblem{.text = "the ranks' calls don't match"}, GroupProblem{}}) {
    const GroupProblem read = ParseGroupProblem(Serialize(problem));
    EXPECT_EQ(read.text, problem.text);
    ASSERT_EQ(read.lost.has_value(), problem.lost.has_value()) << problem.text;
    if (!read.lost) continue;
    EXPECT_EQ(read.lost->ranks, problem.lost->ranks);
    EXPECT_EQ(read.lost->kind, problem.lost->kind);
    EXPECT_EQ(read.lost->phase, problem.lost->phase);
  }
}

TEST(LostRanks, SaysWhatARankFailedOfItself) {
  EXPECT_TRUE(FailedRankProblem(3, "out of memory").IsFaultOf(3));
  EXPECT_FALSE(FailedRankProblem(3, "out of memory").IsFaultOf(2));
  EXPECT_FALSE(EndedRankProblem(3, "").IsFaultOf(3));
  EXPECT_FALSE(GroupProblem{}.IsFaultOf(3));
}

}  // namespace
}  // namespace lathe
