// Tests that bad input gives one error line and the right exit code, and leaves nothing
// half-written.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

class CliErrorTest : public CliTest {
 protected:
  void ExpectNothingWritten() const { EXPECT_FALSE(Exists("out")); }
};

TEST_F(CliErrorTest, UnknownFlag) {
  const RunResult run = Train({"--learing_rate", "1"});
  ExpectError(run, "unknown option --learing_rate", 2);
  EXPECT_NE(run.err.find("did you mean --learning_rate?"), std::string::npos);
  ExpectError(Train({"--learning_rate", "abc"}), "--learning_rate must be a number but is \"abc\"",
              2);
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, MoreLabelsThanNumLabels) {
  Write("train.csv", "sentence,label\na,x\nb,y\nc,z\n");
  ExpectError(Train({"--num_labels", "2"}), "train.csv: 3 labels (x, y, z) but --num_labels is 2",
              2);
  EXPECT_NE(Train({"--num_labels", "1"}).err.find("hint: leave --num_labels out or raise it"),
            std::string::npos);
  Write("train.csv", "sentence,label\na,1\nb,2\nc,3\n");
  EXPECT_NE(Train({"--num_labels", "1"}).err.find("hint: pass --problem_type regression"),
            std::string::npos);
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, LabelThatTrainingNeverSaw) {
  Write("dev.csv", "sentence,label\na,positive\nb,7\n");
  ExpectError(Train({"--do_eval"}), "dev.csv:3: ");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, BrokenFiles) {
  Write("train.csv", "sentence,label\na,positive,more\n");
  ExpectError(Train({}), "train.csv:2: ");
  Write("train.csv", "sentence,label\na \xff,positive\nb,negative\n");
  ExpectError(Train({}), "train.csv:2: ");
  Write("train.csv", "");
  ExpectError(Train({}), "train.csv: ");
  ExpectError(Train({"--train_file", Path("none.csv")}), "none.csv: ");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, ConfigBrokenOrUnsupported) {
  SetConfig({{"model_type", "lstm"}});
  ExpectError(Train({}), "model_type \"lstm\"");
  SetConfig({{"model_type", "bert"}, {"hidden_size", "big"}});
  ExpectError(Train({}), "\"hidden_size\"");
  SetConfig({{"hidden_size", 15}});
  ExpectError(Train({}), "15");
  SetConfig({{"hidden_size", 16}, {"problem_type", "foo"}});
  ExpectError(Train({}), "\"problem_type\" \"foo\" is not one that Lathe has");
  SetConfig({{"problem_type", nullptr}});
  std::string config = Read("model/config.json");
  config.insert(1, "\"deep\": " + std::string(200000, '[') + std::string(200000, ']') + ",");
  Write("model/config.json", config);
  ExpectError(Train({}), "config.json: the JSON is nested more than 200 levels deep");
  Write("model/config.json", "{\"model_type\": \"bert\", \"foo\": 1e999}");
  ExpectError(Train({}), "config.json: number overflow");
  Write("model/config.json", "{\n\"model_type\": ");
  ExpectError(Train({}), "config.json:2");
  std::filesystem::remove(Path("model/config.json"));
  ExpectError(Train({}), "config.json");
  ExpectError(Train({"--config_name", Path("nowhere")}), "nowhere: no such folder (--config_name)");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, BrokenTokenizer) {
  Write("model/tokenizer_config.json", "{\"model_max_length\": 1e999}");
  ExpectError(Train({}), "tokenizer_config.json: number overflow");
  std::filesystem::remove(Path("model/tokenizer_config.json"));
  Write("model/tokenizer.json", "{\n");
  const RunResult run = Train({});
  ExpectError(run, "tokenizer.json:2: not valid JSON: parse error");
  EXPECT_NE(run.err.find("hint: take the file from the model's source again"), std::string::npos);
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, VocabularySmallerThanTheConfigSays) {
  SetConfig({{"vocab_size", 99}});
  ExpectError(Train({}), "but vocab_size is 99 in ");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, HintNamesTheFlagOfAMismatch) {
  std::filesystem::create_directories(Path("other"));
  Write("other/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfilm\n");
  const auto expect_hint = [](const RunResult& run, const std::string& hint) {
    ExpectError(run, "but vocab_size is ");
    EXPECT_NE(run.err.find("hint: " + hint), std::string::npos) << run.err;
  };
  const std::string config = "--config_name " + Path("model");
  const RunResult other = Train({"--tokenizer_name", Path("other")});
  expect_hint(other, "--tokenizer_name " + Path("other") + " does not belong to " + config +
                         "; name the folder of its own tokenizer, or pass --config_overrides "
                         "vocab_size=6\n");
  ExpectError(other, Path("other/vocab.txt") + ": the tokenizer has 6 tokens but vocab_size is 31");
  EXPECT_EQ(Train({"--tokenizer_name", Path("other"), "--config_overrides", "vocab_size=6",
                   "--max_steps", "1", "--output_dir", Path("small")})
                .exit_code,
            0);
  expect_hint(Train({"--config_overrides", "vocab_size=99"}),
              "--config_overrides sets vocab_size; leave it out or set it to 31\n");
  expect_hint(Train({"--model_name_or_path", Path("small")}),
              config + " does not belong to --model_name_or_path " + Path("small") +
                  ", whose tokenizer is used; leave it out or pass --tokenizer_name\n");

  // The hint also names the flag if the tokenizer is too large, once a text has an id beyond
  // vocab_size.
  SetConfig({{"vocab_size", 6}});
  std::filesystem::create_directories(Path("larger"));
  Write("larger/vocab.txt", Read("model/vocab.txt"));
  const RunResult larger = Train({"--tokenizer_name", Path("larger")});
  ExpectError(larger, "but the model's vocab_size is 6");
  EXPECT_NE(larger.err.find("hint: --tokenizer_name " + Path("larger")), std::string::npos);
}

TEST_F(CliErrorTest, PredictWithACutOffVocabulary) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const std::string vocab = Read("out/vocab.txt");
  Write("out/vocab.txt", vocab.substr(0, vocab.find("##s")));
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "the film"}),
              Path("out/vocab.txt") + ": the tokenizer has 30 tokens but vocab_size is 31 in ");
}

TEST_F(CliErrorTest, IdsBeyondVocabSize) {
  SetConfig({{"vocab_size", 20}});
  ExpectError(Train({}), "but the model's vocab_size is 20");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, SequenceLongerThanMaxPositionEmbeddings) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "film ";
  Write("train.csv", "sentence,label\na,positive\nb,negative\n" + text + ",positive\n");
  const RunResult run = Train({});
  ExpectError(run, "train.csv:4: 52 tokens, but the model's max_position_embeddings allows 32");
  EXPECT_NE(run.err.find("hint: pass --max_seq_length 32"), std::string::npos);
  ExpectNothingWritten();
  EXPECT_EQ(Train({"--max_seq_length", "32"}).exit_code, 0);
}

TEST_F(CliErrorTest, OutputFolderIsNotEmpty) {
  std::filesystem::create_directories(Path("out"));
  Write("out/mine", "1");
  ExpectError(Train({}), "out: output_dir is not empty", 2);
  EXPECT_EQ(Read("out/mine"), "1");
  EXPECT_EQ(Train({"--overwrite_output_dir", "--max_steps", "1"}).exit_code, 0);
  EXPECT_EQ(Read("out/mine"), "1");
}

TEST_F(CliErrorTest, FolderInTheWayIsNoticedBeforeTraining) {
  std::filesystem::create_directories(Path("out/model.safetensors"));
  const RunResult run = Train({"--overwrite_output_dir"});
  ExpectError(run, "out/model.safetensors: is a folder but must be a file of the model");
  EXPECT_EQ(run.out, "");
}

TEST_F(CliErrorTest, NothingOfTheOldModelStays) {
  std::filesystem::create_directories(Path("out/vocab.json"));  // a folder is not a model's file
  const std::vector<std::string> old = {"tokenizer.json",     "spiece.model",
                                        "pytorch_model.bin",  "model-00001-of-00002.safetensors",
                                        "eval_results.json",  "all_results.json",
                                        "predict_results.tsv"};
  const std::vector<std::string> others = {"model-a-of-b.safetensors", "notes.txt",
                                           "model-1-of-2.safetensors.old", "my_tokenizer.json"};
  for (const auto& names : {old, others})
    for (const auto& name : names) Write("out/" + name, "old");
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 2);
  ExpectError(Train({"--max_steps", "1", "--overwrite_output_dir", "--no_report"},
                    {.max_file_bytes = 2000}),
              "out/model.safetensors: ");
  for (const auto& name : old) EXPECT_TRUE(Exists("out/" + name)) << name;

  const RunResult run = Train({"--max_steps", "1", "--overwrite_output_dir"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const auto& name : old) {
    if (name == "all_results.json") continue;  // written anew
    EXPECT_FALSE(Exists("out/" + name)) << name;
  }
  EXPECT_NE(Read("out/all_results.json"), "old");
  for (const auto& name : others) EXPECT_EQ(Read("out/" + name), "old") << name;
  EXPECT_TRUE(Exists("out/vocab.json"));
  EXPECT_EQ(RunProgram("lathe", {"predict", Path("out"), "the film"}).exit_code, 0);
}

TEST_F(CliErrorTest, FullDiskKeepsTheOldModel) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const std::string before = Read("out/model.safetensors");
  const RunResult run = Train({"--max_steps", "2", "--overwrite_output_dir", "--no_report"},
                              {.max_file_bytes = 2000});
  ExpectError(run, "out/model.safetensors: ");
  EXPECT_NE(run.out.find("no copy of the last good model can be kept"), std::string::npos)
      << run.out;
  EXPECT_EQ(Read("out/model.safetensors"), before);
  for (const auto& entry : std::filesystem::directory_iterator(Path("out"))) {
    EXPECT_EQ(entry.path().filename().string().find(".partial"), std::string::npos);
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos);
  }
}

TEST_F(CliErrorTest, MetricThatDoesNotExist) {
  const RunResult run = Train({"--eval_strategy", "epoch", "--metric_for_best_model", "acuracy"});
  ExpectError(run, "metric_for_best_model must be one of accuracy", 2);
  EXPECT_EQ(run.err.find("per_second"), std::string::npos) << run.err;
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, ValuesThatOnlyTheModelOrTheDataRefuse) {
  ExpectError(
      Train({"--lr_scheduler_type", "cosine_with_min_lr"}),
      "lr_scheduler_type cosine_with_min_lr: expected exactly one of min_lr and min_lr_rate "
      "but got neither",
      2);
  ExpectError(Train({"--config_overrides", "hidden_dropout_prob=1.5"}),
              "--config_overrides: \"hidden_dropout_prob\" must be", 2);
  ExpectError(Train({"--config_overrides", "num_attention_heads=4,hidden_size=33"}),
              "--config_overrides: \"hidden_size\" 33 is not a multiple", 2);
  ExpectError(Train({"--config_overrides", "model_type=lstm"}),
              "--config_overrides: model_type \"lstm\" is not one", 2);
  ExpectError(Train({"--config_overrides", "hiden_size=3"}), "--config_overrides: ", 2);
  ExpectError(Train({"--config_overrides", "hidden_size=x"}), "--config_overrides: ", 2);
  ExpectError(Train({"--max_seq_length", "2"}),
              "--max_seq_length must be at least 3, for 2 special tokens and one of the text, but "
              "is 2",
              2);
  Write("train.csv", "sentence1,sentence2,label\na,b,x\nb,c,y\n");
  ExpectError(Train({"--max_seq_length", "4"}), "must be at least 5, for 3 special tokens", 2);
  Write("train.csv", "sentence,label\na,0.5\nb,1.5\n");
  ExpectError(Train({"--num_labels", "2"}), "--num_labels is 2 but the labels are numbers", 2);
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, WeightsOfAnotherShape) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const std::vector<std::string> narrower = {
      "--model_name_or_path", Path("out"),    "--config_overrides", "intermediate_size=24",
      "--output_dir",         Path("narrow"), "--max_steps",        "1"};
  const RunResult run = Train(narrower);
  ExpectError(run, "file has [32, 16], model [24, 16]");
  EXPECT_NE(run.err.find("with --ignore_mismatched_sizes"), std::string::npos) << run.err;
  std::string config = Read("out/config.json");
  const std::string size = "\"intermediate_size\": 32";
  ASSERT_NE(config.find(size), std::string::npos) << config;
  Write("out/config.json",
        config.replace(config.find(size), size.size(), "\"intermediate_size\": 24"));
  const RunResult predict = RunProgram("lathe", {"predict", Path("out"), "the film"});
  ExpectError(predict, "file has [32, 16], model [24, 16]");
  EXPECT_EQ(predict.err.find("ignore_mismatched_sizes"), std::string::npos) << predict.err;
}

TEST_F(CliErrorTest, NoWholeBatch) {
  const RunResult run = Train({"--dataloader_drop_last", "--per_device_train_batch_size", "100"});
  ExpectError(run, "train.csv: 96 samples do not fill a batch of 100");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, FolderInsteadOfAFile) {
  ExpectError(Train({"--train_file", Path("model")}),
              "model: is a folder but --train_file must be a file");
  ExpectError(Train({"--do_eval", "--validation_file", Path("model")}),
              "model: is a folder but --validation_file must be a file");
  ExpectNothingWritten();
}

TEST_F(CliErrorTest, ResultsGoBesideTheirOwnModelOnly) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  ASSERT_EQ(Train({"--max_steps", "1", "--output_dir", Path("other")}).exit_code, 0);
  std::filesystem::create_directories(Path("mine"));
  Write("mine/notes.txt", "1");
  const auto evaluate = [&](const std::string& out, bool overwrite = false) {
    std::vector<std::string> args = {
        "--model_name_or_path", Path("out"),    "--do_eval", "--validation_file",
        Path("dev.csv"),        "--output_dir", Path(out)};
    if (overwrite) args.push_back("--overwrite_output_dir");
    return RunProgram("finetune", args);
  };
  const std::string model = Read("other/model.safetensors");
  ExpectError(evaluate("other"), "other: --output_dir holds another model");
  EXPECT_FALSE(Exists("other/eval_results.json"));
  for (const std::string out : {"out", "out", "mine"}) EXPECT_EQ(evaluate(out).exit_code, 0) << out;
  EXPECT_EQ(evaluate("other", true).exit_code, 0);
  EXPECT_TRUE(Exists("other/eval_results.json"));
  EXPECT_EQ(Read("other/model.safetensors"), model);
}

TEST_F(CliErrorTest, OutputThatCannotBeWritten) {
  const RunOptions full = {.stdout_path = "/dev/full"};
  ExpectError(Train({"--do_eval"}, full), "standard output: cannot be written");
  EXPECT_TRUE(Exists("out/eval_results.json"));
  EXPECT_EQ(RunProgram("lathe", {"predict", Path("out"), "the film"}).exit_code, 0);
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "the film"}, full), "standard output: ");
  ExpectError(RunProgram("lathe", {"predict", "--help"}, full), "standard output: ");
  ExpectError(RunProgram("lathe", {"--help"}, full), "standard output: ");
  ExpectError(RunProgram("finetune", {"--help"}, full), "standard output: ");
}

}  // namespace
}  // namespace lathe
