#include "lathe/train/checkpoint/resume_settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/checkpoint_folder.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_number.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/job/dataset_digests.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/models/config/decision_rule_config.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/support/optimizer_arguments.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/support/schedule_kwargs.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr char kTokenizer[] = "the tokenizer's ", kModel[] = "the model's ";
constexpr char kMaxLength[] = "max_seq_length";
constexpr char kTraining[] = "training", kValidation[] = "validation";
constexpr char kEvalDelay[] = "eval_delay", kEvalStrategy[] = "eval_strategy",
               kEvalSteps[] = "eval_steps", kBestMetric[] = "the metric of the best model",
               kGreaterIsBetter[] = "greater_is_better";
// Settings of evaluations, besides those of the validation data.
constexpr std::string_view kEvaluationNames[] = {kEvalDelay, kEvalStrategy, kEvalSteps, kBestMetric,
                                                 kGreaterIsBetter};
// The keys of a model's configuration that only evaluations read.
constexpr const char* kDecisionKeys[] = {kThresholdsKey, kTemperatureKey};
constexpr char kScheduleOptions[] = "lr_scheduler_kwargs";
constexpr char kWarmupSteps[] = "warmup_steps", kWarmupRatio[] = "warmup_ratio";
// What these two give. Checkpoints of older versions lack it.
constexpr char kNumWarmupSteps[] = "number of warmup steps";
constexpr char kNumSteps[] = "number of steps";
constexpr char kNotSet[] = "not set";

std::string Text(double value) { return DumpJson(nlohmann::json(value)); }
std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(bool value) { return value ? "true" : "false"; }

// The rate of these schedules at a step doesn't depend on the number of steps to come, but for that
// of warmup steps.
bool DependsOnMaxSteps(const std::string& schedule) {
  return schedule != "constant" && schedule != "constant_with_warmup" &&
         schedule != "inverse_sqrt" && schedule != "reduce_lr_on_plateau";
}

// The name of a model's setting that is this key of its configuration.
std::string ConfigSetting(const char* key) { return std::string(kModel) + "config " + key; }

bool IsOfDecision(const std::string& name) {
  return std::ranges::any_of(kDecisionKeys,
                             [&](const char* key) { return name == ConfigSetting(key); });
}

// A setting that is a fact about data.
struct DataSetting {
  std::string data;  // kTraining or kValidation
  DatasetFact fact;
};
std::string NameOf(const DataSetting& setting) {
  return "the " + FactName(setting.fact, setting.data);
}
std::optional<DataSetting> FindDataSetting(const std::string& name) {
  for (const char* data : {kTraining, kValidation}) {
    for (const DatasetFact fact : kDatasetFacts) {
      if (name == NameOf({data, fact})) return DataSetting{data, fact};
    }
  }
  return std::nullopt;
}

void AddData(const TokenizedDataset& dataset, const char* data, NamedSettings& settings) {
  for (const auto& [name, value] : DatasetDigests(dataset, data))
    settings.emplace_back("the " + name, value);
}

// Returns true if the training would give another model with other evaluations.
bool EvaluationsDecide(const TrainingArguments& a) {
  return a.lr_scheduler_type == "reduce_lr_on_plateau" || a.save_strategy == "best" ||
         a.load_best_model_at_end || a.early_stopping_patience.has_value();
}

// Checkpoints of older versions lack these, and evaluations may begin or cease to decide.
bool IsOfEvaluation(const std::string& name) {
  const std::optional<DataSetting> of_data = FindDataSetting(name);
  return std::ranges::count(kEvaluationNames, name) > 0 || IsOfDecision(name) ||
         (of_data && of_data->data == kValidation);
}

// Returns the values of kDecisionKeys.
NamedSettings DecisionOf(const Module& model) {
  NamedSettings decision;
  for (const char* key : kDecisionKeys) decision.emplace_back(ConfigSetting(key), kNotSet);
  for (const auto& [name, value] : model.Settings()) {
    const auto own =
        std::ranges::find(decision, "the model's " + name, &NamedSettings::value_type::first);
    if (own != decision.end()) own->second = value;
  }
  return decision;
}

void AddEvaluation(const TrainingArguments& a, const TokenizedDataset& evaluation,
                   const Module& model, int64_t max_steps, NamedSettings& settings) {
  const NamedSettings best = SettingsOfBest(a, evaluation, model);
  settings.insert(settings.end(), best.begin(), best.end());
  settings.insert(settings.end(),
                  {{kEvalDelay, Text(a.eval_delay)},
                   {kEvalStrategy, a.eval_strategy},
                   {kEvalSteps, a.eval_strategy == "steps" ? Text(StepsOf(a.eval_steps, max_steps))
                                                           : kNotSet}});
}

std::string Shortened(const std::string& value) {
  constexpr size_t kMost = 60;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "...";
}

// Returns true if two values of a setting mean the same.
bool MeanTheSame(const std::string& name, const std::string& then, const std::string& now) {
  if (name == kEvalSteps && then != kNotSet && now != kNotSet) {
    // Older versions told the number as it was given. A share of steps can't be compared.
    const double before = std::strtod(then.c_str(), nullptr);
    return before < 1 || before == std::strtod(now.c_str(), nullptr);
  }
  if (then == now || name != kScheduleOptions) return then == now;
  const auto options = [](const std::string& text) {
    return text.empty() ? nlohmann::json::object() : ParseJsonOrDiscard(text);
  };
  const bool sound = !FindJsonFlaw(then) && !FindJsonFlaw(now);
  return sound && !options(then).is_discarded() && options(then) == options(now);
}

// Returns true for the digests that change wherever texts are cut in another place.
bool FollowsFromLengths(const std::string& name) {
  const std::optional<DataSetting> setting = FindDataSetting(name);
  return setting &&
         (setting->fact == DatasetFact::kLengths || setting->fact == DatasetFact::kTokenIds ||
          setting->fact == DatasetFact::kTokenTypeIds);
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

// Returns the name of a setting as a sentence has it: "training dataset of size" reads badly.
std::string Readable(const std::string& name) {
  const std::optional<DataSetting> setting = FindDataSetting(name);
  if (!setting || setting->fact != DatasetFact::kSize) return name;
  return "the number of rows of the " + setting->data + " data";
}

}  // namespace

// It is long because it is a list: a line for each setting.
NamedSettings SettingsThatMatter(const TrainingArguments& a, const TokenizedDataset& train,
                                 const TokenizedDataset* evaluation, const Module& model,
                                 const Tokenizer* tokenizer, int num_processes, int64_t max_steps,
                                 std::optional<int64_t> max_seq_length) {
  NamedSettings settings;
  if (max_seq_length) {
    settings.emplace_back(kMaxLength, *max_seq_length == 0 ? "auto" : Text(*max_seq_length));
  }
  AddData(train, kTraining, settings);
  if (tokenizer != nullptr) {
    for (const auto& [name, contents] : tokenizer->files())
      settings.emplace_back(kTokenizer + name, "sha256 " + Sha256(contents));
  }
  for (const auto& [model_name, value] : model.Settings()) {
    const std::string name = kModel + model_name;
    // The first batch decides on it, if nothing does before. It follows from the data.
    if (name != ConfigSetting("problem_type") && !IsOfDecision(name))
      settings.emplace_back(name, value);
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
  settings.emplace_back(kScheduleOptions, a.lr_scheduler_kwargs);
  add(kNumWarmupSteps, NumWarmupSteps(a, max_steps));
  // Versions that don't know the former compare these.
  add(kWarmupSteps, a.warmup_steps);
  add(kWarmupRatio, a.warmup_ratio);
  const bool relative_warmup = a.warmup_steps == 0 && a.warmup_ratio > 0;
  if (relative_warmup || DependsOnMaxSteps(a.lr_scheduler_type)) add(kNumSteps, max_steps);
  if (a.lr_scheduler_type == "reduce_lr_on_plateau") {
    settings.emplace_back("metric_for_best_model", a.metric_for_best_model);
  }
  if (evaluation != nullptr && EvaluationsDecide(a))
    AddEvaluation(a, *evaluation, model, max_steps, settings);
  return settings;
}

NamedSettings SettingsOfBest(const TrainingArguments& a, const TokenizedDataset& evaluation,
                             const Module& model) {
  NamedSettings settings = DecisionOf(model);
  AddData(evaluation, kValidation, settings);
  settings.emplace_back(kBestMetric, BestModelMetric(a));
  settings.emplace_back(kGreaterIsBetter, Text(GreaterIsBetter(a)));
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

std::vector<SettingDifference> Differences(const NamedSettings& then, const NamedSettings& now) {
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
    return found == settings.end() ? kNotSet : Shortened(found->second);
  };
  const bool tell_warmup = before.contains(kNumWarmupSteps) && present.contains(kNumWarmupSteps);
  const auto schedule = present.find("lr_scheduler_type");
  const auto differs = [&](const std::string& name) {
    if (name == kNumWarmupSteps && !tell_warmup) return false;
    if ((name == kWarmupSteps || name == kWarmupRatio) && tell_warmup) return false;
    if (name == kNumSteps && tell_warmup && schedule != present.end() &&
        !DependsOnMaxSteps(schedule->second))
      return false;
    const auto old_value = before.find(name), new_value = present.find(name);
    const bool both = old_value != before.end() && new_value != present.end();
    return both ? !MeanTheSame(name, old_value->second, new_value->second)
                : name != kMaxLength && !IsOfEvaluation(name);
  };
  const bool other_cuts =
      differs(kMaxLength) && std::ranges::any_of(now, [&](const auto& setting) {
        const std::optional<DataSetting> data = FindDataSetting(setting.first);
        return data && data->fact == DatasetFact::kLengths && differs(setting.first);
      });
  std::vector<SettingDifference> differences;
  std::set<std::string> told;  // settings, and data
  for (const NamedSettings* list : {&now, &then}) {
    for (const auto& setting : *list) {
      const std::string& name = setting.first;
      if ((skip_tokenizer && of_tokenizer(setting)) || !differs(name)) continue;
      if (other_cuts ? FollowsFromLengths(name) : name == kMaxLength) continue;
      const std::optional<DataSetting> data = FindDataSetting(name);
      if (!told.insert(data ? data->data : name).second) continue;
      differences.push_back(
          {name, Readable(name) + " was " + text(before, name) + " and is " + text(present, name)});
    }
  }
  return differences;
}

std::optional<std::string> FirstDifference(const NamedSettings& then, const NamedSettings& now) {
  const std::vector<SettingDifference> all = Differences(then, now);
  return all.empty() ? std::nullopt : std::optional(all.front().text);
}

bool MayFollowFromModelFiles(const std::string& setting) {
  if (IsOfDecision(setting)) return false;
  return setting.starts_with(kTokenizer) || setting.starts_with(kModel) ||
         FollowsFromLengths(setting);
}

ComputeSetup ComputeSetupIn(const CheckpointManifest& manifest) {
  ComputeSetup then{.num_processes = manifest.world_size, .num_threads = 0, .device = ""};
  const nlohmann::json& about = manifest.about;
  if (const auto device = about.find(kDeviceKey); device != about.end() && device->is_string())
    then.device = device->get<std::string>();
  if (const auto threads = about.find(kThreadsKey); threads != about.end())
    then.num_threads = static_cast<int>(WholeNumber(*threads, 0, 1 << 20).value_or(0));
  return then;
}

std::vector<std::string> ChangedComputeSetup(const ComputeSetup& then, const ComputeSetup& now) {
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
