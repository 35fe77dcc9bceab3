#include "lathe/apps/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lathe/apps/cli/options_file.h"
#include "lathe/apps/cli/precision.h"
#include "lathe/apps/cli/secret_names.h"
#include "lathe/apps/options/decision_flags.h"
#include "lathe/apps/options/drop_in_flags.h"
#include "lathe/apps/options/flag_groups.h"
#include "lathe/apps/options/row_flags.h"
#include "lathe/apps/options/transformers_options.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/train/rows/text_columns.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Trains a text classifier, evaluates it and predicts labels with it.\n"
    "\n"
    "Usage:\n"
    "  finetune --model_name_or_path MODEL --train_file FILE \\\n"
    "           --validation_file FILE --do_train --do_eval \\\n"
    "           --output_dir DIR [options]\n"
    "  finetune ARGUMENTS.json [options]\n"
    "\n"
    "MODEL is a folder as Transformers saves it, or a name on the Hub such as\n"
    "google-bert/bert-base-uncased, which is fetched once.\n"
    "A data FILE is .csv, .tsv, .json or .jsonl, and may end in .gz or .zst. It has a\n"
    "column (or key) for each text and one for the label. Several are a.csv,b.csv or\n"
    "'data/*.csv'. Without --do_train, --output_dir is the folder of\n"
    "the model that is evaluated, or a folder without a model. Earlier results there\n"
    "are replaced. A switch is written --name, --name true, --name=false or\n"
    "--no_name. ARGUMENTS is a .json, .yaml or .yml file with values of these\n"
    "options by their names; options behind it override it.\n";

void AddGeneralFlags(FlagTable& flags, FinetuneArguments& o, bool& help, std::string& json_config) {
  flags.Group("General");
  flags.Add("num_threads", &o.num_threads, "number of CPU threads; 0: all cores").Min(0).Max(1024);
  flags
      .Add("ddp_timeout", &o.ddp_timeout,
           "seconds that one process may keep the others waiting; 0: the value of lathe launch "
           "--timeout, else 600")
      .Min(0)
      .Max(1e6);
  flags.Add(
      "shard_optimizer", &o.shard_optimizer,
      "on the CPU, each process updates a part of the parameters, which saves time and memory; "
      "on GPUs, each process always updates all of them");
  flags.Add(
      "share_parameters", &o.share_parameters,
      "processes on one machine that each update a part of the parameters share one copy of them, "
      "which saves time and memory");
  flags
      .Add("json_config", &json_config,
           "JSON or YAML file with values of these options; the command line overrides it")
      .ValueName("FILE")
      .CommandLineOnly();
  flags.Add("help", &help, "show this text").CommandLineOnly();
}

void Require(bool ok, const char* message, const char* hint = "") {
  if (!ok) throw InvalidArgument(message, hint);
}

void Validate(FinetuneArguments& o) {
  Require(o.do_train || o.do_eval || o.do_predict, "nothing to do",
          "pass at least one of --do_train, --do_eval, --do_predict");
  Require(o.ddp_timeout == 0 || o.ddp_timeout >= 1, "--ddp_timeout must be 0 or at least 1");
  Require(!o.output_dir.empty(), "--output_dir is required",
          "name the folder to write the model and the results to");
  Require(!o.model_name_or_path.empty() || !o.config_name.empty(),
          "--model_name_or_path is required", "or pass --config_name to train fresh weights");
  constexpr char kFileHint[] = "name a .csv, .tsv, .json or .jsonl file";
  Require(!o.do_train || !o.train_file.empty(), "--do_train needs --train_file", kFileHint);
  const bool has_validation = !o.validation_file.empty() || o.validation_split > 0;
  const char* const validation_hint =
      o.do_train ? "name a .csv, .tsv, .json or .jsonl file, or keep a part of --train_file for it "
                   "with --validation_split 0.1"
                 : kFileHint;
  Require(!o.do_eval || has_validation, "--do_eval needs --validation_file", validation_hint);
  Require(!o.do_predict || !o.test_file.empty(), "--do_predict needs --test_file", kFileHint);
  Require(!o.dataset_cache.empty(), "--dataset_cache must not be empty",
          "name a folder, or pass none to keep the data in memory");
  CheckTextColumns(o);
  Require(!o.loss_curve || !o.disable_tqdm, "--loss_curve and --disable_tqdm exclude each other",
          "the curve stands below the progress bar; leave one of them out");
  CompleteTrainingArguments(o);
  ValidateLoss(o);
  ValidateDecision(o);
  Require(!o.do_train || o.eval_strategy == "no" || has_validation,
          "--eval_strategy needs --validation_file", validation_hint);
}

// Returns the precision that the environment gives, as `lathe launch --mixed_precision` sets it;
// else "no". Throws for an unknown one.
std::string PrecisionOfEnvironment() {
  constexpr char kName[] = "ACCELERATE_MIXED_PRECISION";
  const char* set = std::getenv(kName);
  if (set == nullptr || *set == 0) return "no";
  for (const char* name : {"no", "bf16", "fp16"}) {
    if (std::string(set) == name) return set;
  }
  throw InvalidArgument(std::string(kName) + " must be no, bf16 or fp16 but is \"" + set + "\"",
                        "correct the environment variable or unset it");
}

void ReadPrecision(const FlagTable& flags, FinetuneArguments& o) {
  const auto given = GivenPrecision(flags, o.mixed_precision, o.bf16, o.fp16);
  o.mixed_precision = given ? *given : PrecisionOfEnvironment();
}

// Reads the file of options that is named first, or by --json_config; either may be empty.
void ApplyFiles(FlagTable& flags, const std::string& arguments_file,
                const std::string& json_config) {
  if (!arguments_file.empty() && !json_config.empty()) {
    throw InvalidArgument("--json_config and " + arguments_file + " are two files of options",
                          "leave one of them out");
  }
  const std::string what =
      " names a file with an object of options, e.g. {\"learning_rate\": 3e-5}";
  if (!arguments_file.empty())
    flags.ApplyFile(arguments_file, "the first argument" + what);
  else if (!json_config.empty())
    flags.ApplyFile(json_config, "--json_config" + what);
}

// What some flags set besides the arguments.
struct OtherValues {
  bool help = false, help_transformers = false;
  std::string json_config;
  DropInInputs inputs;
};

void AddFlags(FlagTable& flags, FinetuneArguments& o, OtherValues& other) {
  AddModelFlags(flags, o);
  AddDataFlags(flags, o);
  AddRowFlags(flags, o);
  AddTaskFlags(flags, o);
  AddTrainingFlags(flags, o, other.inputs);
  AddLossFlags(flags, o);
  AddTrainedFlags(flags, o);
  AddLoggingFlags(flags, o);
  AddEarlyStoppingFlags(flags, o);
  AddTrackerFlags(flags, o);
  AddDecisionFlags(flags, o);
  AddCheckpointFlags(flags, o);
  AddGeneralFlags(flags, o, other.help, other.json_config);
  AddDropInFlags(flags, o, other.inputs);
  flags
      .Add("help_transformers", &other.help_transformers,
           "list the options of Transformers' scripts that are taken without an effect, or refused")
      .CommandLineOnly();
  AddTransformersOptions(flags);
}

// Returns ParsedOptions::open_columns. Labels matter only where the model is evaluated.
OpenColumns OpenColumnsOf(const FlagTable& flags, const FinetuneArguments& o) {
  if (o.do_train || !o.task_name.empty()) return OpenColumns::None();
  return {.texts = NamedTextColumns(o).empty(),
          .delimiter = !flags.given("text_column_delimiter"),
          .label = o.do_eval && !flags.given("label_column")};
}

// Sets what the ranks compare and what a model card shows: the options' values, and which options
// were given.
void SetValues(const FlagTable& flags, ParsedOptions& parsed) {
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  // Ranks may differ in these.
  const std::vector<std::string> own = {"output_dir",   "num_threads",   "overwrite_output_dir",
                                        "disable_tqdm", "json_config",   "resume_from_checkpoint",
                                        "run_name",     "dataset_cache", "overwrite_cache",
                                        "token",        "cache_dir",     "logging_dir",
                                        "loss_curve"};
  // These name files, which may lie elsewhere on another machine.
  const std::vector<std::string> files = {"model_name_or_path", "config_name", "tokenizer_name",
                                          "train_file",         "test_file",   "validation_file",
                                          "class_weights"};
  parsed.values = flags.PresentValues();
  parsed.values.erase("token");
  for (const auto& [name, value] : flags.GivenValues()) {
    if (in(own, name)) continue;
    if (in(files, name) || (name == "thresholds" && value.ends_with(".json"))) {
      parsed.files.emplace_back("--" + name, AbsolutePaths(value));
    } else {
      parsed.shared.emplace_back("--" + name, value);
    }
  }
}

}  // namespace

ParsedOptions ParseOptions(const std::vector<std::string>& args) {
  NameOptionsAsFlags();
  ParsedOptions parsed;
  FinetuneArguments& o = parsed.options;
  OtherValues other;
  FlagTable flags(kUsage);
  AddFlags(flags, o, other);

  const std::string help_text = flags.Help();  // before parsing, because it shows the defaults
  const std::string arguments_file = !args.empty() && IsOptionsFile(args[0]) ? args[0] : "";
  std::vector<std::string> positional = flags.Parse(args);
  if (other.help || other.help_transformers) {
    parsed.help = other.help ? help_text : DescribeTransformersOptions();
    return parsed;
  }
  if (!arguments_file.empty()) positional.erase(positional.begin());
  if (!positional.empty()) {
    throw InvalidArgument("unexpected argument \"" + WithoutSecret(positional[0]) + "\"",
                          IsOptionsFile(positional[0])
                              ? "a file of arguments stands first; --help lists the options"
                              : "a value stands right after its option; --help lists the options");
  }
  ApplyFiles(flags, arguments_file, other.json_config);
  TranslateDropInFlags(flags, other.inputs, o);
  if (!flags.given("gradient_accumulation_steps"))
    o.gradient_accumulation_steps = ReadAccumulationSteps();
  ReadPrecision(flags, o);
  // Who says how often to save wants to save.
  const bool says_how_often =
      flags.given("save_steps") || (flags.given("save_seconds") && o.save_seconds > 0);
  if (says_how_often && !flags.given("save_strategy")) o.save_strategy = "steps";
  ValidateRowFlags(flags, o);
  Validate(o);
  SetValues(flags, parsed);
  parsed.open_columns = OpenColumnsOf(flags, o);
  return parsed;
}

}  // namespace lathe
