#include "lathe/train/checkpoint/checkpoint_saver.h"

#include <absl/status/status.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/state_file.h"
#include "lathe/core/safetensors/safetensors.h"

namespace lathe {
namespace {

// Each checkpoint of a process has keys of its own for the ranks' messages. All ranks count alike.
std::string NextKey() {
  static std::atomic<int64_t> next{0};
  return "checkpoint/" + std::to_string(next++);
}

std::vector<std::pair<std::string, Tensor>> NamedTensors(const StateDict& state) {
  std::vector<std::pair<std::string, Tensor>> named;
  for (const StateTensor& tensor : state.tensors) named.emplace_back(tensor.name, tensor.values);
  return named;
}

int64_t BytesOf(const StateDict& state) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : state.tensors) bytes += tensor.values.bytes();
  return bytes;
}

// A callback that adds files may throw anything.
Error AsError(const std::exception& e) {
  const auto* own = dynamic_cast<const Error*>(&e);
  return own != nullptr ? *own : Error(absl::StatusCode::kInternal, e.what());
}

}  // namespace

std::string OptimizerFileName(int rank, int num_parts) {
  if (num_parts == 1) return "optimizer.h5";
  char name[64];
  std::snprintf(name, sizeof name, "optimizer-%05d-of-%05d.h5", rank + 1, num_parts);
  return name;
}

CheckpointSaver::CheckpointSaver(std::string parent, ProcessGroup* group, CopyMemory memory)
    : parent_(std::move(parent)), group_(group), memory_(std::move(memory)) {}

CheckpointSaver::~CheckpointSaver() { cancelled_ = true; }

void CheckpointSaver::Start(CheckpointJob job, bool beside) {
  Check(!active(), "checkpoint", "the last one is still being written");
  if (group_ == nullptr || group_->size() == 1) job.every_rank_writes = false;
  const bool parts = job.every_rank_writes;
  const std::string key = parts ? NextKey() : "";
  if (!is_main() && !parts) return;
  present_ = {parent_ + "/" + job.name, job.manifest.step, {}};
  std::shared_ptr<CheckpointDraft> draft;
  try {
    if (is_main()) draft = std::make_shared<CheckpointDraft>(parent_, job.name);
    if (draft != nullptr) job.write_files(draft->path());
    if (draft != nullptr && parts) group_->PostMessage(key, draft->path());
  } catch (const std::exception& e) {
    present_.error = draft == nullptr ? AsError(e) : draft->Shown(AsError(e));
    result_ = present_;
    if (parts) group_->PostMessage(key, "");
    return;
  }
  if (!beside || !TryCopy(job)) {
    try {
      Write(job, job.model, job.optimizer, key, draft.get());
    } catch (const std::exception& e) {
      present_.error = AsError(e);
    }
    result_ = present_;
    return;
  }
  job.model = job.optimizer = {};  // the views of what changes from now on
  task_.Start([this, job = std::move(job), key, draft] {
    Write(job, model_copy_, optimizer_copy_, key, draft.get());
  });
}

bool CheckpointSaver::TryCopy(const CheckpointJob& job) {
  constexpr int64_t kReserve = int64_t{64} << 20;
  const StateDict none;
  const StateDict& model = is_main() ? job.model : none;
  const StateDict& optimizer = job.with_optimizer ? job.optimizer : none;
  try {
    const int64_t held = BytesOf(model_copy_) + BytesOf(optimizer_copy_);
    const int64_t more = BytesOf(model) + BytesOf(optimizer) - held;
    const int copies = job.every_rank_writes ? memory_.num_processes : 1;
    if (more <= (memory_.available() - kReserve) / copies) {
      CopyState(model, model_copy_);
      CopyState(optimizer, optimizer_copy_);
      return true;
    }
  } catch (const std::bad_alloc&) {
    // as below
  } catch (const Error& e) {
    if (e.code() != absl::StatusCode::kResourceExhausted) throw;
  }
  model_copy_ = optimizer_copy_ = {};
  return false;
}

std::optional<SavedCheckpoint> CheckpointSaver::Poll() {
  if (auto result = task_.TakeResult()) {
    present_.error = std::move(result->error);
    return present_;
  }
  return std::exchange(result_, std::nullopt);
}

void CheckpointSaver::Write(const CheckpointJob& job, const StateDict& model,
                            const StateDict& optimizer, const std::string& key,
                            CheckpointDraft* draft) {
  if (draft == nullptr) return WritePart(job, optimizer, key);
  const int num_parts = job.every_rank_writes ? group_->size() : 1;
  try {
    WriteSafetensors(draft->path() + "/model.safetensors", NamedTensors(model));
    if (job.with_optimizer)
      WriteStateFile(draft->path() + "/" + OptimizerFileName(0, num_parts), optimizer);
  } catch (const Error& e) {
    throw draft->Shown(e);
  }
  for (int rank = 1; rank < num_parts; ++rank) {
    const std::string problem = AwaitMessage(key + "/" + std::to_string(rank));
    if (!problem.empty()) throw Error(absl::StatusCode::kInternal, problem);
  }
  draft->Commit(job.manifest);
  if (job.on_saved) job.on_saved();
}

void CheckpointSaver::WritePart(const CheckpointJob& job, const StateDict& optimizer,
                                const std::string& key) {
  const std::string dir = AwaitMessage(key);
  if (dir.empty()) return;  // the main process has failed
  const std::string name = OptimizerFileName(group_->rank(), group_->size());
  std::string problem;
  try {
    if (job.with_optimizer) {
      WriteStateFile(dir + "/" + name, optimizer);
      SyncFile(dir + "/" + name);
    }
  } catch (const Error& e) {
    problem = "rank " + std::to_string(group_->rank()) + ": " +
              WithFolder(e, dir, present_.path).message();
  }
  group_->PostMessage(key + "/" + std::to_string(group_->rank()), problem);
}

// Waits for a message of another rank. The main thread notices if a rank is lost, and cancels.
std::string CheckpointSaver::AwaitMessage(const std::string& key) {
  while (!cancelled_) {
    if (auto found = group_->FindMessage(key, std::chrono::milliseconds(0))) return *found;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw Error(absl::StatusCode::kCancelled, present_.path + ": another process was lost");
}

StateDict ReadOptimizerState(const FoundCheckpoint& checkpoint) {
  StateDict state;
  bool found = false;
  for (const auto& [name, digest] : checkpoint.manifest.files) {
    if (!name.starts_with("optimizer") || !name.ends_with(".h5")) continue;
    StateDict part = ReadStateFile(checkpoint.path + "/" + name);
    if (!std::exchange(found, true)) state.values = std::move(part.values);
    for (StateTensor& tensor : part.tensors) state.tensors.push_back(std::move(tensor));
  }
  if (!found) throw NotFound(checkpoint.path + ": has no file of the optimizer's state");
  return state;
}

}  // namespace lathe
