#include "lathe/train/checkpoint/resume_settings.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "lathe/core/checkpoint/sha256.h"
#include "lathe/distributed/job/dataset_digests.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/train/checkpoint/job_mark.h"
#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {
namespace {

constexpr char kTokenizer[] = "the tokenizer's ";

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

std::string Shortened(const std::string& value) {
  constexpr size_t kMost = 60;
  return value.size() <= kMost ? value : value.substr(0, kMost) + "...";
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
                                 const Module& model, const Tokenizer* tokenizer, int num_processes,
                                 int64_t max_steps) {
  NamedSettings settings;
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
  add("per_device_train_batch_size times processes", a.per_device_train_batch_size * num_processes);
  add("gradient_accumulation_steps", a.gradient_accumulation_steps);
  add("seed", a.seed);
  add("data_seed", a.data_seed.value_or(a.seed));
  add("shuffle_train", a.shuffle_train);
  add("group_by_length", a.group_by_length);
  add("dataloader_drop_last", a.dataloader_drop_last);
  settings.emplace_back("mixed_precision", a.bf16 ? "bf16" : a.fp16 ? "fp16" : a.mixed_precision);
  add("learning_rate", a.learning_rate);
  add("weight_decay", a.weight_decay);
  if (UsesSGD(a)) {
    const SGDOptions sgd = SGDOptionsOf(a);
    settings.emplace_back("optim", a.optim);
    add("optim_args momentum", sgd.momentum);
    add("optim_args dampening", sgd.dampening);
    add("optim_args nesterov", sgd.nesterov);
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
  return settings;
}

bool MayUseFilledOutputDir(const TrainingArguments& a) {
  if (a.overwrite_output_dir || a.resume_from_checkpoint == "true") return true;
  if (ReadRestarts() > 0 && IsOwnFolder(a.output_dir)) return true;
  if (a.resume_from_checkpoint.empty() || a.resume_from_checkpoint == "false") return false;
  std::error_code code;
  const auto parent = std::filesystem::absolute(a.resume_from_checkpoint, code).parent_path();
  return std::filesystem::equivalent(parent, a.output_dir, code);
}

std::optional<std::string> FirstDifference(const NamedSettings& then, const NamedSettings& now) {
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
  for (const NamedSettings* list : {&now, &then}) {
    for (const auto& setting : *list) {
      const std::string& name = setting.first;
      if (skip_tokenizer && of_tokenizer(setting)) continue;
      const auto old_value = before.find(name), new_value = present.find(name);
      if (old_value != before.end() && new_value != present.end() &&
          old_value->second == new_value->second)
        continue;
      return Readable(name) + " was " + text(before, name) + " and is " + text(present, name);
    }
  }
  return std::nullopt;
}

}  // namespace lathe
