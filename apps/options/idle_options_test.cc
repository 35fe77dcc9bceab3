#include "lathe/apps/options/idle_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/options/options.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

// Returns the lines about a training with the fewest options and these.
Args Idle(const Args& more) {
  Args args = {"--model_name_or_path", "m", "--train_file",      "t.csv", "--do_train",
               "--output_dir",         "o", "--validation_file", "v.csv"};
  args.insert(args.end(), more.begin(), more.end());
  return IdleOptions(ParseOptions(args).options);
}

TEST(IdleOptions, ADefaultTrainingHasNone) { EXPECT_EQ(Idle({}), Args()); }

// Each line names the option, and what would give it an effect.
TEST(IdleOptions, EachIsNamedOnce) {
  const std::vector<std::pair<Args, std::string>> cases = {
      {{"--max_steps", "9", "--num_train_epochs", "2"},
       "num_train_epochs has no effect beside --max_steps"},
      {{"--optim", "sgd", "--adam_beta1", "0.8"},
       "adam_beta1 has no effect unless --optim is AdamW"},
      {{"--optim", "sgd", "--adam_beta2", "0.8"},
       "adam_beta2 has no effect unless --optim is AdamW"},
      {{"--optim", "sgd", "--adam_epsilon", "1e-6"},
       "adam_epsilon has no effect unless --optim is AdamW"},
      {{"--lr_scheduler_type", "constant", "--warmup_steps", "5"},
       "warmup_steps has no effect with this --lr_scheduler_type"},
      {{"--lr_scheduler_type", "constant", "--warmup_ratio", "0.1"},
       "warmup_ratio has no effect with this --lr_scheduler_type"},
      {{"--warmup_steps", "5", "--warmup_ratio", "0.1"},
       "warmup_ratio has no effect beside --warmup_steps"},
      {{"--fp16_init_scale", "8"}, "fp16_init_scale has no effect without --fp16"},
      {{"--no_shuffle_train", "--data_seed", "7"},
       "data_seed has no effect with --no_shuffle_train"},
      {{"--dataset_cache", "none", "--overwrite_cache"},
       "overwrite_cache has no effect with --dataset_cache none"},
      {{"--text_column_delimiter", ";"},
       "text_column_delimiter has no effect unless --text_column_names has two columns or more"},
      {{"--text_column_names", "a", "--text_column_delimiter", ";"},
       "text_column_delimiter has no effect unless --text_column_names has two columns or more"},
      {{"--logging_strategy", "epoch", "--logging_steps", "5"},
       "logging_steps has no effect without --logging_strategy steps"},
      {{"--eval_steps", "5"}, "eval_steps has no effect without --eval_strategy steps"},
      {{"--eval_strategy", "epoch", "--eval_steps", "5"},
       "eval_steps has no effect without --eval_strategy steps"},
      {{"--eval_delay", "2"}, "eval_delay has no effect without --eval_strategy"},
      {{"--metric_for_best_model", "accuracy"},
       "metric_for_best_model has no effect without --eval_strategy"},
      {{"--greater_is_better", "true"}, "greater_is_better has no effect without --eval_strategy"},
      {{"--logging_dir", "logs"}, "logging_dir has no effect without --report_to"},
      {{"--save_strategy", "epoch", "--save_steps", "5"},
       "save_steps has no effect without --save_strategy steps"},
      {{"--save_strategy", "no", "--save_seconds", "5"},
       "save_seconds has no effect with --save_strategy no"},
      {{"--save_total_limit", "2"},
       "save_total_limit has nothing to limit; --save_strategy or --save_steps saves checkpoints"}};
  for (const auto& [args, line] : cases) EXPECT_EQ(Idle(args), Args{"--" + line});
}

TEST(IdleOptions, WhatHasAnEffectIsNotNamed) {
  for (const Args& args :
       {Args{"--num_train_epochs", "2"}, Args{"--adam_beta1", "0.8"},
        Args{"--lr_scheduler_type", "constant_with_warmup", "--warmup_steps", "5"},
        Args{"--warmup_ratio", "0.1"}, Args{"--fp16", "--fp16_init_scale", "8"},
        Args{"--no_shuffle_train", "--group_by_length", "--data_seed", "7"},
        Args{"--overwrite_cache"}, Args{"--logging_steps", "5"},
        Args{"--text_column_names", "a,b", "--text_column_delimiter", ";"},
        Args{"--logging_strategy", "no", "--logging_steps", "5", "--eval_strategy", "steps"},
        Args{"--eval_strategy", "steps", "--eval_steps", "5", "--eval_delay", "2"},
        Args{"--eval_strategy", "epoch", "--metric_for_best_model", "accuracy",
             "--greater_is_better", "true"},
        Args{"--report_to", "jsonl", "--logging_dir", "logs"}, Args{"--save_steps", "5"},
        Args{"--save_strategy", "epoch", "--save_seconds", "5", "--save_total_limit", "2"}})
    EXPECT_EQ(Idle(args), Args()) << args[0] << " " << args.back();
}

}  // namespace
}  // namespace lathe
