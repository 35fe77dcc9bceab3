#include "lathe/distributed/liveness/who_reports.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace lathe {
namespace {

using Ranks = std::vector<int>;

LostRanks Ended(Ranks ranks) { return {.ranks = std::move(ranks)}; }
LostRanks Hang(Ranks ranks) { return {.ranks = std::move(ranks), .kind = LostRanks::Kind::kHangs}; }

TEST(WhoReports, OneRankOfEachMachineReportsLostRanks) {
  const Ranks second = {2, 3}, cyclic = {0, 2}, all = {0, 1, 2, 3};  // of rank 2's machine
  ProcessEnvironment environment;
  environment.rank = 2;
  environment.master_port = 1234;
  // `code`: the exit code with which the other ranks have ended, as their launcher knows; nullopt
  // if none has ended.
  const auto reports = [&](const LostRanks& lost, const Ranks& local_ranks,
                           std::optional<int> code = 1) {
    EndedRanksRecord ended;
    for (const int rank : {0, 1, 3}) {
      if (code) ended.Add(rank, *code);
    }
    setenv(kEndedRanksVariable, ended.Variable(1234).c_str(), 1);
    SetLocalRanks(local_ranks);
    return ShouldReportLostRanks(lost, environment);
  };
  EXPECT_TRUE(reports(Ended({0}), second));
  EXPECT_FALSE(reports(Ended({3}), second));  // rank 3 has reported why
  EXPECT_TRUE(reports(Ended({3}), second, 128 + SIGKILL));
  EXPECT_TRUE(reports(Ended({3}), second, std::nullopt));
  EXPECT_TRUE(reports(Hang({3}), second));
  EXPECT_TRUE(reports({.ranks = {3}, .hint_was_extended = true}, second));
  EXPECT_FALSE(reports(Ended({0}), cyclic));
  EXPECT_FALSE(reports(Ended({1}), cyclic));  // rank 0 reports it
  EXPECT_FALSE(reports(Ended({1}), cyclic, std::nullopt));
  EXPECT_TRUE(reports(Ended({0, 1}), cyclic));
  EXPECT_FALSE(reports(Ended({0}), all));
  EXPECT_FALSE(reports(Hang({0}), all));               // rank 1 reports it
  EXPECT_TRUE(reports(Hang({0}), all, std::nullopt));  // rank 1 hangs, too
  EXPECT_TRUE(reports(Hang({0, 1}), all));
  unsetenv(kEndedRanksVariable);
  EXPECT_FALSE(ShouldReportLostRanks(Hang({0}),
                                     environment));  // nobody knows if rank 1 hangs
  EXPECT_TRUE(ShouldReportLostRanks(Hang({0, 1}), environment));
}

// Rank 0 is lost, and rank 2 asks. Without a record of the launcher nobody knows of other ranks.
TEST(WhoReports, TheFirstRankLeftSavesForTheMainProcess) {
  ProcessEnvironment environment;
  environment.rank = 2;
  environment.master_port = 1234;
  SetLocalRanks({0, 1, 2});
  const auto saves = [&](const LostRanks& lost, const std::vector<EndedRank>& record) {
    EndedRanksRecord ended;
    for (const EndedRank& one : record) ended.Add(one.rank, one.exit_code);
    setenv(kEndedRanksVariable, ended.Variable(1234).c_str(), 1);
    const Error error = CannotGoOnError("all_reduce", 2, {.text = "", .lost = lost});
    return ShouldSaveForMain(error, environment);
  };
  EXPECT_FALSE(saves(Ended({0}), {{0, 9}}));  // rank 1 saves
  EXPECT_TRUE(saves(Ended({0, 1}), {{0, 9}}));
  EXPECT_TRUE(saves(Ended({0}), {{0, 9}, {1, 128 + SIGKILL}}));
  EXPECT_FALSE(saves(Ended({0}), {{0, 9}, {1, kLostRankExitCode}}));  // rank 1 has saved
  EXPECT_TRUE(saves(Hang({0}), {}));                                  // rank 1 hangs, too
  unsetenv(kEndedRanksVariable);
  EXPECT_FALSE(ShouldSaveForMain(CannotGoOnError("all_reduce", 2, {.text = "", .lost = Hang({0})}),
                                 environment));
}

// Rank 1 is lost, and the main process saves and ends. Its launcher needs a moment to record that.
TEST(WhoReports, TheMainProcessMayHaveSavedAMomentAgo) {
  ProcessEnvironment environment;
  environment.rank = 2;
  environment.master_port = 1234;
  SetLocalRanks({0, 1, 2});
  const Error error = CannotGoOnError("all_reduce", 2, {.text = "", .lost = Ended({1})});
  const auto saves = [&](std::optional<int> code) {
    EndedRanksRecord ended;
    ended.Add(1, 128 + SIGKILL);
    setenv(kEndedRanksVariable, ended.Variable(1234).c_str(), 1);
    std::thread launcher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      if (code) ended.Add(0, *code);
    });
    const bool result = ShouldSaveForMain(error, environment);
    launcher.join();
    return result;
  };
  EXPECT_FALSE(saves(kLostRankExitCode));
  EXPECT_TRUE(saves(128 + SIGKILL));  // it was killed before it had saved
  EXPECT_TRUE(saves(std::nullopt));   // it hangs
  unsetenv(kEndedRanksVariable);
}

// Rank 3 of the second machine asks. Its ranks have not joined the others.
TEST(WhoReports, TheLocalMainProcessReportsWhatAllRanksHave) {
  ProcessEnvironment environment;
  environment.rank = 3;
  environment.local_rank = 1;
  environment.local_world_size = 2;
  environment.master_port = 1234;
  const auto is_reported = [&](std::optional<EndedRank> recorded) {
    EndedRanksRecord ended;
    if (recorded) ended.Add(recorded->rank, recorded->exit_code);
    setenv(kEndedRanksVariable, ended.Variable(1234).c_str(), 1);
    return IsReportedByLocalMain(environment, true);
  };
  EXPECT_TRUE(is_reported(EndedRank{2, 1}));
  EXPECT_FALSE(is_reported(EndedRank{2, 128 + SIGKILL}));  // it had no time to report
  EXPECT_FALSE(is_reported(EndedRank{0, 1}));              // it is on the other machine
  EXPECT_FALSE(is_reported(std::nullopt));
  unsetenv(kEndedRanksVariable);
  EXPECT_TRUE(IsReportedByLocalMain(environment, true));
  EXPECT_FALSE(IsReportedByLocalMain(environment, false));
  environment.local_rank = 0;
  EXPECT_FALSE(IsReportedByLocalMain(environment, true));
}

}  // namespace
}  // namespace lathe
