#include "lathe/train/checkpoint/resume_settings.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/json_number.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/distributed/job/dataset_digests.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kTokenizer[] = "the tokenizer's ";
constexpr char kMaxLength[] = "max_seq_length";
constexpr std::string_view kLengths = " lengths";  // the end of the name of a digest
// The names of settings of evaluations are these, or begin with one of those.
constexpr std::string_view kEvaluationNames[] = {"eval_delay", "the metric of the best model",
                                                 "greater_is_better"};
constexpr std::string_view kEvaluationPrefixes[] = {"the validation ", "the digest of validation "};

std::string Text(double value) { return nlohmann::json(value).dump(); }
std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(bool value) { return value ? "true" : "false"; }

// The rate of these schedules at a step doesn't depend on the number of steps to come.
bool DependsOnMaxSteps(const TrainingArguments& a) {
  const std::string& name = a.lr_scheduler_type;
  const bool relative_warmup = a.warmup_steps == 0 && a.warmup_ratio > 0;
  return relative_warmup || (name != "constant" && name != "constant_with_warmup" &&
                             name != "inverse_sqrt" && name != "reduce_lr_on_plateau");
}

// Returns true if the training would give another model with other evaluations.
bool EvaluationsDecide(const TrainingArguments& a) {
  return a.lr_scheduler_type == "reduce_lr_on_plateau" || a.save_strategy == "best" ||
         a.load_best_model_at_end || a.early_stopping_patience.has_value();
}

// Checkpoints of older versions lack these, and evaluations may begin or cease to decide.
bool IsOfEvaluation(const std::string& name) {
  return std::ranges::count(kEvaluationNames, name) > 0 ||
         std::ranges::any_of(kEvaluationPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void AddEvaluation(const TrainingArguments& a, const TokenizedDataset& evaluation,
                   NamedSettings& settings) {
  for (const auto& [name, value] : DatasetDigests(evaluation, "validation"))
    settings.emplace_back("the " + name, value);
  const std::string values[] = {Text(a.eval_delay), BestModelMetric(a), Text(GreaterIsBetter(a))};
  for (size_t i = 0; i < std::size(values); ++i)
    settings.emplace_back(kEvaluationNames[i], values[i]);
}

std::string Shortened(const std::string& value) {
  constexpr size_t kMost = 60;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "...";
}

// Returns which data a setting is about, such as "training"; "" for other settings.
std::string DataOf(std::string_view name) {
  constexpr std::string_view kDigest = "the digest of ", kThe = "the ", kSize = " dataset of size";
  if (name.starts_with(kDigest)) {
    name.remove_prefix(kDigest.size());
    return std::string(name.substr(0, name.find(' ')));
  }
  if (!name.starts_with(kThe) || !name.ends_with(kSize)) return "";
  return std::string(name.substr(kThe.size(), name.size() - kThe.size() - kSize.size()));
}

// Returns true for the digests that change wherever texts are cut in another place.
bool FollowsFromLengths(std::string_view name) {
  return !DataOf(name).empty() && (name.ends_with(kLengths) || name.ends_with(" token ids") ||
                                   name.ends_with(" token type ids"));
}

// Throws unless resume_from_checkpoint names a checkpoint's folder.
void CheckWish(const TrainingArguments& a) try {
  CheckIsCheckpoint(a.resume_from_checkpoint);
} catch (const Error& e) {
  const std::string& wish = a.resume_from_checkpoint;
  std::error_code code;
  if (fs::is_symlink(wish, code)) throw UsageError(e.message(), e.hint());
  const fs::path near = fs::path(a.output_dir) / fs::path(wish).filename();
  const bool is_near = fs::exists(near / kManifestFile, code) && !fs::equivalent(near, wish, code);
  const std::string takes = OptionName("resume_from_checkpoint") + " takes true, for the newest " +
                            "checkpoint in " + a.output_dir + ", or a checkpoint's folder";
  throw UsageError(e.message(), is_near ? "did you mean " + near.string() + "? " + takes : takes);
}

// The name of a setting as a sentence has it: "training dataset of size" does not read well.
std::string Readable(const std::string& name) {
  constexpr std::string_view kSize = " dataset of size";
  if (!name.ends_with(kSize)) return name;
  if (name.starts_with("the "))
    return "the number of rows of " + name.substr(0, name.size() - kSize.size()) + " data";
  return "number of rows of the " + name.substr(0, name.size() - kSize.size()) + " data";
}

}  // namespace

NamedSettings SettingsThatMatter(const TrainingArguments& a, const TokenizedDataset& train,
                                 const TokenizedDataset* evaluation, const Module& model,
                                 const Tokenizer* tokenizer, int num_processes, int64_t max_steps,
                                 std::optional<int64_t> max_seq_length) {
  NamedSettings settings;
  if (max_seq_length) {
    settings.emplace_back(kMaxLength, *max_seq_length == 0 ? "auto" : Text(*max_seq_length));
  }
  for (const auto& [name, value] : DatasetDigests(train, "training"))
    settings.emplace_back("the " + name, value);
  if (tokenizer != nullptr) {
    for (const auto& [name, contents] : tokenizer->files())
      settings.emplace_back(kTokenizer + name, "sha256 " + Sha256(contents));
  }
  for (const auto& [name, value] : model.Settings()) {
    // The first batch decides on it, if nothing does before. It follows from the data.
    if (name != "config problem_type") settings.emplace_back("the model's " + name, value);
  }
  const auto add = [&](const char* name, const auto& value) {
    settings.emplace_back(name, Text(value));
  };
  add(kBatchOfAll, a.per_device_train_batch_size * num_processes);
  add("gradient_accumulation_steps", a.gradient_accumulation_steps);
  add("seed", a.seed);
  add("data_seed", a.data_seed.value_or(a.seed));
  add("shuffle_train", a.shuffle_train);
  add("group_by_length", a.group_by_length);
  add("dataloader_drop_last", a.dataloader_drop_last);
  settings.emplace_back("mixed_precision", a.bf16 ? "bf16" : a.fp16 ? "fp16" : a.mixed_precision);
  add("learning_rate", a.learning_rate);
  add("weight_decay", a.weight_decay);
  if (!UsesAdamW(a)) {
    settings.emplace_back("optim", a.optim);
    for (const auto& [name, value] : OptimizerOptionsOf(a)) {
      settings.emplace_back("optim_args " + name, value);
    }
  }
  add("adam_beta1", a.adam_beta1);
  add("adam_beta2", a.adam_beta2);
  add("adam_epsilon", a.adam_epsilon);
  add("max_grad_norm", a.max_grad_norm);
  if (!a.freeze_layers.empty()) settings.emplace_back("freeze_layers", a.freeze_layers);
  if (a.head_learning_rate != 0) add("head_learning_rate", a.head_learning_rate);
  if (a.layerwise_lr_decay != 1) add("layerwise_lr_decay", a.layerwise_lr_decay);
  settings.emplace_back("lr_scheduler_type", a.lr_scheduler_type);
  settings.emplace_back("lr_scheduler_kwargs", a.lr_scheduler_kwargs);
  add("warmup_steps", a.warmup_steps);
  add("warmup_ratio", a.warmup_ratio);
  if (DependsOnMaxSteps(a)) add("number of steps", max_steps);
  if (a.lr_scheduler_type == "reduce_lr_on_plateau") {
    settings.emplace_back("eval_strategy", a.eval_strategy);
    if (a.eval_strategy == "steps") add("eval_steps", a.eval_steps);
    settings.emplace_back("metric_for_best_model", a.metric_for_best_model);
  }
  if (evaluation != nullptr && EvaluationsDecide(a)) AddEvaluation(a, *evaluation, settings);
  return settings;
}

bool MayUseFilledOutputDir(const TrainingArguments& a) {
  if (ReadRestarts() > 0 && IsOwnFolder(a.output_dir)) return true;
  const std::string& wish = a.resume_from_checkpoint;
  const bool names_a_folder = !wish.empty() && wish != "true" && wish != "false";
  if (names_a_folder) CheckWish(a);
  if (a.overwrite_output_dir || wish == "true") return true;
  if (!names_a_folder) return false;
  std::error_code code;
  return fs::equivalent(fs::absolute(wish, code).parent_path(), a.output_dir, code);
}

std::vector<std::string> Differences(const NamedSettings& then, const NamedSettings& now) {
  const std::map<std::string, std::string> before(then.begin(), then.end());
  const std::map<std::string, std::string> present(now.begin(), now.end());
  const auto of_tokenizer = [](const auto& setting) {
    return setting.first.starts_with(kTokenizer);
  };
  const bool skip_tokenizer = std::none_of(then.begin(), then.end(), of_tokenizer) ||
                              std::none_of(now.begin(), now.end(), of_tokenizer);
  const auto text = [](const std::map<std::string, std::string>& settings,
                       const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? "not set" : Shortened(found->second);
  };
  const auto differs = [&](const std::string& name) {
    const auto old_value = before.find(name), new_value = present.find(name);
    const bool both = old_value != before.end() && new_value != present.end();
    return both ? old_value->second != new_value->second
                : name != kMaxLength && !IsOfEvaluation(name);
  };
  const bool other_cuts = differs(kMaxLength) && std::ranges::any_of(now, [&](const auto& setting) {
                            return setting.first.ends_with(kLengths) && differs(setting.first);
                          });
  std::vector<std::string> differences;
  std::set<std::string> told;  // settings, and data
  for (const NamedSettings* list : {&now, &then}) {
    for (const auto& setting : *list) {
      const std::string& name = setting.first;
      if ((skip_tokenizer && of_tokenizer(setting)) || !differs(name)) continue;
      if (other_cuts ? FollowsFromLengths(name) : name == kMaxLength) continue;
      const std::string data = DataOf(name);
      if (!told.insert(data.empty() ? name : data).second) continue;
      differences.push_back(Readable(name) + " was " + text(before, name) + " and is " +
                            text(present, name));
    }
  }
  return differences;
}

std::optional<std::string> FirstDifference(const NamedSettings& then, const NamedSettings& now) {
  const std::vector<std::string> all = Differences(then, now);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

Machinery MachineryIn(const CheckpointManifest& manifest) {
  Machinery then{.num_processes = manifest.world_size, .num_threads = 0, .device = ""};
  const nlohmann::json& about = manifest.about;
  if (const auto device = about.find(kDeviceKey); device != about.end() && device->is_string())
    then.device = device->get<std::string>();
  if (const auto threads = about.find(kThreadsKey); threads != about.end())
    then.num_threads = static_cast<int>(WholeNumber(*threads, 0, 1 << 20).value_or(0));
  return then;
}

std::vector<std::string> ChangedMachinery(const Machinery& then, const Machinery& now) {
  std::vector<std::string> notes;
  const auto note_count = [&](int before, int after, const std::string& one,
                              const std::string& many) {
    if (before == after) return;
    notes.push_back("the checkpoint is that of " + std::to_string(before) + " " +
                    (before == 1 ? one : many) +
                    "; with another number, the last digits of sums differ");
  };
  note_count(then.num_processes, now.num_processes, "process", "processes");
  if (!then.device.empty() && then.device != now.device) {
    notes.push_back("the checkpoint was written on the device " + then.device + "; on " +
                    now.device + ", the last digits of all numbers differ");
  } else if (then.num_threads > 0 && now.num_threads > 0 && now.device == "cpu") {
    note_count(then.num_threads, now.num_threads, "thread", "threads");
  }
  return notes;
}

}  // namespace lathe
