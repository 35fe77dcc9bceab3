#include "lathe/distributed/loop_phase.h"

#include <algorithm>
#include <utility>

#include "lathe/core/autograd.h"

namespace lathe {
namespace {

constexpr char kTraining[] = "training", kEvaluating[] = "evaluating";
// A loop without a backward pass so far. It may still switch gradients off and evaluate.
constexpr char kLooping[] = "in a loop over a prepared loader";
constexpr char kBetween[] = "between loops over prepared loaders";

}  // namespace

std::shared_ptr<LoopPhase> LoopPhase::Watch(std::vector<std::weak_ptr<ProcessGroup>> groups,
                                            LoaderPasses& passes) {
  std::shared_ptr<LoopPhase> phase(new LoopPhase(std::move(groups)));
  passes.changed = [phase, &passes] { phase->FollowPasses(passes); };
  return phase;
}

void LoopPhase::FollowPasses(const LoaderPasses& passes) {
  const auto& entries = passes.entries;
  std::erase_if(loops_, [&](const auto& loop) {
    return std::find(entries.begin(), entries.end(), loop.first) == entries.end();
  });
  // A pass that has just begun is the last entry.
  if (loops_.size() < entries.size())
    loops_.emplace_back(entries.back(), GradEnabled() ? kLooping : kEvaluating);
  SendIfNew(loops_.empty() ? kBetween : loops_.back().second);
}

void LoopPhase::OnBackward() {
  if (!loops_.empty()) loops_.back().second = kTraining;
  SendIfNew(kTraining);
}

void LoopPhase::Set(const std::string& phase) {
  set_by_program_ = true;
  Send(phase);
}

void LoopPhase::SendIfNew(const char* phase) {
  if (!set_by_program_ && std::exchange(sent_, phase) != phase) Send(phase);
}

void LoopPhase::Send(const std::string& phase) {
  for (const auto& group : groups_) {
    if (const auto present = group.lock()) present->SetPhase(phase);
  }
}

}  // namespace lathe
