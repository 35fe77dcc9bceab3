// Runs command lines and files of arguments as people have them for run_glue and
// run_classification.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

class CliDropInTest : public CliTest {
 protected:
  // The command line of run_glue's README, with files in place of a task, and what users add to it.
  Args RunGlueCommand(const std::string& out) const {
    return {"--model_name_or_path",
            Path("pretrained"),
            "--train_file",
            Path("train.csv"),
            "--validation_file",
            Path("dev.csv"),
            "--do_train",
            "--do_eval",
            "--max_seq_length",
            "128",
            "--per_device_train_batch_size",
            "32",
            "--learning_rate",
            "2e-5",
            "--num_train_epochs",
            "3",
            "--output_dir",
            Path(out)};
  }
  void MakePretrained() const {
    ASSERT_EQ(Train({"--output_dir", Path("pretrained"), "--max_steps", "1"}).exit_code, 0);
  }
  RunResult Finetune(Args args, const Args& more = {}) const {
    args.insert(args.end(), {"--num_threads", "1"});
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("finetune", args);
  }
  // Returns the steps of the log's entries that have the key.
  std::vector<int64_t> StepsWith(const std::string& key) const {
    std::vector<int64_t> steps;
    const Json state = ReadJson("out/trainer_state.json");
    for (const Json& entry : state.at("log_history")) {
      if (entry.contains(key)) steps.push_back(entry.at("step"));
    }
    return steps;
  }
};

TEST_F(CliDropInTest, OptionsWithoutAnEffectChangeNoBit) {
  MakePretrained();
  const RunResult plain = Finetune(RunGlueCommand("plain"));
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  const RunResult run = Finetune(RunGlueCommand("out"), {"--pad_to_max_length",
                                                         "False",
                                                         "--overwrite_cache",
                                                         "--dataloader_num_workers",
                                                         "4",
                                                         "--use_fast_tokenizer",
                                                         "--fp16_full_eval",
                                                         "false",
                                                         "--save_strategy",
                                                         "no",
                                                         "--optim",
                                                         "adamw_torch",
                                                         "--label_names",
                                                         "labels",
                                                         "--ddp_find_unused_parameters",
                                                         "False",
                                                         "--remove_unused_columns",
                                                         "True",
                                                         "--log_level",
                                                         "error",
                                                         "--use_cpu",
                                                         "--run_name",
                                                         "mine",
                                                         "--metric_name",
                                                         "accuracy",
                                                         "--label_column_name",
                                                         "label",
                                                         "--text_column_names",
                                                         "sentence",
                                                         "--task_name",
                                                         "sst2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Read("out/model.safetensors"), Read("plain/model.safetensors"));
  EXPECT_EQ(ReadJson("out/eval_results.json").at("eval_loss"),
            ReadJson("plain/eval_results.json").at("eval_loss"));
}

TEST_F(CliDropInTest, AFileOfArgumentsIsTheSameAsACommandLine) {
  MakePretrained();
  ASSERT_EQ(Finetune(RunGlueCommand("plain")).exit_code, 0);
  const Json arguments = {{"model_name_or_path", Path("pretrained")},
                          {"train_file", Path("train.csv")},
                          {"validation_file", Path("dev.csv")},
                          {"do_train", true},
                          {"do_eval", true},
                          {"max_seq_length", 128},
                          {"per_device_train_batch_size", 32},
                          {"learning_rate", 2e-5},
                          {"num_train_epochs", 3.0},
                          {"num_threads", 1},
                          {"pad_to_max_length", false},
                          {"output_dir", Path("json")}};
  Write("args.json", DumpJson(arguments, 2));
  std::string yaml;
  for (const auto& [name, value] : arguments.items())
    yaml += name + ": " + (name == "output_dir" ? Path("yaml") : DumpJson(value)) + "\n";
  Write("args.yaml", yaml);
  for (const std::string kind : {"json", "yaml"}) {
    const RunResult run = RunProgram("finetune", {Path("args." + kind)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Read(kind + "/model.safetensors"), Read("plain/model.safetensors"));
  }
  Write("args.json", R"({"learning_rate": "fast"})");
  ExpectError(RunProgram("finetune", {Path("args.json")}),
              Path("args.json") + ": --learning_rate must be a number but is \"fast\"", 2);
  ExpectError(RunProgram("finetune", {Path("none.yaml")}), "none.yaml: No such file", 2);
}

// A program in Python may have written the file. The same values on a command line give the same.
TEST_F(CliDropInTest, ADumpOfTrainingArgumentsTrains) {
  Json dump = ParseJson(ReadFile("apps/options/testdata/training_arguments_dump.json"));
  dump.update({{"config_name", Path("model")},
               {"train_file", Path("train.csv")},
               {"validation_file", Path("dev.csv")},
               {"output_dir", Path("dump")},
               {"num_threads", 1}});
  Write("dump.json", DumpJson(dump));
  const RunResult run = RunProgram("finetune", {Path("dump.json")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out.find("has no effect"), std::string::npos) << run.out;
  const RunResult plain = RunProgram("finetune", {"--config_name",
                                                  Path("model"),
                                                  "--train_file",
                                                  Path("train.csv"),
                                                  "--validation_file",
                                                  Path("dev.csv"),
                                                  "--output_dir",
                                                  Path("plain"),
                                                  "--num_threads",
                                                  "1",
                                                  "--use_cpu",
                                                  "--do_train",
                                                  "--per_device_train_batch_size",
                                                  "4",
                                                  "--per_device_eval_batch_size",
                                                  "8",
                                                  "--learning_rate",
                                                  "1e-3",
                                                  "--num_train_epochs",
                                                  "2",
                                                  "--lr_scheduler_type",
                                                  "cosine_with_min_lr",
                                                  "--lr_scheduler_kwargs",
                                                  "{\"min_lr\": 1e-6}",
                                                  "--warmup_ratio",
                                                  "0.1",
                                                  "--label_smoothing_factor",
                                                  "0.1",
                                                  "--eval_strategy",
                                                  "epoch",
                                                  "--load_best_model_at_end",
                                                  "--metric_for_best_model",
                                                  "accuracy",
                                                  "--seed",
                                                  "7"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(Read("dump/model.safetensors"), Read("plain/model.safetensors"));
}

TEST_F(CliDropInTest, LogsAndEvaluatesByEpochs) {
  const RunResult run = Train({"--num_train_epochs", "4", "--logging_strategy", "epoch",
                               "--eval_strategy", "epoch", "--eval_delay", "3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(StepsWith("loss"), (std::vector<int64_t>{12, 24, 36, 48}));
  EXPECT_EQ(StepsWith("eval_loss"), (std::vector<int64_t>{36, 48}));
  const RunResult silent =
      Train({"--overwrite_output_dir", "--max_steps", "8", "--logging_strategy", "no",
             "--eval_strategy", "steps", "--eval_steps", "2", "--eval_delay", "5"});
  ASSERT_EQ(silent.exit_code, 0) << silent.err;
  EXPECT_EQ(StepsWith("loss"), std::vector<int64_t>());
  EXPECT_EQ(StepsWith("eval_loss"), (std::vector<int64_t>{6, 8}));
}

TEST_F(CliDropInTest, LabelsAreScoresOrNames) {
  std::string rows = "sentence,label\n", decimals = "sentence,label\n";
  for (int i = 0; i < 32; ++i) {
    rows += std::string(i % 2 ? "good film" : "bad film") + (i % 2 ? ",3\n" : ",1\n");
    decimals += std::string(i % 2 ? "good film" : "bad film") + (i % 2 ? ",1.5\n" : ",0.5\n");
  }
  Write("train.csv", rows);
  Write("dev.csv", rows);
  const Args eval = {"--do_eval", "--max_steps", "2", "--overwrite_output_dir"};
  const auto train = [&](Args more) {
    more.insert(more.end(), eval.begin(), eval.end());
    return Train(more);
  };
  ASSERT_EQ(train({"--do_regression", "--metric_name", "mse"}).exit_code, 0);
  EXPECT_TRUE(ReadJson("out/eval_results.json").contains("eval_mse"));
  ExpectError(train({"--do_regression", "--metric_name", "accuracy"}),
              "--metric_name must be one of loss, mse, pearson, spearmanr but is \"accuracy\"", 2);
  Write("train.csv", decimals);
  Write("dev.csv", decimals);
  ASSERT_EQ(train({"--do_regression", "False"}).exit_code, 0);
  EXPECT_TRUE(ReadJson("out/eval_results.json").contains("eval_accuracy"));
  Write("train.csv", "sentence,label\na,1\nb,x\n");
  ExpectError(train({"--do_regression"}), "train.csv:3: ");
}

TEST_F(CliDropInTest, SgdTrainsAndGoesOn) {
  const Args sgd = {"--optim",         "sgd",   "--optim_args",   "momentum=0.9,nesterov=True",
                    "--save_strategy", "steps", "--save_steps",   "4",
                    "--max_steps",     "8",     "--weight_decay", "0.1"};
  ASSERT_EQ(Train(sgd).exit_code, 0);
  const std::string whole = Read("out/model.safetensors");
  EXPECT_NE(Read("out/README.md")
                .find("SGD with momentum=0.9, dampening=0.0, nesterov=true and "
                      "weight_decay=0.1"),
            std::string::npos);
  Args again = sgd;
  again.insert(again.end(), {"--resume_from_checkpoint", Path("out/checkpoint-4"),
                             "--overwrite_output_dir", "--output_dir", Path("again")});
  ASSERT_EQ(Train(again).exit_code, 0);
  EXPECT_EQ(Read("again/model.safetensors"), whole);
  again[3] = "momentum=0.8,nesterov=True";
  ExpectError(Train(again), "optim_args momentum was 0.9 and is 0.8", 2);
  again[1] = "adamw_torch", again[3] = "";
  ExpectError(Train(again), "was sgd and is not set", 2);
  ExpectError(Train({"--optim", "sgd", "--optim_args", "momentun=0.9"}),
              "optim_args: sgd has no option \"momentun\"", 2);
}

TEST_F(CliDropInTest, WhatWouldChangeSomethingIsRefused) {
  const RunResult run = Train({"--torch_compile", "true"});
  ExpectError(run, "--torch_compile true is not supported: nothing is compiled at run time", 2);
  EXPECT_NE(run.err.find("hint: "), std::string::npos);
  EXPECT_FALSE(Exists("out"));
  const RunResult list = RunProgram("finetune", {"--help_transformers"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_NE(list.out.find("--torch_compile\n"), std::string::npos);
}

}  // namespace
}  // namespace lathe
