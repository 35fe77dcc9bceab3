#include "lathe/train/support/hyperparameters.h"

#include <absl/strings/str_join.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lathe/core/hub/hub_names.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Arguments = FinetuneArguments;
using Json = nlohmann::ordered_json;

std::string PrecisionOf(const TrainingArguments& a) {
  return a.bf16 ? "bf16" : a.fp16 ? "fp16" : a.mixed_precision;
}

Json JsonOf(const auto& value) { return value; }
Json JsonOf(const std::vector<std::string>& value) { return absl::StrJoin(value, ","); }
template <typename T>
Json JsonOf(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// When an argument counts for the trained model.
bool Always(const Arguments&) { return true; }
bool EvaluationsDecide(const Arguments& a) {
  return a.eval_strategy != "no" && (a.load_best_model_at_end || a.early_stopping_patience ||
                                     a.lr_scheduler_type == "reduce_lr_on_plateau");
}
bool EvaluationsOfStepsDecide(const Arguments& a) {
  return EvaluationsDecide(a) && a.eval_strategy == "steps";
}
bool JoinsTexts(const Arguments& a) { return !a.text_column_names.empty(); }
bool IsFloat16(const Arguments& a) { return PrecisionOf(a) == "fp16"; }
bool Resumes(const Arguments& a) { return !a.resume_from_checkpoint.empty(); }

// Returns the argument's value if it counts and differs from the default, else null.
template <auto kMember, bool (*kCounts)(const Arguments&) = Always>
Json Changed(const Arguments& a) {
  static const Arguments kUsual;
  const auto& value = a.*kMember;
  return value == kUsual.*kMember || !kCounts(a) ? Json() : JsonOf(value);
}

// Returns a name on the Hub as it is, but only the last part of a path. A card is public, and the
// other parts tell of the owner's machine.
template <auto kMember>
Json ChangedModel(const Arguments& a) {
  const std::string& value = a.*kMember;
  std::error_code code;
  if (value.empty()) return nullptr;
  return IsLocalPath(value) ? fs::weakly_canonical(value, code).filename().string() : value;
}

Json ChangedWeights(const Arguments& a) {
  if (!a.class_weights.ends_with(".json")) return Changed<&Arguments::class_weights>(a);
  return fs::path(a.class_weights).filename().string();
}

Json ChangedLength(const Arguments& a) {
  return a.max_seq_length == 0 ? Json("auto") : Changed<&Arguments::max_seq_length>(a);
}

// In quotes, because it may be a space or the end of a line.
Json ChangedDelimiter(const Arguments& a) {
  const Json value = Changed<&Arguments::text_column_delimiter, JoinsTexts>(a);
  return value.is_null() ? value : Json(DumpJson(value));
}

struct ArgumentRow {
  std::string_view name;
  Json (*changed)(const Arguments& arguments);  // returns null if there is nothing to tell
};

// The arguments that change the trained model, but for those that Transformers' list has.
// apps/options/card_options_test.cc fails for an option that is neither here nor in its own list.
constexpr ArgumentRow kArguments[] = {
    {"model_revision", Changed<&Arguments::model_revision>},
    {"config_name", ChangedModel<&Arguments::config_name>},
    {"tokenizer_name", ChangedModel<&Arguments::tokenizer_name>},
    {"config_overrides", Changed<&Arguments::config_overrides>},
    {"num_labels", Changed<&Arguments::num_labels>},
    {"problem_type", Changed<&Arguments::problem_type>},
    {"ignore_mismatched_sizes", Changed<&Arguments::ignore_mismatched_sizes>},
    // Data.
    {"task_name", Changed<&Arguments::task_name>},
    {"text_columns", Changed<&Arguments::text_columns>},
    {"text_column_names", Changed<&Arguments::text_column_names>},
    {"text_column_delimiter", ChangedDelimiter},
    {"label_column", Changed<&Arguments::label_column>},
    {"do_regression", Changed<&Arguments::do_regression>},
    {"max_seq_length", ChangedLength},
    {"max_train_samples", Changed<&Arguments::max_train_samples>},
    {"validation_split", Changed<&Arguments::validation_split>},
    {"drop_duplicates", Changed<&Arguments::drop_duplicates>},
    {"invalid_utf8", Changed<&Arguments::invalid_utf8>},
    // The loss.
    {"label_smoothing_factor", Changed<&Arguments::label_smoothing_factor>},
    {"focal_gamma", Changed<&Arguments::focal_gamma>},
    {"class_weights", ChangedWeights},
    {"sample_weight_column", Changed<&Arguments::sample_weight_column>},
    // What is trained, and how.
    {"freeze_layers", Changed<&Arguments::freeze_layers>},
    {"head_learning_rate", Changed<&Arguments::head_learning_rate>},
    {"layerwise_lr_decay", Changed<&Arguments::layerwise_lr_decay>},
    {"max_grad_norm", Changed<&Arguments::max_grad_norm>},
    {"fp16_init_scale", Changed<&Arguments::fp16_init_scale, IsFloat16>},
    {"shuffle_train", Changed<&Arguments::shuffle_train>},
    {"group_by_length", Changed<&Arguments::group_by_length>},
    {"dataloader_drop_last", Changed<&Arguments::dataloader_drop_last>},
    {"data_seed", Changed<&Arguments::data_seed>},
    // Which of the models is saved.
    {"load_best_model_at_end", Changed<&Arguments::load_best_model_at_end>},
    {"early_stopping_patience", Changed<&Arguments::early_stopping_patience>},
    {"early_stopping_threshold", Changed<&Arguments::early_stopping_threshold>},
    {"metric_for_best_model", Changed<&Arguments::metric_for_best_model, EvaluationsDecide>},
    {"greater_is_better", Changed<&Arguments::greater_is_better, EvaluationsDecide>},
    {"eval_strategy", Changed<&Arguments::eval_strategy, EvaluationsDecide>},
    {"eval_steps", Changed<&Arguments::eval_steps, EvaluationsOfStepsDecide>},
    {"eval_delay", Changed<&Arguments::eval_delay, EvaluationsDecide>},
    {"max_eval_samples", Changed<&Arguments::max_eval_samples, EvaluationsDecide>},
    {"resume_anyway", Changed<&Arguments::resume_anyway, Resumes>},
    // What config.json keeps of it.
    {"thresholds", Changed<&Arguments::thresholds>},
    {"calibrate", Changed<&Arguments::calibrate>},
};

// Returns what Transformers' Trainer lists on a model card.
Json TrainersList(const TrainingArguments& a, int num_processes, bool on_gpu) {
  const int64_t all = a.per_device_train_batch_size * num_processes * a.gradient_accumulation_steps;
  Json list = {{"learning_rate", a.learning_rate},
               {"train_batch_size", a.per_device_train_batch_size},
               {"eval_batch_size", a.per_device_eval_batch_size},
               {"seed", a.seed}};
  if (num_processes > 1) {
    list["distributed_type"] = on_gpu ? "multi-GPU" : "multi-CPU";
    list["num_devices"] = num_processes;
  }
  if (a.gradient_accumulation_steps > 1)
    list["gradient_accumulation_steps"] = a.gradient_accumulation_steps;
  if (all != a.per_device_train_batch_size) list["total_train_batch_size"] = all;
  if (num_processes > 1)
    list["total_eval_batch_size"] = a.per_device_eval_batch_size * num_processes;
  list["optimizer"] = DescribeOptimizer(a);
  list["lr_scheduler_type"] = a.lr_scheduler_type;
  if (!a.lr_scheduler_kwargs.empty()) list["lr_scheduler_kwargs"] = a.lr_scheduler_kwargs;
  if (a.warmup_steps > 0) {
    list["lr_scheduler_warmup_steps"] = a.warmup_steps;
  } else if (a.warmup_ratio > 0) {
    list["lr_scheduler_warmup_ratio"] = a.warmup_ratio;
  }
  if (a.max_steps > 0) {
    list["training_steps"] = a.max_steps;
  } else {
    list["num_epochs"] = a.num_train_epochs;
  }
  if (PrecisionOf(a) != "no") list["mixed_precision_training"] = PrecisionOf(a);
  return list;
}

}  // namespace

nlohmann::ordered_json TrainerHyperparameters(const FinetuneArguments& arguments, int num_processes,
                                              bool on_gpu) {
  Json list = TrainersList(arguments, num_processes, on_gpu);
  for (const ArgumentRow& row : kArguments) {
    if (Json value = row.changed(arguments); !value.is_null()) list[std::string(row.name)] = value;
  }
  return list;
}

nlohmann::ordered_json TrainerHyperparameters(const TrainingArguments& arguments, int num_processes,
                                              bool on_gpu) {
  FinetuneArguments all;
  static_cast<TrainingArguments&>(all) = arguments;
  return TrainerHyperparameters(all, num_processes, on_gpu);
}

}  // namespace lathe
