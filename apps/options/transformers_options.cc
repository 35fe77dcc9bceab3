#include "lathe/apps/options/transformers_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "lathe/apps/cli/help_text.h"
#include "lathe/apps/options/refused_values.h"
#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

constexpr auto kSwitch = FlagTable::Flag::Kind::kBool;
constexpr auto kValue = FlagTable::Flag::Kind::kValue;
constexpr auto kList = FlagTable::Flag::Kind::kList;

constexpr std::string_view kPadding = "batches are packed, so there is no padding";
constexpr std::string_view kLoader = "batches are made by threads of the program itself";
constexpr std::string_view kReducer = "gradients are summed in a way of Lathe's own";
constexpr std::string_view kPushOnly = "it has no effect without --push_to_hub";
constexpr std::string_view kTrackioOnly = "it has no effect without --report_to trackio";
constexpr std::string_view kPython = "it is about functions of Python that compute metrics";
constexpr std::string_view kCompile = "nothing is compiled at run time";
constexpr std::string_view kHubData = "finetune reads files, and fetches no data set";
constexpr std::string_view kUseFiles =
    "save the data set as CSV or JSON lines and pass --train_file, --validation_file, --test_file";
constexpr std::string_view kSharding = "Lathe shards nothing but the optimizer's state";
constexpr std::string_view kUseShards = "leave it out; see --shard_optimizer";
constexpr std::string_view kTpu = "Lathe computes on CPUs and NVIDIA's GPUs";
constexpr std::string_view kPrecision = "evaluation has the precision of the training";

constexpr TransformersOption kOptions[] = {
    // Models of run_glue and run_classification have these.
    {"use_fast_tokenizer", kSwitch, "*", "there is one implementation of each tokenizer", ""},
    {"use_auth_token", kSwitch, "*", "a stored token is always used; --token gives another", ""},
    {"trust_remote_code", kSwitch, "*", "no code of a repository is ever run", ""},
    // Data of run_glue and run_classification have these. TrainingArguments has all the others.
    {"dataset_name", kValue, "", kHubData, kUseFiles},
    {"dataset_config_name", kValue, "", kHubData, kUseFiles},
    {"train_split_name", kValue, "train", kHubData, "pass the split's file with --train_file"},
    {"validation_split_name", kValue, "validation", kHubData,
     "pass the split's file with --validation_file"},
    {"test_split_name", kValue, "test", kHubData, "pass the split's file with --test_file"},
    {"remove_columns", kValue, "", "only the columns of texts and labels are read",
     "name the texts with --text_columns"},
    {"pad_to_max_length", kSwitch, "*", kPadding, ""},
    {"preprocessing_num_workers", kValue, "*", "--num_threads threads tokenize", ""},
    {"shuffle_seed", kValue, "*", "--seed and --data_seed decide on the order", ""},
    // These are about the optimizer.
    {"optim_target_modules", kList, "", "all parameters have the same optimizer", "leave it out"},
    {"adafactor", kSwitch, "false", "--optim chooses the optimizer", "pass --optim adafactor"},
    {"average_tokens_across_devices", kSwitch, "true",
     "a step's loss is the mean over the samples of all processes", "leave it out"},
    {"neftune_noise_alpha", kValue, "", "embeddings get no noise", "leave it out"},
    {"auto_find_batch_size", kSwitch, "false", "the batch is as large as the options say",
     "pass a smaller --per_device_train_batch_size and more --gradient_accumulation_steps"},
    // These are about precision and memory.
    {"bf16_full_eval", kSwitch, "false", kPrecision, "pass --bf16"},
    {"fp16_full_eval", kSwitch, "false", kPrecision, "pass --fp16"},
    {"tf32", kSwitch, "false", "float32 is not rounded to TF32 by an option",
     "set the environment variable LATHE_ALLOW_TF32=1"},
    {"half_precision_backend", kValue, "auto|cuda_amp|cpu_amp",
     "there is one way to mix precisions", "leave it out"},
    {"fp16_backend", kValue, "auto|amp|cuda_amp|cpu_amp", "there is one way to mix precisions",
     "leave it out"},
    {"fp16_opt_level", kValue, "*", "it has no effect without Apex", ""},
    {"activation_checkpointing_kwargs", kValue, "{}|{\"use_reentrant\":false}",
     "all layers are computed again, in one way", "leave it out"},
    {"gradient_checkpointing_kwargs", kValue,
     "{}|{\"use_reentrant\":false}|{\"use_reentrant\":true}",
     "all layers are computed again, in one way", "leave it out"},
    {"torch_empty_cache_steps", kValue, "*", "it is about PyTorch's memory", ""},
    {"skip_memory_metrics", kSwitch, "*", "train_results.json always has the peak of memory", ""},
    {"use_cache", kSwitch, "*", "classifiers generate nothing", ""},
    {"past_index", kValue, "-1", "classifiers have no past states", "leave it out"},
    // These are about compilers and kernels.
    {"torch_compile", kSwitch, "false", kCompile, "leave it out; see --cuda_graphs"},
    {"torch_compile_backend", kValue, "", kCompile, "leave it out; see --cuda_graphs"},
    {"torch_compile_mode", kValue, "", kCompile, "leave it out; see --cuda_graphs"},
    {"torchdynamo", kValue, "", kCompile, "leave it out; see --cuda_graphs"},
    {"jit_mode_eval", kSwitch, "false", kCompile, "leave it out"},
    {"use_ipex", kSwitch, "false", "Lathe has kernels of its own", "leave it out"},
    {"use_liger_kernel", kSwitch, "false", "Lathe has kernels of its own", "leave it out"},
    {"liger_kernel_config", kValue, "{}", "Lathe has kernels of its own", "leave it out"},
    // These are about logs and trackers.
    {"log_level_replica", kValue, "*", "the main process prints for all", ""},
    {"log_on_each_node", kSwitch, "*", "the main process prints for all", ""},
    {"logging_nan_inf_filter", kSwitch, "*", "a loss that is not finite ends the training", ""},
    {"include_num_input_tokens_seen", kValue, "*", "trainer_state.json always has them", ""},
    {"include_tokens_per_second", kSwitch, "*", "train_results.json always has them", ""},
    {"project", kValue, "*", kTrackioOnly, ""},
    {"trackio_space_id", kValue, "*", kTrackioOnly, ""},
    {"trackio_bucket_id", kValue, "*", kTrackioOnly, ""},
    {"trackio_static_space_id", kValue, "*", kTrackioOnly, ""},
    {"ray_scope", kValue, "*", "it is about searches for hyperparameters", ""},
    // These are about evaluations.
    {"prediction_loss_only", kSwitch, "false", "an evaluation has all metrics", "leave it out"},
    {"eval_on_start", kSwitch, "false", "the first evaluation comes after a step",
     "evaluate the model by itself with --do_eval, without --do_train"},
    {"eval_do_concat_batches", kSwitch, "*", kPython, ""},
    {"eval_use_gather_object", kSwitch, "*", kPython, ""},
    {"eval_accumulation_steps", kValue, "*", "logits leave the device as they come", ""},
    {"include_for_metrics", kList, "*", kPython, ""},
    {"include_inputs_for_metrics", kSwitch, "*", kPython, ""},
    {"batch_eval_metrics", kSwitch, "*", kPython, ""},
    {"use_legacy_prediction_loop", kSwitch, "*", "there is one loop", ""},
    // These are about checkpoints.
    {"save_safetensors", kSwitch, "true", "weights are saved as safetensors", "leave it out"},
    {"save_on_each_node", kSwitch, "false", "the main process saves for all",
     "copy --output_dir to the other machines"},
    {"enable_jit_checkpoint", kSwitch, "*", "a signal always saves a checkpoint", ""},
    {"restore_callback_states_from_checkpoint", kSwitch, "*",
     "a resume always goes on exactly where the checkpoint is", ""},
    // These are about uploads to a Hub.
    {"push_to_hub", kSwitch, "false", "finetune uploads nothing",
     "upload --output_dir afterwards: hf upload NAME DIR"},
    {"hub_token", kValue, "*", kPushOnly, ""},
    {"hub_private_repo", kSwitch, "*", kPushOnly, ""},
    {"hub_model_id", kValue, "*", kPushOnly, ""},
    {"hub_strategy", kValue, "*", kPushOnly, ""},
    {"hub_always_push", kSwitch, "*", kPushOnly, ""},
    {"hub_revision", kValue, "*", kPushOnly, ""},
    {"push_to_hub_model_id", kValue, "*", kPushOnly, ""},
    {"push_to_hub_organization", kValue, "*", kPushOnly, ""},
    {"push_to_hub_token", kValue, "*", kPushOnly, ""},
    // These are about how batches are made.
    {"dataloader_num_workers", kValue, "*", kLoader, ""},
    {"dataloader_pin_memory", kSwitch, "*", kLoader, ""},
    {"dataloader_persistent_workers", kSwitch, "*", kLoader, ""},
    {"dataloader_prefetch_factor", kValue, "*", kLoader, ""},
    {"dataloader_multiprocessing_context", kValue, "*", kLoader, ""},
    {"dataloader_in_order", kSwitch, "*", kLoader, ""},
    {"remove_unused_columns", kSwitch, "*", "only the columns of texts and labels are read", ""},
    {"label_names", kList, "labels", "a classifier has one input of labels",
     "name the column of the labels with --label_column"},
    {"length_column_name", kValue, "*", "lengths are those of the tokenized texts", ""},
    // These are about several processes.
    {"local_rank", kValue, "*", "the environment numbers the processes", ""},
    {"ddp_backend", kValue, "*", kReducer, ""},
    {"ddp_find_unused_parameters", kSwitch, "*", kReducer, ""},
    {"ddp_bucket_cap_mb", kValue, "*", kReducer, ""},
    {"ddp_broadcast_buffers", kSwitch, "*", "models have no buffers that change", ""},
    {"ddp_static_graph", kSwitch, "*", kReducer, ""},
    {"accelerator_config", kValue, "{}", "Lathe's options decide about batches",
     "leave it out or keep its defaults; --per_device_train_batch_size is for each process"},
    {"parallelism_config", kValue, "{}", kSharding, kUseShards},
    {"fsdp", kValue, "false|{}", kSharding, kUseShards},
    {"fsdp_config", kValue, "{}", kSharding, kUseShards},
    {"fsdp_min_num_params", kValue, "0", kSharding, kUseShards},
    {"fsdp_transformer_layer_cls_to_wrap", kValue, "", kSharding, kUseShards},
    {"sharded_ddp", kValue, "false", kSharding, kUseShards},
    {"deepspeed", kValue, "", kSharding, kUseShards},
    {"mp_parameters", kValue, "", kSharding, kUseShards},
    {"tpu_num_cores", kValue, "", kTpu, "leave it out"},
    {"tpu_metrics_debug", kSwitch, "false", kTpu, "leave it out"},
    {"use_mps_device", kSwitch, "false", kTpu, "leave it out"},
    {"debug", kList, "", "a loss that is not finite is reported anyway",
     "leave it out; see --log_level debug"},
};

std::vector<std::string> HarmlessValues(const TransformersOption& option) {
  return absl::StrSplit(std::string(option.harmless), '|', absl::SkipEmpty());
}

// Spaces in JSON don't count.
std::string WithoutSpaces(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) out += c;
  }
  return out;
}

// Throws if `value` is an object of Transformers' AcceleratorConfig that has an entry other than
// the default. Returns false if it is no such object.
bool IsDefaultAcceleratorConfig(const TransformersOption& option, const std::string& value) {
  static const nlohmann::json kDefaults = {
      {"split_batches", false},       {"dispatch_batches", nullptr},
      {"even_batches", true},         {"use_seedable_sampler", true},
      {"non_blocking", false},        {"gradient_accumulation_kwargs", nullptr},
      {"use_configured_state", false}};
  const nlohmann::json config = ParseJsonOrDiscard(value);
  if (!config.is_object()) return false;
  for (const auto& [name, entry] : config.items()) {
    const auto usual = kDefaults.find(name);
    if (usual != kDefaults.end() && *usual == entry) continue;
    // An entry with parts may be nested too deeply to print.
    const std::string text = entry.is_structured() ? "" : ": " + DumpJson(entry);
    throw InvalidArgument("--accelerator_config with \"" + name + "\"" + text +
                              " is not supported: " + std::string(option.reason),
                          std::string(option.instead));
  }
  return true;
}

void CheckValues(const TransformersOption& option, const FlagTable::Flag& flag,
                 const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    if (IsHarmless(option, value)) continue;
    if (option.name == "accelerator_config" && IsDefaultAcceleratorConfig(option, value)) continue;
    throw InvalidArgument(
        "--" + flag.name + " " + value + " is not supported: " + std::string(option.reason),
        std::string(option.instead));
  }
}

}  // namespace

std::span<const TransformersOption> TransformersOptions() { return kOptions; }

bool IsHarmless(const TransformersOption& option, const std::string& value) {
  if (option.harmless == "*") return true;
  const std::string text = absl::AsciiStrToLower(WithoutSpaces(value));
  if (text.empty() || text == "none" || text == "null") return option.kind != kSwitch;
  double number = 0, other = 0;
  const bool is_number = absl::SimpleAtod(text, &number);
  for (const std::string& harmless : HarmlessValues(option)) {
    if (text == harmless) return true;
    if (is_number && absl::SimpleAtod(harmless, &other) && number == other) return true;
  }
  return false;
}

void AddTransformersOptions(FlagTable& flags) {
  for (const TransformersOption& option : kOptions) {
    const std::string name(option.name);
    if (flags.has(name)) continue;
    flags.AddUnlisted(name, option.kind,
                      [&option](const FlagTable::Flag& flag, const std::vector<std::string>& v) {
                        CheckValues(option, flag, v);
                      });
  }
}

std::string DescribeTransformersOptions() {
  const size_t width = HelpWidth();
  constexpr size_t kIndent = 6;
  std::string out =
      WrapText(
          "Options of Transformers' scripts that change nothing here, and values that are "
          "refused:",
          width) +
      '\n';
  const auto add = [&](const std::string& text) {
    out += std::string(kIndent, ' ') + WrapText(text, width, kIndent + 2, kIndent) + '\n';
  };
  for (const TransformersOption& option : kOptions) {
    const std::vector<std::string> values = HarmlessValues(option);
    const std::string taken = option.harmless == "*" ? "any value"
                              : values.empty()       ? "no value"
                                                     : absl::StrJoin(values, ", ");
    out += "\n  --" + std::string(option.name) + '\n';
    add("taken: " + taken);
    add("because " + std::string(option.reason));
    if (!option.instead.empty()) add("else " + std::string(option.instead));
  }
  out += "\nValues of other options that are refused:\n";
  for (const RefusedValue& refused : RefusedValues()) {
    const std::vector<std::string> values = absl::StrSplit(std::string(refused.values), '|');
    out += "\n  --" + std::string(refused.option) + '\n';
    add("refused: " + absl::StrJoin(values, ", "));
    add("because " + std::string(refused.reason));
    add("else " + std::string(refused.instead));
  }
  return out;
}

}  // namespace lathe
