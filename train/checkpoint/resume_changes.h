// What a resume does about data and options that have changed since the checkpoint was saved.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/data/loading/loader.h"
#include "lathe/nn/module.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

// Returns the number that a setting of SettingsThatMatter has, or `otherwise` if it isn't there.
double NumberIn(const NamedSettings& settings, const std::string& name, double otherwise);

// The commits of models from a Hub, by their names.
using HubCommits = std::map<std::string, std::string>;
// Those that a checkpoint's training began with, and those that one begins with now.
struct HubCommitsThenAndNow {
  HubCommits then = {}, now = {};
};

// Returns a hint about the setting that differs. If that is the batch of all processes together,
// the hint names the batch size with which each of `num_processes` keeps it. If it may follow from
// the files of a model from a Hub that has another commit now, the hint names the earlier commit.
std::string HintAboutDifference(const std::string& setting, const NamedSettings& then,
                                int num_processes, const HubCommitsThenAndNow& commits = {});

// A place in the data that lies between two batches of a loader.
struct FittedPlace {
  lathe::StateDict state;  // for Loader::LoadStateDict
  std::string note = {};   // for people: where the place was and is; empty if it has not moved
};
// Returns the place of another loader's state, moved to the end of the batch that it lies in. If no
// batch of the epoch is left, it is the beginning of the next epoch. Throws DataLoss for a state
// that is no loader's.
FittedPlace FitPlace(const lathe::StateDict& place, const Loader& loader);

// Returns the error of the checkpoint `path` whose state does not fit this training, with
// `difference`, the text of FirstDifference.
UsageError MisfitError(const std::string& path, const Error& e,
                       const std::optional<std::string>& difference);

}  // namespace lathe
