// What must be the same when a training goes on from a checkpoint. Then it gives the numbers of a
// training that was never interrupted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/checkpoint/manifest.h"
#include "lathe/data/datasets/dataset.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/nn/module.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Returns the data, the tokenizer, the model and those arguments that decide on the numbers, in
// this order, as names and values. `tokenizer` may be null. The batch that counts is that of all
// processes together, so `num_processes` may change if the size of each one's batch does.
// `evaluation` may be null. Its data and options count where evaluations decide on rates, on the
// end of the training, or on the model that is saved. There, thresholds and a temperature of the
// model's configuration count, too. `max_seq_length` is the option that the texts
// were cut with, 0 for auto; empty if that isn't known.
NamedSettings SettingsThatMatter(const TrainingArguments& arguments, const TokenizedDataset& train,
                                 const TokenizedDataset* evaluation, const Module& model,
                                 const Tokenizer* tokenizer, int num_processes, int64_t max_steps,
                                 std::optional<int64_t> max_seq_length = {});

// Returns what decides which evaluation is the best: the metric, its direction, the data, and the
// thresholds and the temperature of the model's configuration.
NamedSettings SettingsOfBest(const TrainingArguments& arguments, const TokenizedDataset& evaluation,
                             const Module& model);

// The name of the setting that is the batch of all processes together.
inline constexpr char kBatchOfAll[] = "per_device_train_batch_size times processes";

// Returns true if the output folder may hold files already. It is then to be overwritten, or the
// training goes on from one of its checkpoints. Or this job was started again and has filled it
// before. Throws UsageError if resume_from_checkpoint is neither "true" nor a checkpoint's folder.
bool MayUseFilledOutputDir(const TrainingArguments& arguments);

struct SettingDifference {
  std::string setting;  // its name in NamedSettings
  std::string text;     // for people: "learning_rate was 5e-05 and is 3e-05"
};
// Returns the differences. Settings of the
// tokenizer, of evaluations and max_seq_length are compared only if both sides have them. A change
// of max_seq_length that cuts no text in another place is no difference. One that does stands for
// the digests that follow from it, and the first difference of other data for all of theirs.
// The number of warmup steps stands for warmup_steps and warmup_ratio, which give it. Values of
// lr_scheduler_kwargs are compared as JSON.
std::vector<SettingDifference> Differences(const NamedSettings& then, const NamedSettings& now);
// Returns the text of the first of them; nullopt if there is none.
std::optional<std::string> FirstDifference(const NamedSettings& then, const NamedSettings& now);

// Returns true for a setting that may differ because the files of the model that the training began
// with differ: a part of its configuration or of its tokenizer, or token ids.
bool MayFollowFromModelFiles(const std::string& setting);

// What may change although it changes bits.
struct ComputeSetup {
  int num_processes = 1;
  int num_threads = 0;  // of the main process; 0: not known
  std::string device;   // "cpu" or "cuda"; empty: not known
};
inline constexpr char kThreadsKey[] = "threads", kDeviceKey[] = "device";  // in `about`
// Reads them from a manifest. Versions before this one have written no number of threads.
ComputeSetup ComputeSetupIn(const CheckpointManifest& manifest);
// Returns notes for people on what has changed: "the checkpoint is that of 2 threads; ...".
std::vector<std::string> ChangedComputeSetup(const ComputeSetup& then, const ComputeSetup& now);

}  // namespace lathe
