// CheckpointSaver: writes the checkpoints of a training, on a thread beside it. A step only pays
// for a copy of what is written. Where memory is too short for a copy, the step waits while the
// tensors themselves are written. Those on the host need no copy then; those on a device are copied
// one after another.
//
//   CheckpointSaver saver("out", group);
//   saver.Start({.name = "checkpoint-500", ...});  // on all ranks
//   ... more steps ...
//   if (auto saved = saver.Poll()) ...             // it is on the disk, or has failed
//
// The main process (rank 0) writes the model and all small files. If ranks share the optimizer's
// work, each writes its part of the state into the same folder, which all of them must see. The
// main process then waits for the parts and puts the checkpoint in its place.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lathe/core/checkpoint/background_task.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/distributed/groups/process_group.h"
#include "lathe/train/checkpoint/available_memory.h"

namespace lathe {

struct CheckpointJob {
  std::string name;  // the folder's name
  CheckpointManifest manifest = {};
  StateDict model = {};      // the parameters by name; only the main process's counts
  StateDict optimizer = {};  // this rank's part
  bool with_optimizer = true;
  bool every_rank_writes = false;  // otherwise the main process has the optimizer's whole state
  // Writes the small files, on the main process and before Start returns. If it throws, the
  // checkpoint has failed.
  std::function<void(const std::string& dir)> write_files;
  // Called on the thread of the main process once the checkpoint is in its place.
  std::function<void()> on_saved;
};

// How the writing of a checkpoint has ended, on the main process.
struct SavedCheckpoint {
  std::string path;
  int64_t step = 0;
  std::optional<Error> error;
};

// The memory that the copies of a checkpoint may take.
struct CopyMemory {
  int num_processes = 1;  // of the job on this machine, which may all copy at once
  std::function<int64_t()> available = [] { return AvailableMemory(); };  // bytes, for all of them
};

class CheckpointSaver {
 public:
  // `group` must outlive the saver. Null: this process writes alone, whatever its rank.
  CheckpointSaver(std::string parent, ProcessGroup* group, CopyMemory memory = {});
  // Waits for this rank's part, but not for other ranks.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Begins to write a checkpoint. All ranks call it together, after Poll has returned the result of
  // the one before. `beside` false: writes at once, without a copy, and returns when this rank is
  // done. That also happens where memory is too short for a copy. Errors are for Poll.
  void Start(CheckpointJob job, bool beside = true);
  // Returns true while this rank writes and until Poll has returned the result.
  bool active() const { return task_.active() || result_.has_value(); }
  // Returns the result once, if there is one.
  std::optional<SavedCheckpoint> Poll();
  const std::string& parent() const { return parent_; }

 private:
  bool is_main() const { return group_ == nullptr || group_->rank() == 0; }
  // Copies what this rank writes. Returns false, and keeps no copy, if memory is short: for this
  // copy, or for those of the other processes of this machine.
  bool TryCopy(const CheckpointJob& job);
  void Write(const CheckpointJob& job, const StateDict& model, const StateDict& optimizer,
             const std::string& key, CheckpointDraft* draft);
  void WritePart(const CheckpointJob& job, const StateDict& optimizer, const std::string& key);
  std::string AwaitMessage(const std::string& key);

  std::string parent_;
  ProcessGroup* group_;
  CopyMemory memory_;
  std::atomic<bool> cancelled_ = false;
  StateDict model_copy_, optimizer_copy_;
  SavedCheckpoint present_;                // what is being written
  std::optional<SavedCheckpoint> result_;  // if it has ended without the thread
  BackgroundTask task_;                    // the last member, so that its thread ends first
};

// Returns the name of a rank's file of the optimizer's state: "optimizer.h5", or
// "optimizer-00002-of-00004.h5".
std::string OptimizerFileName(int rank, int num_parts);

// Reads the optimizer's state from the folder of a checkpoint that is whole: all parts together.
StateDict ReadOptimizerState(const FoundCheckpoint& checkpoint);

}  // namespace lathe
