#include "lathe/distributed/liveness/rank_loss.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lathe {
namespace {

using Kind = RankLoss::Kind;

TEST(RankLoss, TravelsInsideTheError) {
  const Error error = CannotGoOn("all_reduce", 2, RankEnded(12, "training"));
  EXPECT_EQ(error.message(), "[all_reduce] rank 2 can't go on: rank 12 has ended while training");
  EXPECT_EQ(error.hint(), kLostRankHint);
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  const RankLoss* lost = FindRankLoss(error);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->ranks, std::vector<int>{12});
  EXPECT_EQ(lost->kind, Kind::kEnded);
  EXPECT_EQ(lost->phase, "training");
  EXPECT_FALSE(lost->says_more);
  const Error more = AddToHint(error, "; the model is in out");
  EXPECT_EQ(more.hint(), std::string(kLostRankHint) + "; the model is in out");
  EXPECT_EQ(more.message(), error.message());
  ASSERT_NE(FindRankLoss(more), nullptr);
  EXPECT_EQ(FindRankLoss(more)->ranks, std::vector<int>{12});
  EXPECT_TRUE(FindRankLoss(more)->says_more);
}

TEST(RankLoss, IsNotInOtherErrors) {
  EXPECT_EQ(FindRankLoss(InvalidArgument("[op] rank 2 can't go on: rank 0 has ended")), nullptr);
  EXPECT_EQ(FindRankLoss(AddToHint(InvalidArgument("wrong", "mend it"), ", soon")), nullptr);
  EXPECT_EQ(FindRankLoss(CannotGoOn("gather", 2, {.text = "the ranks' calls don't match"})),
            nullptr);
}

TEST(RankLoss, NoRankIsToldThatItIsLostItself) {
  for (const int self : {1, 2}) {
    for (const GroupProblem& problem :
         {RankEnded(1, ""), RankHangs(1, "training"), RankFailed(1, "out of memory")}) {
      EXPECT_EQ(FindRankLoss(CannotGoOn("gather", self, problem)) == nullptr, self == 1);
    }
  }
}

TEST(RankLoss, PassesThroughTheStore) {
  GroupProblem two = RankHangs(1, "training");
  two.lost->ranks.push_back(30);
  two.text += ", rank 30 does not answer\nhint: none";
  for (const GroupProblem& problem :
       {two, RankEnded(0, ""), RankFailed(3, "out of memory"),
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

TEST(RankLoss, SaysWhatARankFailedOfItself) {
  EXPECT_TRUE(RankFailed(3, "out of memory").IsFaultOf(3));
  EXPECT_FALSE(RankFailed(3, "out of memory").IsFaultOf(2));
  EXPECT_FALSE(RankEnded(3, "").IsFaultOf(3));
  EXPECT_FALSE(GroupProblem{}.IsFaultOf(3));
}

}  // namespace
}  // namespace lathe
