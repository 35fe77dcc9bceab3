#include "lathe/distributed/liveness/lost_ranks.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "lathe/distributed/rendezvous/rank_names.h"

namespace lathe {
namespace {

GroupProblem ProblemOfRank(int rank, LostRanks::Kind kind, const std::string& what,
                           const std::string& phase) {
  return {.text = RankName(rank) + what + (phase.empty() ? "" : " while " + phase),
          .lost = LostRanks{.ranks = {rank}, .kind = kind, .phase = phase}};
}

}  // namespace

bool LostRanks::Includes(int rank) const { return std::ranges::count(ranks, rank) > 0; }

bool GroupProblem::IsFaultOf(int rank) const {
  return lost && lost->kind == LostRanks::Kind::kFailed && lost->Includes(rank);
}

GroupProblem EndedRankProblem(int rank, const std::string& phase) {
  return ProblemOfRank(rank, LostRanks::Kind::kEnded, " has ended", phase);
}

GroupProblem HangingRankProblem(int rank, const std::string& phase) {
  return ProblemOfRank(rank, LostRanks::Kind::kHangs, " does not answer", phase);
}

GroupProblem FailedRankProblem(int rank, const std::string& reason) {
  return ProblemOfRank(rank, LostRanks::Kind::kFailed, ": " + reason, "");
}

// The text has three parts. The first line is "kind rank rank ...", or empty if no rank is lost.
// The second line is the phase. The message follows, which may have any number of lines.
std::string Serialize(const GroupProblem& problem) {
  if (!problem.lost) return "\n\n" + problem.text;
  const LostRanks& lost = *problem.lost;
  return absl::StrCat(static_cast<int>(lost.kind), " ", absl::StrJoin(lost.ranks, " "), "\n",
                      absl::StrReplaceAll(lost.phase, {{"\n", " "}}), "\n", problem.text);
}

GroupProblem ParseGroupProblem(const std::string& value) {
  std::istringstream in(value);
  std::string kind_and_ranks, phase;
  std::getline(in, kind_and_ranks);
  std::getline(in, phase);
  GroupProblem problem;
  problem.text.assign(std::istreambuf_iterator<char>(in), {});
  std::istringstream numbers(kind_and_ranks);
  if (int kind = 0; numbers >> kind) {
    problem.lost = LostRanks{.kind = static_cast<LostRanks::Kind>(kind), .phase = phase};
    for (int rank = 0; numbers >> rank;) problem.lost->ranks.push_back(rank);
  }
  return problem;
}

Error CannotGoOnError(const char* what, int self, const GroupProblem& problem, const char* hint) {
  Error error(absl::StatusCode::kUnavailable,
              std::string("[") + what + "] " + RankName(self) + " can't go on: " + problem.text,
              hint);
  if (!problem.lost || problem.lost->Includes(self)) return error;
  return error.WithDetail(*problem.lost);
}

Error AddToHint(const Error& error, const std::string& more) {
  const Error result = error.WithHint(error.hint() + more);
  const LostRanks* lost = FindLostRanks(error);
  if (lost == nullptr) return result;
  LostRanks extended = *lost;
  extended.hint_was_extended = true;
  return result.WithDetail(std::move(extended));
}

}  // namespace lathe
