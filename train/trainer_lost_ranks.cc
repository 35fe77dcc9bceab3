// The part of the trainer that saves what is left when other ranks are lost.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/json/json_number.h"
#include "lathe/distributed/liveness/lost_ranks.h"
#include "lathe/distributed/liveness/who_reports.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/trainer.h"

namespace lathe {
namespace {

const auto program_start = std::filesystem::file_time_type::clock::now();

constexpr char kMainHasSavedKey[] = "the model is saved without the others";

// If a rank other than the main process is lost, the main process saves. Returns true once it has
// saved, and false if it is lost or ends before.
bool WaitUntilMainHasSaved(ProcessGroup& group, const Error& error) {
  const LostRanks* lost = FindLostRanks(error);
  if (lost != nullptr && lost->Includes(0)) return false;
  try {
    while (!group.FindMessage(kMainHasSavedKey, std::chrono::milliseconds(500))) {
    }
    return true;
  } catch (const Error&) {
    return false;  // the main process has ended
  }
}

void TellThatMainHasSaved(ProcessGroup& group) try {
  group.PostMessage(kMainHasSavedKey, "");
} catch (const Error&) {
  // Without the store no rank can ask.
}

// While one is held, no other process with a FolderLock writes to the folder. Waits up to a minute,
// because the other process may hang, too. A launcher gives a rank that saves the same time.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    constexpr std::chrono::milliseconds kPause(50);
    for (auto waited = kPause * 0; waited < std::chrono::minutes(1); waited += kPause) {
      // If folders can't be locked, there is nothing to wait for.
      is_held_ = fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
      if (is_held_) return;
      has_waited_ = true;
      std::this_thread::sleep_for(kPause);
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool has_waited() const { return has_waited_; }
  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool has_waited_ = false, is_held_ = false;
};

bool IsWrittenSinceStart(const std::string& file) {
  std::error_code code;
  const auto written = std::filesystem::last_write_time(file, code);
  return !code && written >= program_start;
}

// Returns true if the folder holds a complete model of this step that was written after this
// process started. It may be from a rank of another machine that shares the folder, or from a rank
// that was lost just then.
bool HoldsModelOf(int64_t step, const OutputDir& out) {
  if (!std::filesystem::exists(out.File("config.json"))) return false;  // it is put in place last
  const std::string file = out.File("trainer_state.json");
  if (!IsWrittenSinceStart(file)) return false;
  try {
    const nlohmann::json state = ReadTrainerState(file);
    return state.contains("global_step") && WholeNumber(state["global_step"]) == step &&
           !state.value("stateful_callbacks", nlohmann::json::object()).contains(kMixedSteps);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void Trainer::SaveWithoutTheOthers(const Error& lost) {
  if (!saves()) throw lost;
  std::string words;
  std::optional<OutputDir> own;
  std::optional<FolderLock> lock;
  const bool is_main = out_ != nullptr;
  if (!is_main && (WaitUntilMainHasSaved(accelerator_.group(), lost) ||
                   !ShouldSaveForMain(lost, ReadProcessEnvironment())))
    throw lost;
  const auto failed = [&lost](const Error& e) {
    return LostRankError(AddToHint(lost, "; the model could not be saved: " + e.message()));
  };
  try {
    if (!is_main) {
      own.emplace(arguments_.output_dir, /*allow_existing=*/true);
      lock.emplace(own->path());
    }
  } catch (const Error& e) {
    throw failed(e);
  }
  // A rank that seemed to hang may have been saving, so this rank looks again if it has waited.
  if (lock && (!lock->is_held() ||
               (lock->has_waited() && !ShouldSaveForMain(lost, ReadProcessEnvironment()))))
    throw lost;
  try {
    // A rank that comes back from where it hung would go on to change the parameters, so this
    // rank needs its own copy.
    optimizer_.arena().values().impl()->storage->Unshare();
  } catch (const Error& e) {
    throw failed(e);
  }
  const std::optional<std::string> went_back = GoBackIfNeeded(lost);
  try {
    if (!is_main) {
      out_ = &*own;
      if (inputs_.load_tokenizer) inputs_.tokenizer = inputs_.load_tokenizer();
    }
    if (is_main || !HoldsModelOf(state_.global_step, *out_)) Save();
    // A snapshot has no moments of the optimizer, and the best model has those of the last step.
    words = SaveCheckpointAlone(/*complete=*/!went_back && !model_is_best_);
  } catch (const Error& e) {
    throw failed(e);
  }
  if (is_main) TellThatMainHasSaved(accelerator_.group());
  throw LostRankError(
      AddToHint(lost, "; the model after step " +
                          std::to_string(model_is_best_ ? state_.best_global_step.value_or(0)
                                                        : state_.global_step) +
                          went_back.value_or("") + " is in " + out_->path() + words));
}

// Goes back if the parameters are not finite, or are those of no complete step. It takes the last
// snapshot or the newest checkpoint, whichever has more steps, and returns "". If there is no
// snapshot, it keeps parameters that are finite, since a checkpoint stays where it is. Then it
// returns words for the message that tell what the parameters may be. Returns nullopt if there was
// no need to go back. Throws `lost` if there is nothing that is worth saving.
std::optional<std::string> Trainer::GoBackIfNeeded(const Error& lost) {
  // A step changes the parameters only after all ranks have summed up their gradients. So the
  // parameters are those of the last complete step, unless a rank was lost while each updated its
  // part.
  const bool are_finite = ParametersAreFinite();
  if (are_finite && !optimizer_.step_is_half_done()) return std::nullopt;
  // Without the main process, values that are not finite are not replaced by older ones. The main
  // process may have ended because of them, and have saved a better model.
  if (!are_finite && out_ == nullptr) throw lost;
  // Only the main process has a snapshot. It is worth nothing if it is from before the first step.
  const int64_t snapshot_step = HasGoodValues() ? good_step_ - 1 : 0;
  if (are_finite && snapshot_step == 0) {
    state_.stateful_callbacks[kMixedSteps] = {{"args", nlohmann::json::object()},
                                              {"attributes", nlohmann::json::object()}};
    return std::string(", perhaps with some parameters of the step ") +
           (optimizer_.lacks_values_of_others() ? "before" : "after") + " it,";
  }
  int64_t step = snapshot_step;
  if (const auto checkpoint = NewestOwnCheckpoint();
      checkpoint && checkpoint->manifest.step > snapshot_step) {
    ReadParameters(checkpoint->path);
    step = checkpoint->manifest.step;
  } else if (snapshot_step > 0) {
    RestoreSnapshot();
  } else {
    throw lost;
  }
  state_.global_step = step;
  state_.epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  return "";
}

void Trainer::RestoreSnapshot() {
  Tensor values = optimizer_.arena().values();
  Tensor good = values.To(Device{});
  good_values_->Restore(good.values<float>());
  values.CopyFrom(good);
}

bool Trainer::IsOwnCheckpoint(const std::string& path) const {
  return path == resumed_from_ || IsWrittenSinceStart(path + "/" + kManifestFile);
}

std::optional<FoundCheckpoint> Trainer::NewestOwnCheckpoint() const {
  const std::string& folder = out_ != nullptr ? out_->path() : arguments_.output_dir;
  std::optional<FoundCheckpoint> newest = FindNewestCheckpoint(folder).newest;
  // The folder may hold checkpoints of earlier trainings.
  if (newest && IsOwnCheckpoint(newest->path)) return newest;
  if (resumed_from_.empty()) return std::nullopt;
  try {
    return OpenCheckpoint(resumed_from_);
  } catch (const Error&) {
    return std::nullopt;  // rotation has deleted it, for example
  }
}

}  // namespace lathe
