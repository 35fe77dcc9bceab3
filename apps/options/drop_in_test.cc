// Tests that command lines of Transformers' scripts mean the same here, or are refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lathe/apps/options/idle_options.h"
#include "lathe/apps/options/options.h"
#include "lathe/apps/options/transformers_options.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/optimizer_arguments.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

Args WithFewest(const Args& more) {
  Args args = {"--model_name_or_path", "m", "--train_file",      "t.csv", "--do_train",
               "--output_dir",         "o", "--validation_file", "v.csv"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

FinetuneArguments Parse(const Args& more) { return ParseOptions(WithFewest(more)).options; }

// Returns "message|hint" of the error that the arguments cause.
std::string ErrorOf(const Args& more) {
  try {
    Parse(more);
  } catch (const Error& e) {
    return e.message() + "|" + e.hint();
  }
  return "no error";
}

// Returns the arguments of Transformers: of TrainingArguments and of the scripts.
Json Arguments() {
  static const Json table =
      ParseJson(ReadFile("apps/options/testdata/transformers_arguments.json"));
  return table.at("arguments");
}

TEST(DropInTest, EveryArgumentOfTransformersIsKnown) {
  ASSERT_GT(Arguments().size(), 150u);
  for (const Json& argument : Arguments()) {
    const std::string name = argument.at("name");
    const bool is_switch = argument.at("type") == "bool";
    // Without its value, an option that takes one is an error of its own.
    const std::string error = ErrorOf({"--" + name});
    EXPECT_EQ(error.find("unknown option"), std::string::npos) << name;
    EXPECT_EQ(error.find("needs a value") != std::string::npos,
              !is_switch && name != "resume_from_checkpoint")
        << name << ": " << error;
  }
}

// A program may write all arguments of a run to a file, with their defaults.
TEST(DropInTest, TheDefaultsOfTransformersAreTaken) {
  Json all = Json::object();
  for (const Json& argument : Arguments()) all[argument.at("name")] = argument.at("default");
  all.update({{"model_name_or_path", "m"},
              {"train_file", "t.csv"},
              {"do_train", true},
              {"output_dir", "o"}});
  const std::string path =
      testing::TempDir() + "/drop_in_test_" + std::to_string(getpid()) + ".json";
  WriteFileAtomically(path, DumpJson(all));
  const FinetuneArguments o = ParseOptions({path}).options;
  std::remove(path.c_str());
  EXPECT_EQ(o.per_device_eval_batch_size, 8);  // differs from Lathe's default
  EXPECT_EQ(o.save_strategy, "steps");
  EXPECT_EQ(o.device, "auto");
  EXPECT_EQ(o.learning_rate, 5e-5);
  EXPECT_TRUE(o.shuffle_train);
}

// TrainingArguments.to_json_string() writes all of its fields, some as objects. The file needs but
// the model and the data.
TEST(DropInTest, ADumpOfTrainingArgumentsIsTaken) {
  Json dump = ParseJson(ReadFile("apps/options/testdata/training_arguments_dump.json"));
  ASSERT_GT(dump.size(), 100u);
  dump.update({{"model_name_or_path", "m"}, {"train_file", "t.csv"}, {"validation_file", "v.csv"}});
  const std::string path =
      testing::TempDir() + "/drop_in_dump_" + std::to_string(getpid()) + ".json";
  WriteFileAtomically(path, DumpJson(dump));
  const FinetuneArguments o = ParseOptions({path}).options;
  std::remove(path.c_str());
  EXPECT_TRUE(o.do_train && o.do_eval && o.load_best_model_at_end);
  EXPECT_EQ(o.output_dir, "out");
  EXPECT_EQ(o.per_device_train_batch_size, 4);
  EXPECT_EQ(o.learning_rate, 1e-3);
  EXPECT_EQ(o.num_train_epochs, 2);
  EXPECT_EQ(o.lr_scheduler_type, "cosine_with_min_lr");
  EXPECT_EQ(o.lr_scheduler_kwargs, "{\"min_lr\":1e-06}");
  EXPECT_EQ(o.warmup_ratio, 0.1);
  EXPECT_EQ(o.label_smoothing_factor, 0.1);
  EXPECT_EQ(o.eval_strategy, "epoch");
  EXPECT_EQ(o.save_strategy, "epoch");
  EXPECT_EQ(o.save_total_limit, 1);
  EXPECT_EQ(o.metric_for_best_model, "accuracy");
  EXPECT_EQ(o.seed, 7);
  EXPECT_EQ(o.device, "cpu");
  EXPECT_EQ(IdleOptions(o), Args());
}

// HfArgumentParser takes a switch without a value, and with one of ten words.
TEST(DropInTest, EverySwitchTakesTheWordsOfHfArgumentParser) {
  const auto refused = [](const std::string& error) {
    return error.find("must be true or false") != std::string::npos;
  };
  for (const Json& argument : Arguments()) {
    if (argument.at("type") != "bool") continue;
    const std::string name = "--" + argument.at("name").get<std::string>();
    const std::string yes = ErrorOf({name}), no = ErrorOf({name, "false"});
    for (const char* word : {"True", "true", "yes", "t", "Y", "1"})
      EXPECT_EQ(ErrorOf({name, word}), yes) << name << " " << word;
    for (const char* word : {"False", "no", "f", "N", "0"})
      EXPECT_EQ(ErrorOf({name, word}), no) << name << " " << word;
    EXPECT_EQ(ErrorOf({"--no_" + name.substr(2)}), no) << name;
    EXPECT_TRUE(refused(ErrorOf({name + "=maybe"}))) << name;
  }
}

TEST(DropInTest, WhatIsNotHarmlessIsRefusedWithAHint) {
  const Json own = ParseOptions(WithFewest({})).values;  // of all options but the token
  std::set<std::string> names;
  for (const TransformersOption& option : TransformersOptions()) {
    const std::string name(option.name);
    EXPECT_TRUE(names.insert(name).second) << name << " is in the table twice";
    ASSERT_TRUE(!own.contains(name) && name != "token") << name << " works now: drop its row";
    EXPECT_FALSE(option.reason.empty()) << name;
    EXPECT_EQ(option.instead.empty(), option.harmless == "*") << name;
    const bool is_switch = option.kind == FlagTable::Flag::Kind::kBool;
    int refused = 0;
    for (const std::string& value :
         is_switch ? Args{"true", "false"} : Args{"something_else", "17"}) {
      const std::string error = ErrorOf({"--" + name, value});
      if (IsHarmless(option, value)) {
        EXPECT_EQ(error, "no error") << name << " " << value;
      } else {
        ++refused;
        EXPECT_EQ(error, "--" + name + " " + value + " is not supported: " +
                             std::string(option.reason) + "|" + std::string(option.instead));
      }
    }
    EXPECT_EQ(refused > 0, option.harmless != "*") << name;
  }
}

TEST(DropInTest, ValuesThatWouldChangeSomethingAreRefused) {
  for (const Args& args : std::vector<Args>{{"--adafactor"},
                                            {"--label_names", "start", "end"},
                                            {"--fp16_full_eval"},
                                            {"--bf16_full_eval", "True"},
                                            {"--torch_compile", "true"},
                                            {"--torch_compile_mode", "default"},
                                            {"--push_to_hub"},
                                            {"--tf32", "True"},
                                            {"--fsdp", "full_shard"},
                                            {"--deepspeed", "ds.json"},
                                            {"--neftune_noise_alpha", "5"},
                                            {"--auto_find_batch_size"},
                                            {"--prediction_loss_only"},
                                            {"--eval_on_start"},
                                            {"--average_tokens_across_devices", "False"},
                                            {"--accelerator_config", "{\"split_batches\": true}"},
                                            {"--dataset_name", "imdb"},
                                            {"--remove_columns", "id"},
                                            {"--remove_splits", "unused,test"},
                                            {"--shuffle_train_dataset", "--max_train_samples=9"},
                                            {"--shuffle_train_dataset", "--no_shuffle_train"},
                                            {"--save_safetensors", "False"},
                                            {"--use_liger_kernel"}}) {
    const std::string error = ErrorOf(args);
    EXPECT_NE(error.find(args[0] + " "), std::string::npos) << args[0] << ": " << error;
    EXPECT_NE(error.find(" is not supported"), std::string::npos) << args[0] << ": " << error;
    EXPECT_FALSE(error.ends_with("|")) << args[0] << " has no hint";
  }
}

TEST(DropInTest, ValuesThatChangeNothingAreTaken) {
  for (const Args& args :
       std::vector<Args>{{"--optim", "adamw_torch"},
                         {"--optim", "adamw_torch_fused"},
                         {"--pad_to_max_length", "False"},
                         {"--overwrite_cache"},
                         {"--shuffle_train_dataset"},
                         {"--shuffle_train_dataset", "False", "--max_train_samples", "9"},
                         {"--remove_splits", "unused"},
                         {"--dataloader_num_workers", "4"},
                         {"--use_fast_tokenizer", "False"},
                         {"--fp16_full_eval", "false"},
                         {"--label_names", "labels"},
                         {"--gradient_checkpointing_kwargs", "{\"use_reentrant\": false}"},
                         {"--local-rank=3"},
                         {"--log_level", "error"},
                         {"--torch_compile", "0"}}) {
    EXPECT_EQ(ErrorOf(args), "no error") << args[0];
  }
  // They need not agree on all ranks, and no error shows a secret.
  const ParsedOptions parsed =
      ParseOptions(WithFewest({"--local_rank", "1", "--hub_token", "secret"}));
  for (const auto& [name, value] : parsed.shared) {
    EXPECT_NE(name, "--local_rank");
    EXPECT_NE(value, "secret");
  }
}

TEST(DropInTest, OtherNamesMeanTheSame) {
  EXPECT_EQ(Parse({"--label_column_name", "class"}).label_column, "class");
  EXPECT_EQ(Parse({"--text_column_name", "review"}).text_column_names, Args{"review"});
  EXPECT_EQ(Parse({"--text_column_names", "title,body"}).text_column_names,
            (Args{"title", "body"}));
  EXPECT_EQ(Parse({"--text_column_names", "a,b"}).text_column_delimiter, " ");
  EXPECT_EQ(Parse({"--text_column_delimiter", "\\n"}).text_column_delimiter, "\\n");
  EXPECT_EQ(Parse({"--evaluation_strategy", "epoch"}).eval_strategy, "epoch");
  EXPECT_EQ(Parse({"--per_gpu_train_batch_size", "4"}).per_device_train_batch_size, 4);
  EXPECT_TRUE(Parse({"--full_determinism"}).deterministic);
  EXPECT_TRUE(Parse({"--activation_checkpointing"}).gradient_checkpointing);
  EXPECT_EQ(Parse({"--use_cpu"}).device, "cpu");
  EXPECT_EQ(Parse({"--no_cuda"}).device, "cpu");
  EXPECT_EQ(Parse({"--use_cpu", "False"}).device, "auto");
  EXPECT_EQ(Parse({"--run_name", "first try"}).run_name, "first try");
  EXPECT_EQ(Parse({"--metric_name", "f1"}).metric_name, "f1");
  EXPECT_EQ(Parse({"--do_regression"}).do_regression, true);
  EXPECT_EQ(Parse({"--do_regression", "False"}).do_regression, false);
  EXPECT_EQ(Parse({"--logging_strategy", "epoch"}).logging_strategy, "epoch");
  EXPECT_EQ(Parse({"--eval_delay", "2"}).eval_delay, 2);
}

TEST(DropInTest, Optimizers) {
  EXPECT_EQ(Parse({}).optim, "adamw_torch");
  for (const std::string& name : OptimizerNames()) EXPECT_EQ(Parse({"--optim", name}).optim, name);
  EXPECT_EQ(Parse({"--optim", "sgd", "--optim_args", "momentum=0.9,nesterov=true"}).optim_args,
            "momentum=0.9,nesterov=true");
  EXPECT_EQ(ErrorOf({"--optim", "adam"})
                .find("--optim must be one of adamw_torch, adamw_torch_fused, adamw_hf, sgd, "
                      "adafactor, lion, rmsprop, adagrad but is \"adam\""),
            0u);
  EXPECT_EQ(
      ErrorOf({"--optim_args", "momentum=0.9"}),
      "optim_args is for optim sgd, rmsprop, adagrad and lion, and the optimizer is AdamW|set "
      "adam_beta1, adam_beta2 and adam_epsilon instead");
}

TEST(DropInTest, WarmupBelowOneIsAShare) {
  EXPECT_EQ(Parse({"--warmup_steps", "100"}).warmup_steps, 100);
  EXPECT_EQ(Parse({"--warmup_steps", "0.1"}).warmup_steps, 0);
  EXPECT_EQ(Parse({"--warmup_steps", "0.1"}).warmup_ratio, 0.1);
  EXPECT_EQ(Parse({"--warmup_ratio", "0.2"}).warmup_ratio, 0.2);
  EXPECT_EQ(ErrorOf({"--warmup_steps", "1.5"}).find("--warmup_steps must be a whole number"), 0u);
  EXPECT_EQ(ErrorOf({"--warmup_steps", "0.1", "--warmup_ratio", "0.2"}),
            "--warmup_steps and --warmup_ratio contradict each other|leave one of them out");
}

TEST(DropInTest, SamplingStrategies) {
  EXPECT_TRUE(Parse({"--train_sampling_strategy", "random"}).shuffle_train);
  EXPECT_FALSE(Parse({"--train_sampling_strategy", "sequential"}).shuffle_train);
  const FinetuneArguments o = Parse({"--train_sampling_strategy", "group_by_length"});
  EXPECT_TRUE(o.group_by_length && o.shuffle_train);
  EXPECT_EQ(ErrorOf({"--train_sampling_strategy", "random", "--group_by_length"}),
            "--train_sampling_strategy and --group_by_length contradict each other|"
            "leave one of them out");
}

TEST(DropInTest, GlueTasksNameTheirColumns) {
  EXPECT_EQ(Parse({"--task_name", "mnli"}).text_columns, (Args{"premise", "hypothesis"}));
  EXPECT_EQ(Parse({"--task_name", "sst2"}).text_columns, Args{"sentence"});
  EXPECT_EQ(Parse({"--task_name", "sst2", "--text_columns", "t"}).text_columns, Args{"t"});
  EXPECT_EQ(Parse({"--task_name", "sst2", "--text_column_names", "a,b"}).text_columns, Args{});
  EXPECT_EQ(Parse({"--task_name", "stsb"}).do_regression, true);
  EXPECT_EQ(Parse({"--task_name", "rte"}).do_regression, false);
  EXPECT_EQ(Parse({"--task_name", "MRPC"}).task_name, "mrpc");  // as run_glue takes it
  EXPECT_EQ(ErrorOf({"--task_name", "sst3"}).find("--task_name must be one of cola, "), 0u);
}

// Lines of the scripts' own pages and tests, and of people's posts, with files in place of names of
// data sets.
TEST(DropInTest, DocumentedCommandLinesAreTaken) {
  for (const std::string line :
       {"--model_name_or_path google-bert/bert-base-cased --task_name mrpc --train_file t.csv "
        "--validation_file v.csv --do_train --do_eval --max_seq_length 128 "
        "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 "
        "--output_dir /tmp/mrpc/",
        "--model_name_or_path google-bert/bert-base-cased --task_name mrpc --train_file t.csv "
        "--validation_file v.csv --do_train --do_eval --max_seq_length 128 "
        "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 "
        "--output_dir /tmp/mrpc/ --fp16",
        "--model_name_or_path distilbert/distilbert-base-uncased --output_dir /tmp/o "
        "--train_file t.csv --validation_file v.csv --do_train --do_eval "
        "--per_device_train_batch_size=2 --per_device_eval_batch_size=1 --learning_rate=1e-4 "
        "--max_steps=10 --warmup_steps=2 --seed=42 --max_seq_length=128",
        "--model_name_or_path google-bert/bert-base-uncased --train_file t.json "
        "--validation_file v.json --test_file p.json --text_column_name review_body "
        "--text_column_delimiter \\n --label_column_name stars --metric_name accuracy --do_train "
        "--do_eval --do_predict --max_seq_length 512 --per_device_train_batch_size 32 "
        "--learning_rate 2e-5 --num_train_epochs 1 --output_dir /tmp/reviews/",
        "--model_name_or_path google-bert/bert-base-uncased --train_file t.json "
        "--validation_file v.json --remove_splits None --metric_name f1 --text_column_name text "
        "--label_column_name topics --do_train --do_eval --max_seq_length 512 "
        "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 15 "
        "--output_dir /tmp/reuters/",
        "--model_name_or_path m --train_file t.csv --validation_file v.csv --do_train True "
        "--do_eval True --evaluation_strategy epoch --save_strategy epoch "
        "--load_best_model_at_end True --metric_for_best_model eval_accuracy "
        "--greater_is_better True --warmup_ratio 0.1 --weight_decay 0.01 --save_total_limit 1 "
        "--overwrite_output_dir --pad_to_max_length False --fp16 False --seed 42 --report_to none "
        "--logging_strategy steps --logging_steps 50 --dataloader_num_workers 2 "
        "--optim adamw_torch --lr_scheduler_type cosine --gradient_accumulation_steps 2 "
        "--output_dir o"}) {
    Args args;
    std::istringstream words(line);
    for (std::string word; words >> word;) args.push_back(word);
    EXPECT_NO_THROW(ParseOptions(args)) << line;
  }
  EXPECT_EQ(ErrorOf({"--task_name", "qnli", "--do_predict"}),
            "--task_name qnli needs --test_file: finetune fetches no data set|"
            "pass a file with the columns question, sentence, label");
}

TEST(DropInTest, Contradictions) {
  const std::string end = " contradict each other|leave one of them out";
  EXPECT_EQ(ErrorOf({"--do_regression", "--problem_type", "single_label_classification"}),
            "--do_regression and --problem_type" + end);
  EXPECT_EQ(ErrorOf({"--task_name", "stsb", "--do_regression", "false"}),
            "--task_name and --do_regression" + end);
  EXPECT_EQ(ErrorOf({"--text_column_names", "a", "--text_columns", "b"}),
            "--text_column_names and --text_columns" + end);
  EXPECT_EQ(ErrorOf({"--use_cpu", "--device", "cuda"}), "--use_cpu and --device" + end);
}

TEST(DropInTest, HelpSaysThatSuchOptionsExist) {
  EXPECT_NE(ParseOptions({"--help"}).help->find("--help_transformers"), std::string::npos);
  EXPECT_EQ(ParseOptions({"--help"}).help->find("torch_compile"), std::string::npos);
  const std::string list = *ParseOptions({"--help_transformers"}).help;
  for (const TransformersOption& option : TransformersOptions())
    EXPECT_NE(list.find("--" + std::string(option.name) + "\n"), std::string::npos) << option.name;
}

}  // namespace
}  // namespace lathe
