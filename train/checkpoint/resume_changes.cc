#include "lathe/train/checkpoint/resume_changes.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"
#include "lathe/train/checkpoint/resume_settings.h"

namespace lathe {

double NumberIn(const NamedSettings& settings, const std::string& name, double otherwise) {
  const auto found =
      std::ranges::find_if(settings, [&](const auto& setting) { return setting.first == name; });
  if (found == settings.end()) return otherwise;
  const auto value = ParseJsonOrDiscard(found->second);
  return value.is_number() ? value.get<double>() : otherwise;
}

namespace {

// Returns the beginning of a hint that leads back to the files of moved models; "" if none has
// moved.
std::string EarlierCommits(const HubCommitsThenAndNow& commits) {
  std::string text;
  for (const auto& [name, commit] : commits.then) {
    const auto now = commits.now.find(name);
    if (now == commits.now.end() || now->second == commit) continue;
    // The option holds for all models.
    text += name + " has moved since: " +
            (commits.now.size() == 1 ? "set " + OptionName("model_revision") + " " + commit
                                     : "name the folder that `lathe download " + name +
                                           " --revision " + commit + "` prints in its place") +
            "; ";
  }
  return text.empty() ? text : text + "else ";
}

}  // namespace

std::string HintAboutDifference(const std::string& setting, const NamedSettings& then,
                                int num_processes, const HubCommitsThenAndNow& commits) {
  const std::string anyway = ", or set " + OptionName("resume_anyway");
  const double batch = NumberIn(then, kBatchOfAll, 0);
  if (setting != kBatchOfAll || !(batch >= 1) || batch > 1e9)
    return (MayFollowFromModelFiles(setting) ? EarlierCommits(commits) : "") +
           "go on with the data and options of the checkpoint" + anyway;
  const auto whole = static_cast<int64_t>(batch);
  if (whole % num_processes != 0) {
    return "go on with a number of processes that divides " + std::to_string(whole) + anyway;
  }
  return "set " + OptionName("per_device_train_batch_size") + " " +
         std::to_string(whole / num_processes) + anyway;
}

FittedPlace FitPlace(const lathe::StateDict& place, const Loader& loader) {
  const auto epoch = place.Get<int64_t>("data_loader", "epoch");
  const auto samples = place.Get<int64_t>("data_loader", "samples");
  constexpr int64_t kMost = int64_t{1} << 39;
  FittedPlace fitted{.state = place};
  // A state that makes no sense is refused later, and one at an epoch's beginning fits any loader.
  if (epoch < 0 || epoch > kMost || samples <= 0 || samples > kMost) return fitted;
  const int64_t size = loader.global_batch_size();
  const int64_t batches = (samples + size - 1) / size;
  const std::string before = "the place in the data was after " + std::to_string(samples) +
                             " samples of an epoch, and is ";
  if (batches >= loader.size()) {
    fitted.state.values = {{"epoch", epoch + 1}, {"batches", 0}, {"samples", 0}};
    fitted.note = before + "at the beginning of the next one, as there is no further batch now";
  } else if (samples % size != 0) {
    fitted.state.values = {{"epoch", epoch}, {"batches", batches}, {"samples", batches * size}};
    fitted.note = before + "after " + std::to_string(batches * size) + ", as batches have " +
                  std::to_string(size) + " now";
  }
  return fitted;
}

UsageError MisfitError(const std::string& path, const Error& e,
                       const std::optional<std::string>& difference) {
  std::string message = e.message();
  if (!message.starts_with(path)) message = path + ": " + WithoutTag(message);
  if (!difference) return UsageError(message, e.hint());
  return UsageError(message + "; what has changed: " + *difference,
                    "no training can go on with this change; begin a new one from the "
                    "checkpoint's model: " +
                        OptionName("model_name_or_path") + " " + path);
}

}  // namespace lathe
