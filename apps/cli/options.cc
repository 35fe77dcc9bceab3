#include "lathe/apps/cli/options.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "lathe/apps/cli/decision_flags.h"
#include "lathe/apps/cli/drop_in_flags.h"
#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/options_file.h"
#include "lathe/apps/cli/precision.h"
#include "lathe/apps/cli/row_flags.h"
#include "lathe/apps/cli/transformers_options.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/optim/schedules.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Trains a text classifier, evaluates it and predicts labels with it.\n"
    "\n"
    "Usage:\n"
    "  finetune --model_name_or_path MODEL --train_file FILE --validation_file FILE \\\n"
    "           --do_train --do_eval --output_dir DIR [options]\n"
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

// These limits are beyond any use, so that no product of them overflows.
constexpr double kMostSamples = 1 << 20, kMostEpochs = 1e6, kMostSteps = 1e12;

void AddModelFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Model");
  flags
      .Add("model_name_or_path", &o.model_name_or_path,
           "folder of the model to start from, or its name on the Hub, as owner/name")
      .ValueName("MODEL");
  flags
      .Add("config_name", &o.config_name,
           "folder or name of the config.json to use instead of the model's; without "
           "--model_name_or_path, "
           "training starts from fresh weights")
      .ValueName("MODEL");
  flags
      .Add("tokenizer_name", &o.tokenizer_name,
           "folder or name of the tokenizer to use instead of the model's")
      .ValueName("MODEL");
  AddHubFlags(flags, &o.model_revision, &o.token, &o.cache_dir);
  flags
      .Add("config_overrides", &o.config_overrides,
           "values to change in the config, such as hidden_dropout_prob=0,num_hidden_layers=2")
      .ValueName("A=B,C=D");
  flags
      .Add("num_labels", &o.num_labels,
           "number of labels (default: as many as the training file has)")
      .Min(1);
  flags
      .Add("problem_type", &o.problem_type,
           "what the labels mean (default: the training file decides)")
      .Choices({"single_label_classification", "multi_label_classification", "regression"});
  flags.Add("ignore_mismatched_sizes", &o.ignore_mismatched_sizes,
            "give fresh values to parameters whose shape in the model's file differs; otherwise "
            "these are an error");
}

void AddDataFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Data");
  flags.Add("train_file", &o.train_file, "training data").ValueName("FILE").KeepCommas();
  flags.Add("validation_file", &o.validation_file, "evaluation data")
      .ValueName("FILE")
      .KeepCommas();
  flags.Add("test_file", &o.test_file, "data to predict labels for; labels in it are ignored")
      .ValueName("FILE")
      .KeepCommas();
  flags.Add(
      "text_columns", &o.text_columns,
      "one or two columns of text, by name or number (default: sentence1,sentence2 if there are "
      "such columns, else the first one or two that are not the label)");
  flags.Add("label_column", &o.label_column, "column of the labels, by name or number");
  flags
      .Add(
          "max_seq_length", &o.max_seq_length,
          "cut longer texts to N tokens; auto: to as many as the longest training text has, but no "
          "more than the model takes")
      .Min(1)
      .Word("auto", 0);
  flags.Add("max_train_samples", &o.max_train_samples, "use only the first N rows of --train_file")
      .Min(1);
  flags
      .Add("max_eval_samples", &o.max_eval_samples,
           "use only the first N rows of --validation_file")
      .Min(1);
  flags
      .Add("max_predict_samples", &o.max_predict_samples,
           "use only the first N rows of --test_file")
      .Min(1);
  flags.Add("invalid_utf8", &o.invalid_utf8, "what happens to text that is not UTF-8")
      .Choices({"error", "replace"});
  flags
      .Add("dataset_cache", &o.dataset_cache,
           "folder that keeps the tokenized data, which then need not fit into memory; none: keep "
           "them in memory; auto: lathe/datasets beside the Hub's cache for a file of 16 MiB or "
           "more, else memory")
      .ValueName("DIR");
  flags.Add("overwrite_cache", &o.overwrite_cache,
            "tokenize the data anew even if --dataset_cache has them");
}

void AddTaskFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("What to do (at least one of --do_train, --do_eval, --do_predict)");
  flags.Add("do_train", &o.do_train, "train on --train_file and save the model");
  flags.Add("do_eval", &o.do_eval, "evaluate on --validation_file at the end");
  flags.Add("do_predict", &o.do_predict, "predict the labels of --test_file");
  flags.Add("output_dir", &o.output_dir, "folder to write the model and all results to")
      .ValueName("DIR");
  flags.Add(
      "overwrite_output_dir", &o.overwrite_output_dir,
      "allow an --output_dir that is not empty (to train) or holds another model (to evaluate)");
}

// It is long because it is a table: one statement for each flag.
void AddTrainingFlags(FlagTable& flags, FinetuneArguments& o, DropInInputs& inputs) {
  flags.Group("Training");
  flags
      .Add("per_device_train_batch_size", &o.per_device_train_batch_size,
           "samples in a training batch of each process")
      .Min(1)
      .Max(kMostSamples);
  flags
      .Add("per_device_eval_batch_size", &o.per_device_eval_batch_size,
           "samples in an evaluation batch of each process")
      .Min(1)
      .Max(kMostSamples);
  flags
      .Add("gradient_accumulation_steps", &o.gradient_accumulation_steps,
           "batches whose gradients make one optimizer step")
      .Min(1)
      .Max(kMostSamples);
  flags.Add("num_train_epochs", &o.num_train_epochs, "passes over the training data")
      .Min(0)
      .Max(kMostEpochs);
  flags
      .Add("max_steps", &o.max_steps,
           "number of optimizer steps; if above 0, it replaces --num_train_epochs")
      .Min(-1)
      .Max(kMostSteps);
  flags.Add("learning_rate", &o.learning_rate, "peak learning rate of AdamW").Min(0);
  flags
      .Add("weight_decay", &o.weight_decay,
           "weight decay of all parameters except biases and normalization layers")
      .Min(0);
  flags.Add("adam_beta1", &o.adam_beta1, "AdamW's decay rate of the first moment").Min(0).Max(1);
  flags.Add("adam_beta2", &o.adam_beta2, "AdamW's decay rate of the second moment").Min(0).Max(1);
  flags.Add("adam_epsilon", &o.adam_epsilon, "AdamW's epsilon").Min(0);
  flags.Add("max_grad_norm", &o.max_grad_norm, "clip the gradients to this norm; 0: no clipping")
      .Min(0);
  flags.Add("lr_scheduler_type", &o.lr_scheduler_type, "learning-rate schedule")
      .Choices(ScheduleNames());
  flags
      .Add("lr_scheduler_kwargs", &o.lr_scheduler_kwargs,
           "options of the schedule, such as '{\"min_lr\":1e-6}' for cosine_with_min_lr")
      .ValueName("JSON")
      .TakesJson();
  flags
      .Add("warmup_steps", &inputs.warmup_steps,
           "number of steps in which the learning rate rises from 0; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("warmup_ratio", &o.warmup_ratio,
           "--warmup_steps as a share of all steps, from 0 to 1; used if --warmup_steps is 0")
      .Min(0)
      .Max(1);
  flags
      .Add(
          "device", &o.device,
          "what computes: auto (GPUs if there is one for each process, else the CPU), cpu, cuda (a "
          "GPU for each process) or cuda:NUMBER")
      .ValueName("NAME");
  flags.Add(
      "cuda_graphs", &o.cuda_graphs,
      "on a GPU, record the training passes once for all batches of similar shape and repeat the "
      "recording");
  flags
      .Add("mixed_precision", &o.mixed_precision,
           "precision of activations and products: bf16 is bfloat16, fp16 is float16 with loss "
           "scaling, on GPUs only; everything else is float32")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("bf16", &o.bf16, "short for --mixed_precision bf16");
  flags.Add("fp16", &o.fp16, "short for --mixed_precision fp16");
  flags
      .Add("fp16_init_scale", &o.fp16_init_scale,
           "first loss scale of fp16, which then adapts itself")
      .Min(1e-4)
      .Max(1e38);
  flags.Add(
      "gradient_checkpointing", &o.gradient_checkpointing,
      "keep fewer activations for the backward pass and compute the others again; saves memory, "
      "takes time");
  flags.Add(
      "deterministic", &o.deterministic,
      "compute the same bits in every run on a GPU, too, whatever LATHE_TUNE says; on the CPU "
      "this is always so");
  flags.Add("shuffle_train", &o.shuffle_train, "shuffle the samples anew in each epoch");
  flags.Add("group_by_length", &o.group_by_length, "make batches of texts of similar length");
  flags.Add("dataloader_drop_last", &o.dataloader_drop_last, "leave out an incomplete last batch");
  flags.Add("seed", &o.seed, "seed of fresh weights, dropout and the order of samples").Min(0);
  flags.Add("data_seed", &o.data_seed, "seed of the order of samples (default: --seed)").Min(0);
}

void AddLossFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Loss (of training and evaluation, unless it says otherwise)");
  flags
      .Add("class_weights", &o.class_weights,
           "how much each class counts: none, balanced (by how rare it is in the training data), "
           "weights such as a=2,b=0.5, or a .json file with an object of them; with several labels "
           "at once, how much a row that has the label counts for it")
      .ValueName("WEIGHTS");
  flags
      .Add("sample_weight_column", &o.sample_weight_column,
           "column of --train_file with a number from 0 on: how much the row counts in training")
      .ValueName("NAME");
  flags
      .Add("label_smoothing_factor", &o.label_smoothing_factor,
           "share of each label that is spread evenly over all classes")
      .Min(0)
      .Max(1);
  flags
      .Add("focal_gamma", &o.focal_gamma,
           "exponent of the focal loss, by which rows that the model is sure of count less; 0: all "
           "count alike")
      .Min(0)
      .Max(100);
}

void AddTrainedFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("What is trained");
  flags
      .Add("freeze_layers", &o.freeze_layers,
           "parameters that stay as they are: N (the embeddings and the first N layers), "
           "embeddings, encoder, or a regular expression for their names")
      .ValueName("WHICH");
  flags
      .Add("head_learning_rate", &o.head_learning_rate,
           "peak learning rate of the head, which is all but the encoder; 0: --learning_rate")
      .Min(0);
  flags
      .Add("layerwise_lr_decay", &o.layerwise_lr_decay,
           "factor by which each layer's learning rate is lower than that of the layer above")
      .Min(0)
      .Max(1);
}

void AddLoggingFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Logging and evaluation while training");
  flags.Add("logging_steps", &o.logging_steps, "log every X steps; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags.Add("logging_strategy", &o.logging_strategy, "when to log")
      .Choices({"no", "steps", "epoch"});
  flags.Add("logging_first_step", &o.logging_first_step, "log the first step, too");
  flags.Add("eval_strategy", &o.eval_strategy, "when to evaluate")
      .Choices({"no", "steps", "epoch"});
  flags
      .Add("eval_steps", &o.eval_steps,
           "with --eval_strategy steps, evaluate every X steps; 0: as --logging_steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("eval_delay", &o.eval_delay,
           "evaluate while training from step or epoch X on, by --eval_strategy")
      .Min(0)
      .Max(kMostSteps);
  flags.Add("metric_for_best_model", &o.metric_for_best_model,
            "metric that decides which model is best, with or without \"eval_\" (default: loss)");
  flags.Add("greater_is_better", &o.greater_is_better,
            "whether a higher metric is better (default: true unless it is a loss or an error)");
  flags.Add("load_best_model_at_end", &o.load_best_model_at_end,
            "save the best model instead of the last one");
  flags.Add("disable_tqdm", &o.disable_tqdm, "show no progress bar");
  flags.Add("report", &o.report, "keep report.html, with curves of the training, in output_dir");
  flags
      .Add("log_level", &o.log_level,
           "with debug, report on standard error what the CUDA graphs do; the others are alike")
      .Choices({"debug", "info", "passive", "detail", "warning", "error", "critical"});
}

void AddEarlyStoppingFlags(FlagTable& flags, FinetuneArguments& o) {
  flags
      .Add("early_stopping_patience", &o.early_stopping_patience,
           "stop after N evaluations in a row without an improvement of --metric_for_best_model "
           "(default: train for all steps)")
      .Min(1);
  flags
      .Add("early_stopping_threshold", &o.early_stopping_threshold,
           "with --early_stopping_patience, only an improvement by more than this counts")
      .Min(0);
}

void AddTrackerFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Trackers");
  flags.Add("report_to", &o.report_to,
            "where to report numbers while training: tensorboard (event files), jsonl (a JSON "
            "object a line), all or none (default: none)");
  flags
      .Add("logging_dir", &o.logging_dir,
           "folder that the trackers write to (default: runs/TIME_HOST in --output_dir)")
      .ValueName("DIR");
}

void AddCheckpointFlags(FlagTable& flags, FinetuneArguments& o) {
  flags.Group("Checkpoints (Ctrl-C and SIGTERM save one, too)");
  flags
      .Add("save_strategy", &o.save_strategy,
           "when to save a checkpoint, with all that is needed to go on, in "
           "--output_dir/checkpoint-STEP")
      .Choices({"no", "steps", "epoch", "best"});
  flags
      .Add("save_steps", &o.save_steps,
           "with --save_strategy steps, save every X steps; below 1: a share of all steps")
      .Min(0)
      .Max(kMostSteps);
  flags
      .Add("save_seconds", &o.save_seconds,
           "with any --save_strategy but no, save X seconds after the last time, too; 0: never")
      .Min(0)
      .Max(1e9);
  flags
      .Add("save_total_limit", &o.save_total_limit,
           "keep the N newest checkpoints and the best one (default: all)")
      .Min(1);
  flags.Add(
      "save_only_model", &o.save_only_model,
      "save the model alone, which takes a third of the space; no training can go on from it");
  flags
      .Add("save_failure", &o.save_failure,
           "what happens if a checkpoint can't be written: continue warns and goes on training")
      .Choices({"continue", "stop"});
  flags
      .Add("resume_from_checkpoint", &o.resume_from_checkpoint,
           "go on from this checkpoint; true or nothing: from the newest whole one in "
           "--output_dir")
      .ValueName("DIR")
      .ImpliedValue("true");
  flags.Add("resume_anyway", &o.resume_anyway,
            "go on although data or options that decide on the results have changed");
  flags.Add("ignore_data_skip", &o.ignore_data_skip,
            "accepted and without effect, since no time is spent on data that were passed");
}

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

void ValidateLoss(const FinetuneArguments& o) {
  Require(o.do_train || o.class_weights != "balanced", "--class_weights balanced needs --do_train",
          "it counts the labels of the training data; without them, write LABEL=WEIGHT");
  Require(o.sample_weight_column.empty() || o.sample_weight_column != o.label_column,
          "--sample_weight_column and --label_column name the same column");
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
  Require(!o.do_eval || has_validation, "--do_eval needs --validation_file", kFileHint);
  Require(!o.do_predict || !o.test_file.empty(), "--do_predict needs --test_file", kFileHint);
  Require(!o.dataset_cache.empty(), "--dataset_cache must not be empty",
          "name a folder, or pass none to keep the data in memory");
  Require(o.text_columns.size() <= 2, "--text_columns takes one or two columns");
  if (o.text_columns.size() == 2 && o.text_columns[0] == o.text_columns[1]) {
    throw InvalidArgument("--text_columns names \"" + o.text_columns[0] + "\" twice");
  }
  CompleteTrainingArguments(o);
  ValidateLoss(o);
  ValidateDecision(o);
  Require(!o.do_train || o.eval_strategy == "no" || has_validation,
          "--eval_strategy needs --validation_file", kFileHint);
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

}  // namespace

ParsedOptions ParseOptions(const std::vector<std::string>& args) {
  ParsedOptions parsed;
  FinetuneArguments& o = parsed.options;
  bool help = false;
  std::string json_config;
  DropInInputs inputs;
  bool help_transformers = false;
  FlagTable flags(kUsage);
  AddModelFlags(flags, o);
  AddDataFlags(flags, o);
  AddRowFlags(flags, o);
  AddTaskFlags(flags, o);
  AddTrainingFlags(flags, o, inputs);
  AddLossFlags(flags, o);
  AddTrainedFlags(flags, o);
  AddLoggingFlags(flags, o);
  AddEarlyStoppingFlags(flags, o);
  AddTrackerFlags(flags, o);
  AddDecisionFlags(flags, o);
  AddCheckpointFlags(flags, o);
  AddGeneralFlags(flags, o, help, json_config);
  AddDropInFlags(flags, o, inputs);
  flags
      .Add("help_transformers", &help_transformers,
           "list the options of Transformers' scripts that are taken without an effect, or refused")
      .CommandLineOnly();
  AddTransformersOptions(flags);

  parsed.names = flags.Names();
  const std::string help_text = flags.Help();  // before parsing, because it shows the defaults
  const std::string arguments_file = !args.empty() && IsOptionsFile(args[0]) ? args[0] : "";
  std::vector<std::string> positional = flags.Parse(args);
  if (help || help_transformers) {
    parsed.help = help ? help_text : DescribeTransformersOptions();
    return parsed;
  }
  if (!arguments_file.empty()) positional.erase(positional.begin());
  if (!positional.empty()) {
    throw InvalidArgument("unexpected argument \"" + positional[0] + "\"",
                          IsOptionsFile(positional[0])
                              ? "a file of arguments stands first; --help lists the options"
                              : "a value stands right after its option; --help lists the options");
  }
  ApplyFiles(flags, arguments_file, json_config);
  TranslateDropInFlags(flags, inputs, o);
  if (!flags.given("gradient_accumulation_steps"))
    o.gradient_accumulation_steps = ReadAccumulationSteps();
  ReadPrecision(flags, o);
  ValidateRowFlags(flags, o);
  Validate(o);
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::vector<std::string> own = {"output_dir",   "num_threads",   "overwrite_output_dir",
                                        "disable_tqdm", "json_config",   "resume_from_checkpoint",
                                        "run_name",     "dataset_cache", "overwrite_cache",
                                        "token",        "cache_dir",     "logging_dir"};
  const std::vector<std::string> files = {"model_name_or_path", "config_name", "tokenizer_name",
                                          "train_file",         "test_file",   "validation_file",
                                          "class_weights"};
  parsed.values = flags.PresentValues();
  parsed.values.erase("token");
  for (const auto& [name, value] : flags.GivenValues()) {
    if (in(own, name)) continue;
    if (in(files, name)) {
      parsed.files.emplace_back("--" + name, AbsolutePaths(value));
    } else {
      parsed.shared.emplace_back("--" + name, value);
    }
  }
  return parsed;
}

}  // namespace lathe
