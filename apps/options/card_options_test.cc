// Tests that a model card tells of all options that change the trained model, and that a resume
// compares them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "lathe/apps/options/options.h"
#include "lathe/core/base/file.h"
#include "lathe/tests/tiny_bert.h"
#include "lathe/train/checkpoint/resume_settings.h"
#include "lathe/train/support/hyperparameters.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Json = nlohmann::ordered_json;

// Returns what is parsed of the fewest options of a training and these.
ParsedOptions Parse(const Args& more) {
  Args args = {"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
               "--output_dir",         "o"};
  args.insert(args.end(), more.begin(), more.end());
  return ParseOptions(args);
}

// Returns the hyperparameters on the card of that training.
Json Card(const Args& more) { return TrainerHyperparameters(Parse(more).options); }

// These change nothing in the model: they are about files, prints, speed, checkpoints and results.
// The last line has those that other parts of the card tell.
const std::set<std::string> kChangeNoModel = {
    "cache_dir", "test_file", "max_predict_samples", "dataset_cache", "overwrite_cache", "do_train",
    "do_eval", "do_predict", "output_dir", "overwrite_output_dir", "device", "cuda_graphs",
    "gradient_checkpointing", "deterministic", "logging_steps", "logging_strategy",
    "logging_first_step", "disable_tqdm", "loss_curve", "report", "log_level", "report_to",
    "logging_dir", "save_strategy", "save_steps", "save_seconds", "save_total_limit",
    "save_only_model", "save_failure", "resume_from_checkpoint", "ignore_data_skip", "num_threads",
    "ddp_timeout", "shard_optimizer", "share_parameters", "metric_name", "run_name", "use_cpu",
    "shuffle_train_dataset", "remove_splits",
    // other parts
    "model_name_or_path", "train_file", "validation_file"};

struct Sample {
  std::string value;
  Args context = {};  // without which the option changes nothing, or is refused
};

// A value of each other option that is not its default. It is long because it is a table: one row
// for each option.
std::map<std::string, Sample> Samples() {
  const Args evaluates = {"--validation_file", "v.csv", "--eval_strategy", "steps"};
  Args decides = evaluates;
  decides.push_back("--load_best_model_at_end");
  const Args fits = {"--validation_file", "v.csv", "--do_eval"};
  return {
      {"model_revision", {"v2"}},
      {"config_name", {"c"}},
      {"tokenizer_name", {"t"}},
      {"config_overrides", {"hidden_dropout_prob=0"}},
      {"num_labels", {"3"}},
      {"problem_type", {"regression"}},
      {"ignore_mismatched_sizes", {"true"}},
      {"text_columns", {"a,b"}},
      {"text_column_names", {"a,b"}},
      {"text_column_delimiter", {"; ", {"--text_column_names", "a,b"}}},
      {"label_column", {"kind"}},
      {"max_seq_length", {"auto"}},
      {"max_train_samples", {"5"}},
      {"max_eval_samples", {"5", decides}},
      {"invalid_utf8", {"replace"}},
      {"validation_split", {"0.1"}},
      {"drop_duplicates", {"true"}},
      {"per_device_train_batch_size", {"16"}},
      {"per_device_eval_batch_size", {"16"}},
      {"gradient_accumulation_steps", {"2"}},
      {"num_train_epochs", {"2"}},
      {"max_steps", {"7"}},
      {"learning_rate", {"1e-4"}},
      {"weight_decay", {"0.1"}},
      {"optim", {"sgd"}},
      {"optim_args", {"momentum=0.9", {"--optim", "sgd"}}},
      {"adam_beta1", {"0.8"}},
      {"adam_beta2", {"0.8"}},
      {"adam_epsilon", {"1e-6"}},
      {"max_grad_norm", {"0"}},
      {"lr_scheduler_type", {"cosine"}},
      {"lr_scheduler_kwargs", {"{\"min_lr\":1e-6}", {"--lr_scheduler_type", "cosine_with_min_lr"}}},
      {"warmup_steps", {"5"}},
      {"warmup_ratio", {"0.1"}},
      {"mixed_precision", {"bf16"}},
      {"bf16", {"true"}},
      {"fp16", {"true"}},
      {"fp16_init_scale", {"8", {"--fp16"}}},
      {"shuffle_train", {"false"}},
      {"group_by_length", {"true"}},
      {"dataloader_drop_last", {"true"}},
      {"seed", {"7"}},
      {"data_seed", {"7"}},
      {"class_weights", {"a=2,b=0.5"}},
      {"sample_weight_column", {"weight"}},
      {"label_smoothing_factor", {"0.1"}},
      {"focal_gamma", {"2"}},
      {"freeze_layers", {"embeddings"}},
      {"head_learning_rate", {"1e-3"}},
      {"layerwise_lr_decay", {"0.9"}},
      {"load_best_model_at_end", {"true", evaluates}},
      {"metric_for_best_model", {"accuracy", decides}},
      {"greater_is_better", {"true", decides}},
      {"eval_strategy", {"epoch", decides}},
      {"eval_steps", {"3", decides}},
      {"eval_delay", {"4", decides}},
      {"early_stopping_patience", {"2", evaluates}},
      {"early_stopping_threshold",
       {"0.1",
        {"--validation_file", "v.csv", "--eval_strategy", "epoch", "--early_stopping_patience",
         "2"}}},
      {"resume_anyway", {"true", {"--resume_from_checkpoint"}}},
      {"thresholds", {"tune", fits}},
      {"calibrate", {"temperature", fits}},
      {"task_name", {"sst2"}},
      {"do_regression", {"true"}},
      {"train_sampling_strategy", {"sequential"}}};
}

// A new option belongs into one of the two lists. If it changes the model, it needs a row in
// train/support/hyperparameters.cc.
TEST(CardOptions, EachOptionThatChangesTheModelIsOnTheCard) {
  const std::map<std::string, Sample> samples = Samples();
  const nlohmann::json values = Parse({}).values;
  for (const auto& [name, value] : values.items()) {
    const auto sample = samples.find(name);
    ASSERT_NE(sample == samples.end(), kChangeNoModel.count(name) == 0)
        << name << " must be in one of the two lists";
    if (sample == samples.end()) continue;
    const Args& context = sample->second.context;
    Args args = context;
    args.insert(args.end(), {"--" + name, sample->second.value});
    EXPECT_NE(Card(args), Card(context)) << name;
  }
  EXPECT_EQ(values.size(), samples.size() + kChangeNoModel.size());
}

TEST(CardOptions, ADefaultTrainingHasTransformersListAlone) {
  Args names;
  const Json card = Card({});
  for (const auto& [name, value] : card.items()) names.push_back(name);
  EXPECT_EQ(names, (Args{"learning_rate", "train_batch_size", "eval_batch_size", "seed",
                         "optimizer", "lr_scheduler_type", "num_epochs"}));
}

TEST(CardOptions, ValuesAreThoseThatWereGiven) {
  const Json card = Card({"--label_smoothing_factor",
                          "0.1",
                          "--class_weights",
                          "a=2,b=0.5",
                          "--sample_weight_column",
                          "weight",
                          "--freeze_layers",
                          "embeddings",
                          "--head_learning_rate",
                          "1e-3",
                          "--layerwise_lr_decay",
                          "0.9",
                          "--max_seq_length",
                          "auto",
                          "--no_shuffle_train",
                          "--data_seed",
                          "7",
                          "--text_column_names",
                          "a,b",
                          "--text_column_delimiter",
                          "\n"});
  EXPECT_EQ(card.at("label_smoothing_factor"), 0.1);
  EXPECT_EQ(card.at("class_weights"), "a=2,b=0.5");
  EXPECT_EQ(card.at("sample_weight_column"), "weight");
  EXPECT_EQ(card.at("freeze_layers"), "embeddings");
  EXPECT_EQ(card.at("head_learning_rate"), 1e-3);
  EXPECT_EQ(card.at("layerwise_lr_decay"), 0.9);
  EXPECT_EQ(card.at("max_seq_length"), "auto");
  EXPECT_EQ(card.at("shuffle_train"), false);
  EXPECT_EQ(card.at("data_seed"), 7);
  EXPECT_EQ(card.at("text_column_names"), "a,b");
  EXPECT_EQ(card.at("text_column_delimiter"), "\"\\n\"");
}

TEST(CardOptions, WhatDecidesNothingIsNotTold) {
  const Args evaluates = {"--validation_file",  "v.csv", "--eval_strategy", "steps",
                          "--eval_steps",       "3",     "--eval_delay",    "4",
                          "--max_eval_samples", "5"};
  const Json card = Card(evaluates);
  for (const char* name : {"eval_strategy", "eval_steps", "eval_delay", "max_eval_samples"})
    EXPECT_FALSE(card.contains(name)) << name;
  EXPECT_FALSE(Card({"--fp16_init_scale", "8"}).contains("fp16_init_scale"));
  EXPECT_FALSE(Card({"--resume_anyway"}).contains("resume_anyway"));
}

TEST(CardOptions, PathsLoseTheirFolders) {
  const std::string folder =
      testing::TempDir() + "/card_options_test_" + std::to_string(getpid()) + "_";
  const std::string file = folder + "weights.json";
  WriteFileAtomically(file, R"({"a": 2, "b": 1})");
  const std::string name = file.substr(file.rfind('/') + 1);
  const Json card =
      Card({"--class_weights", file, "--config_name", file, "--tokenizer_name", "owner/name"});
  std::remove(file.c_str());
  EXPECT_EQ(card.at("class_weights"), name);
  EXPECT_EQ(card.at("config_name"), name);
  EXPECT_EQ(card.at("tokenizer_name"), "owner/name");
}

// A program that embeds Lathe has no options, and its cards tell the same.
TEST(CardOptions, ArgumentsOfATrainerAreTold) {
  TrainingArguments arguments;
  EXPECT_EQ(TrainerHyperparameters(arguments), Card({}));
  arguments.focal_gamma = 2;
  EXPECT_EQ(TrainerHyperparameters(arguments).at("focal_gamma"), 2);
}

// These reach what a resume compares through the data, the tokenizer and the model's own settings.
const std::set<std::string> kSeenInDataOrModel = {"model_revision",
                                                  "config_name",
                                                  "tokenizer_name",
                                                  "config_overrides",
                                                  "num_labels",
                                                  "problem_type",
                                                  "ignore_mismatched_sizes",
                                                  "text_columns",
                                                  "text_column_names",
                                                  "text_column_delimiter",
                                                  "label_column",
                                                  "max_seq_length",
                                                  "max_train_samples",
                                                  "max_eval_samples",
                                                  "invalid_utf8",
                                                  "validation_split",
                                                  "drop_duplicates",
                                                  "class_weights",
                                                  "sample_weight_column",
                                                  "label_smoothing_factor",
                                                  "focal_gamma",
                                                  "task_name",
                                                  "do_regression"};

// These may change at a resume. The checkpoint holds the scale of fp16. The others decide when the
// training ends, which model is saved in the end, and what its evaluation fits.
const std::set<std::string> kMayChange = {"per_device_eval_batch_size",
                                          "fp16_init_scale",
                                          "load_best_model_at_end",
                                          "early_stopping_patience",
                                          "early_stopping_threshold",
                                          "resume_anyway",
                                          "thresholds",
                                          "calibrate"};

// A new option that changes the model belongs into SettingsThatMatter or into one of the two lists.
// Otherwise a training could go on with another value, and nobody would know.
TEST(CardOptions, EachOptionThatChangesTheModelIsComparedOnAResume) {
  const auto settings = [](const Args& args) {
    const TrainingArguments arguments = Parse(args).options;
    const int64_t steps = arguments.max_steps > 0
                              ? arguments.max_steps
                              : static_cast<int64_t>(arguments.num_train_epochs * 100);
    return SettingsThatMatter(arguments, *TinyData(8), TinyData(6).get(), *TinyBert(), nullptr, 1,
                              steps);
  };
  for (const auto& [name, sample] : Samples()) {
    Args with = sample.context;
    with.insert(with.end(), {"--" + name, sample.value});
    const bool differs = !Differences(settings(sample.context), settings(with)).empty();
    EXPECT_NE(differs, kSeenInDataOrModel.count(name) + kMayChange.count(name) > 0) << name;
  }
}

}  // namespace
}  // namespace lathe
