#include "lathe/apps/options/options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "lathe/apps/options/options_testing.h"

namespace lathe {
namespace {

TEST(OptionsTest, ALossCurveNeedsTheBar) {
  EXPECT_FALSE(Parse({}).loss_curve);
  const ParsedOptions parsed = ParseOptions({"--model_name_or_path", "m", "--train_file", "t.csv",
                                             "--do_train", "--output_dir", "o", "--loss_curve"});
  EXPECT_TRUE(parsed.options.loss_curve);
  for (const auto& [name, value] : parsed.shared) EXPECT_NE(name, "--loss_curve");
  EXPECT_EQ(ErrorOf({"--loss_curve", "--disable_tqdm"}),
            "--loss_curve and --disable_tqdm exclude each other|the curve stands below the "
            "progress bar; leave one of them out");
}

TEST(OptionsTest, DefaultsAreTrainers) {
  const FinetuneArguments o = Parse({});
  EXPECT_TRUE(o.do_train);
  EXPECT_FALSE(o.do_eval);
  EXPECT_EQ(o.max_seq_length, 128);
  EXPECT_EQ(o.per_device_train_batch_size, 8);
  EXPECT_EQ(o.learning_rate, 5e-5);
  EXPECT_EQ(o.weight_decay, 0);
  EXPECT_EQ(o.adam_beta1, 0.9);
  EXPECT_EQ(o.adam_beta2, 0.999);
  EXPECT_EQ(o.adam_epsilon, 1e-8);
  EXPECT_EQ(o.max_grad_norm, 1);
  EXPECT_EQ(o.num_train_epochs, 3);
  EXPECT_EQ(o.max_steps, -1);
  EXPECT_EQ(o.lr_scheduler_type, "linear");
  EXPECT_EQ(o.logging_steps, 500);
  EXPECT_EQ(o.eval_strategy, "no");
  EXPECT_EQ(o.seed, 42);
  EXPECT_TRUE(o.shuffle_train);
}

TEST(OptionsTest, ThresholdsAndCalibration) {
  EXPECT_EQ(Parse({}).thresholds, "");
  EXPECT_EQ(Parse({}).calibrate, "no");
  const Args fits = {"--do_eval", "--validation_file", "v.csv"};
  const auto with = [&](Args more) {
    more.insert(more.end(), fits.begin(), fits.end());
    return more;
  };
  EXPECT_EQ(Parse(with({"--thresholds", "tune", "--calibrate", "temperature"})).thresholds, "tune");
  EXPECT_EQ(Parse({"--thresholds", "0.25"}).thresholds, "0.25");
  EXPECT_EQ(Parse({"--thresholds", "a=0.5,b=c=0.1"}).thresholds, "a=0.5,b=c=0.1");
  const auto expect = [](const Args& args, const std::string& part) {
    const std::string error = ErrorOf(args);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect({"--thresholds", "tune"}, "need --do_eval");
  expect({"--calibrate", "temperature"}, "need --do_eval");
  expect({"--thresholds", "1.5"}, "thresholds must be numbers from 0 to 1");
  expect({"--thresholds", "high"}, "thresholds must be numbers from 0 to 1");
  expect({"--thresholds", "a=0.5,b"}, "thresholds: \"b\" is no LABEL=THRESHOLD");
  expect({"--thresholds", "a=nan"},
         "thresholds: the threshold of label \"a\" must be a number from 0 to 1 but is \"nan\"");
  expect({"--thresholds", "a=0.1,a=0.2"}, "thresholds: label \"a\" has two thresholds");
  const std::string object = R"({"a, b": 0.3, "c=d": 1})";
  EXPECT_EQ(Parse({"--thresholds", object}).thresholds, object);
  expect({"--thresholds", "{\"a\": 2}"}, "thresholds: the threshold of label \"a\" must be ");
  expect({"--thresholds", "{\"a\": \"1\"}"}, "thresholds: the threshold of label \"a\" must be ");
  expect({"--thresholds", "{a: 1}"}, "thresholds:1:2: not valid JSON");
  expect({"--thresholds", "none.json"}, "none.json: No such file");
  expect({"--calibrate", "platt"}, "--calibrate");
}

TEST(OptionsTest, ValuesComeAfterSpaceOrEquals) {
  const FinetuneArguments o =
      Parse({"--learning_rate", "3e-5", "--seed=7", "--max-steps", "10", "--num_labels=3"});
  EXPECT_EQ(o.learning_rate, 3e-5);
  EXPECT_EQ(o.seed, 7);
  EXPECT_EQ(o.max_steps, 10);
  EXPECT_EQ(o.num_labels, 3);
}

TEST(OptionsTest, SwitchesHaveFourForms) {
  EXPECT_TRUE(Parse({"--group_by_length"}).group_by_length);
  EXPECT_TRUE(Parse({"--group_by_length", "True"}).group_by_length);
  EXPECT_FALSE(Parse({"--shuffle_train=false"}).shuffle_train);
  EXPECT_FALSE(Parse({"--no_shuffle_train"}).shuffle_train);
  EXPECT_FALSE(Parse({"--shuffle_train", "0"}).shuffle_train);
  EXPECT_EQ(Parse({"--no_greater_is_better"}).greater_is_better, false);
  EXPECT_EQ(Parse({}).greater_is_better, std::nullopt);
}

TEST(OptionsTest, ListsTakeCommasOrSpaces) {
  const Args two = {"question", "answer"};
  EXPECT_EQ(Parse({"--text_columns", "question,answer"}).text_columns, two);
  EXPECT_EQ(Parse({"--text_columns", "question", "answer", "--do_train"}).text_columns, two);
  EXPECT_EQ(ErrorOf({"--text_columns", "a,b,c"}),
            "--text_columns takes one or two columns|pass --text_column_names to join more columns "
            "to one text");
  EXPECT_EQ(ErrorOf({"--text_columns", "a,a"}),
            "--text_columns names \"a\" twice|name each column once");
  EXPECT_EQ(ErrorOf({"--text_columns", "a,,b"}),
            "--text_columns must be a list of names but is \"a,,b\"|");
}

TEST(OptionsTest, WrongValuesAreNamed) {
  EXPECT_EQ(ErrorOf({"--learning_rate", "abc"}),
            "--learning_rate must be a number but is \"abc\"|");
  EXPECT_EQ(ErrorOf({"--learning_rate", "nan"}),
            "--learning_rate must be a number but is \"nan\"|");
  EXPECT_EQ(ErrorOf({"--learning_rate", "-1"}),
            "--learning_rate must be at least 0 but is \"-1\"|");
  EXPECT_EQ(ErrorOf({"--warmup_ratio=1.5"}), "--warmup_ratio must be at most 1 but is \"1.5\"|");
  EXPECT_EQ(ErrorOf({"--seed", "1.5"}), "--seed must be a whole number but is \"1.5\"|");
  EXPECT_EQ(ErrorOf({"--seed", "99999999999999999999"}),
            "--seed must be a whole number but is \"99999999999999999999\"|");
  EXPECT_EQ(ErrorOf({"--do_eval=maybe"}), "--do_eval must be true or false but is \"maybe\"|");
  EXPECT_EQ(ErrorOf({"--seed"}), "--seed needs a value|");
  EXPECT_EQ(ErrorOf({"--seed", "--do_eval"}), "--seed needs a value|");
  EXPECT_EQ(ErrorOf({"--eval_strategy", "step"}),
            "--eval_strategy must be one of no, steps, epoch but is \"step\"|did you mean steps?");
  EXPECT_EQ(ErrorOf({"--logging_steps", "0"}), "logging_steps must be above 0|");
  EXPECT_EQ(ErrorOf({"stray"}),
            "unexpected argument \"stray\"|a value stands right after its option; --help lists the "
            "options");
}

TEST(OptionsTest, NoErrorShowsASecret) {
  const std::string error =
      "--use_auth_token must be true or false|a token is given by --token TOKEN";
  EXPECT_EQ(ErrorOf({"--use_auth_token", "hf_secret"}), error);
  EXPECT_EQ(ErrorOf({"--use-auth-token=hf_secret"}), error);
  EXPECT_EQ(ErrorOf({"--use_auth_token", "--seed", "1"}), "no error");
  for (const Args& args : {Args{"HF_TOKEN=hf_secret"}, Args{"--tokn", "hf_secret"},
                           Args{"--tokn=hf_secret"}, Args{"-token", "hf_secret"}}) {
    const std::string other = ErrorOf(args);
    EXPECT_NE(other, "no error");
    EXPECT_EQ(other.find("hf_secret"), std::string::npos) << other;
  }
}

TEST(OptionsTest, NumbersBeyondAllUse) {
  EXPECT_EQ(ErrorOf({"--num_train_epochs", "1e30"}),
            "--num_train_epochs must be at most 1e+06 but is \"1e30\"|");
  for (const std::string name :
       {"per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
        "max_steps", "warmup_steps", "logging_steps", "eval_steps"}) {
    EXPECT_EQ(ErrorOf({"--" + name, "9000000000000000000"}).find("--" + name + " must be at most"),
              0u)
        << name;
  }
}

TEST(OptionsTest, UnknownOptionsGetTheNearestName) {
  EXPECT_EQ(ErrorOf({"--learing_rate", "1"}),
            "unknown option --learing_rate|did you mean --learning_rate?");
  EXPECT_EQ(ErrorOf({"--zzzzzz"}), "unknown option --zzzzzz|--help lists the options");
  EXPECT_EQ(ErrorOf({"--no_learning_rate"}).substr(0, 32), "unknown option --no_learning_rat");
}

TEST(OptionsTest, OptionsMustFitTogether) {
  const std::string file = "name a .csv, .tsv, .json or .jsonl file";
  EXPECT_EQ(ErrorOf({"--output_dir", "o", "--model_name_or_path", "m"}, true),
            "nothing to do|pass at least one of --do_train, --do_eval, --do_predict");
  EXPECT_EQ(ErrorOf({"--do_train"}, true),
            "--output_dir is required|name the folder to write the model and the results to");
  const std::string part = ", or keep a part of --train_file for it with --validation_split 0.1";
  EXPECT_EQ(ErrorOf({"--do_eval"}), "--do_eval needs --validation_file|" + file + part);
  // Without a training there are no rows to keep a part of.
  EXPECT_EQ(ErrorOf({"--do_eval", "--do_train=false"}),
            "--do_eval needs --validation_file|" + file);
  EXPECT_EQ(ErrorOf({"--do_predict"}), "--do_predict needs --test_file|" + file);
  EXPECT_EQ(ErrorOf({"--eval_strategy", "epoch"}),
            "--eval_strategy needs --validation_file|" + file + part);
  EXPECT_EQ(ErrorOf({"--load_best_model_at_end"}),
            "load_best_model_at_end needs evaluations while training|"
            "set eval_strategy to steps or epoch");
}

TEST(OptionsTest, EarlyStopping) {
  const Args evaluates = {"--validation_file", "v.csv", "--eval_strategy", "epoch"};
  const auto with = [&](Args more) {
    more.insert(more.end(), evaluates.begin(), evaluates.end());
    return more;
  };
  EXPECT_EQ(Parse({}).early_stopping_patience, std::nullopt);
  const FinetuneArguments o =
      Parse(with({"--early_stopping_patience", "3", "--early_stopping_threshold", "0.01"}));
  EXPECT_EQ(o.early_stopping_patience, 3);
  EXPECT_EQ(o.early_stopping_threshold, 0.01);
  EXPECT_EQ(o.metric_for_best_model, "loss");
  EXPECT_EQ(ErrorOf({"--early_stopping_patience", "3"}),
            "early_stopping_patience needs evaluations while training|"
            "set eval_strategy to steps or epoch");
  EXPECT_EQ(ErrorOf(with({"--early_stopping_threshold", "0.01"})),
            "early_stopping_threshold needs early_stopping_patience|"
            "set early_stopping_patience to a number of evaluations");
  EXPECT_EQ(ErrorOf(with({"--early_stopping_patience", "0"})),
            "--early_stopping_patience must be at least 1 but is \"0\"|");
  EXPECT_EQ(ErrorOf(with({"--early_stopping_patience", "1", "--early_stopping_threshold", "-1"})),
            "--early_stopping_threshold must be at least 0 but is \"-1\"|");
  TrainingArguments program;
  program.early_stopping_patience = 0;
  EXPECT_THROW(CompleteTrainingArguments(program), Error);
}

TEST(OptionsTest, Bf16AndFp16AreShortForMixedPrecision) {
  const auto precision = [](Args args) {
    args.insert(args.end(), {"--do_eval", "--validation_file", "v.csv"});
    return Parse(args).mixed_precision;
  };
  EXPECT_EQ(precision({}), "no");
  EXPECT_EQ(precision({"--no_bf16"}), "no");
  EXPECT_EQ(precision({"--bf16"}), "bf16");
  EXPECT_EQ(precision({"--mixed_precision", "bf16"}), "bf16");
  EXPECT_EQ(precision({"--bf16", "--mixed_precision", "bf16"}), "bf16");
  const std::string contradiction =
      "--bf16 and --mixed_precision contradict each other|leave one of them out";
  EXPECT_EQ(ErrorOf({"--bf16", "--mixed_precision", "no"}), contradiction);
  EXPECT_EQ(ErrorOf({"--no_bf16", "--mixed_precision", "bf16"}), contradiction);
  EXPECT_EQ(ErrorOf({"--bf16", "--mixed_precision", "fp16"}), contradiction);
  EXPECT_EQ(precision({"--fp16"}), "fp16");
  EXPECT_EQ(precision({"--fp16", "--no_bf16"}), "fp16");
  EXPECT_EQ(precision({"--no_fp16"}), "no");
  EXPECT_EQ(precision({"--mixed_precision", "fp16"}), "fp16");
  EXPECT_EQ(ErrorOf({"--fp16", "--bf16"}),
            "--bf16 and --fp16 contradict each other|leave one of them out");
  EXPECT_EQ(ErrorOf({"--fp16", "--mixed_precision", "no"}),
            "--fp16 and --mixed_precision contradict each other|leave one of them out");
}

TEST(OptionsTest, Checkpoints) {
  const FinetuneArguments o = Parse({});
  EXPECT_EQ(o.save_strategy, "no");
  EXPECT_EQ(o.save_steps, 500);
  EXPECT_EQ(o.save_total_limit, std::nullopt);
  EXPECT_EQ(o.resume_from_checkpoint, "");
  EXPECT_EQ(Parse({"--resume_from_checkpoint"}).resume_from_checkpoint, "true");
  EXPECT_EQ(Parse({"--resume_from_checkpoint", "--seed", "1"}).resume_from_checkpoint, "true");
  EXPECT_EQ(Parse({"--resume_from_checkpoint", "True"}).resume_from_checkpoint, "true");
  EXPECT_EQ(Parse({"--resume_from_checkpoint", "false"}).resume_from_checkpoint, "");
  EXPECT_EQ(Parse({"--resume_from_checkpoint", "o/c/"}).resume_from_checkpoint, "o/c");
  // An empty shell variable must not lead to a hint about overwriting the checkpoints.
  for (const Args& args : {Args{"--resume_from_checkpoint="}, Args{"--resume_from_checkpoint", ""}})
    EXPECT_TRUE(ErrorOf(args).starts_with("--resume_from_checkpoint has an empty value|"));
  EXPECT_EQ(
      Parse({"--save_strategy", "best", "--validation_file", "v.csv", "--eval_strategy", "epoch"})
          .metric_for_best_model,
      "loss");
  EXPECT_EQ(ErrorOf({"--save_total_limit", "0"}).substr(0, 18), "--save_total_limit");
  EXPECT_EQ(ErrorOf({"--save_steps", "0"}), "save_steps must be above 0|");
}

// Otherwise they would do nothing without a word.
TEST(OptionsTest, HowOftenToSaveImpliesThatItIsWanted) {
  const auto strategy = [](const Args& args) { return Parse(args).save_strategy; };
  EXPECT_EQ(strategy({"--save_steps", "5"}), "steps");
  EXPECT_EQ(strategy({"--save_steps", "500"}), "steps");  // the default, and yet given
  EXPECT_EQ(strategy({"--save_seconds", "60"}), "steps");
  EXPECT_EQ(strategy({"--save_seconds", "0"}), "no");
  EXPECT_EQ(strategy({"--save_total_limit", "2"}), "no");
  EXPECT_EQ(strategy({"--save_steps", "5", "--save_strategy", "no"}), "no");
  EXPECT_EQ(strategy({"--save_seconds", "60", "--save_strategy", "epoch"}), "epoch");
}

TEST(OptionsTest, Trackers) {
  const Args all = {"tensorboard", "jsonl"};
  EXPECT_EQ(Parse({}).report_to, Args{});
  EXPECT_EQ(Parse({"--report_to", "none"}).report_to, Args{});
  EXPECT_EQ(Parse({"--report_to", "all"}).report_to, all);
  EXPECT_EQ(Parse({"--report_to", "tensorboard,jsonl"}).report_to, all);
  EXPECT_EQ(Parse({"--report_to", "tensorboard", "jsonl"}).report_to, all);
  EXPECT_EQ(ErrorOf({"--report_to", "tensorbord"}),
            "report_to must be tensorboard, jsonl, all or none but is \"tensorbord\"|did you mean "
            "tensorboard?");
  // Machines may have their folders in different places.
  const ParsedOptions parsed =
      ParseOptions({"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
                    "--output_dir", "o", "--logging_dir", "l", "--report_to", "jsonl"});
  EXPECT_EQ(parsed.options.logging_dir, "l");
  for (const auto& [name, value] : parsed.shared) EXPECT_NE(name, "--logging_dir");
}

TEST(OptionsTest, ValuesAreThoseOfAllOptions) {
  const nlohmann::json values =
      ParseOptions({"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
                    "--output_dir", "o", "--seed", "7", "--bf16", "--token", "secret",
                    "--text_columns", "a,b"})
          .values;
  EXPECT_EQ(values.at("seed"), 7);
  EXPECT_EQ(values.at("learning_rate"), 5e-5);
  EXPECT_EQ(values.at("bf16"), true);
  EXPECT_EQ(values.at("text_columns"), (Args{"a", "b"}));
  EXPECT_EQ(values.at("train_file"), (Args{"t.csv"}));
  EXPECT_TRUE(values.at("num_labels").is_null());
  for (const char* name : {"token", "help", "json_config"})
    EXPECT_FALSE(values.contains(name)) << name;
}

}  // namespace
}  // namespace lathe
