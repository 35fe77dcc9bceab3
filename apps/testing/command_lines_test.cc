// Runs command lines from the pages and tests of run_glue and run_classification. Nothing in them
// is changed but paths, and numbers of steps where they are large. A data set's name gives way to
// files, since finetune fetches none. Each does the same as a command in Lathe's own words.
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/safetensors/safetensors.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;
using Json = nlohmann::json;

// The lines have these words in place of paths.
constexpr char kFiles[] = " --train_file $TRAIN --validation_file $DEV";
constexpr char kCommit[] = "0123456789012345678901234567890123456789";

// Many pages have this line, for one task or another.
std::string ReadmeLine(const std::string& task) {
  return "--model_name_or_path google-bert/bert-base-cased --task_name " + task +
         " --do_train --do_eval --max_seq_length 128 --per_device_train_batch_size 32 "
         "--learning_rate 2e-5 --num_train_epochs 3 --output_dir $OUT";
}
// What it means, but for the columns and the kind of labels.
std::string ReadmeMeaning() {
  return "--model_name_or_path $MODEL --do_train --do_eval --max_seq_length 128 "
         "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3 ";
}

class CommandLinesTest : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    setenv("ACCELERATE_USE_CPU", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) unsetenv(name);
    for (const char* name : {"google-bert/bert-base-cased", "google-bert/bert-base-uncased",
                             "google-bert/bert-large-uncased-whole-word-masking",
                             "distilbert/distilbert-base-uncased", "distilbert-base-cased"}) {
      AddToCache(name);
    }
  }
  ~CommandLinesTest() override {
    unsetenv("ACCELERATE_USE_CPU");
    unsetenv("OMP_NUM_THREADS");
  }

  // Puts a tiny model without a classifier where the Hub's model would lie.
  void AddToCache(std::string name) {
    if (model_.empty()) MakeModel();
    for (size_t at = 0; (at = name.find('/', at)) != std::string::npos;) name.replace(at, 1, "--");
    const std::string folder = "hf/hub/models--" + name;
    fs::create_directories(Path(folder + "/refs"));
    fs::create_directories(Path(folder + "/snapshots"));
    Write(folder + "/refs/main", kCommit);
    fs::copy(model_, Path(folder + "/snapshots/" + kCommit));
  }
  void MakeModel() {
    ASSERT_EQ(Train({"--output_dir", Path("whole"), "--max_steps", "1", "--no_report"}).exit_code,
              0);
    model_ = Path("pretrained");
    fs::create_directories(model_);
    for (const char* name : {"config.json", "vocab.txt"})
      fs::copy(Path("model/") + name, model_ + "/" + name);
    const SafetensorsReader reader(Path("whole/model.safetensors"));
    std::vector<std::pair<std::string, Tensor>> encoder;
    for (const auto& [name, entry] : reader.entries()) {
      if (!name.starts_with("classifier.")) encoder.emplace_back(name, reader.Read(name));
    }
    WriteSafetensors(model_ + "/model.safetensors", encoder);
  }

  // Writes train.csv, dev.csv and test.csv. `row(i)` returns row i.
  template <typename Row>
  void WriteFiles(const std::string& header, const Row& row) const {
    const int ends[] = {0, 48, 72, 96};
    const char* const names[] = {"train.csv", "dev.csv", "test.csv"};
    for (int file = 0; file < 3; ++file) {
      std::string text = header + "\n";
      for (int i = ends[file]; i < ends[file + 1]; ++i) text += row(i) + "\n";
      Write(names[file], text);
    }
  }
  static std::string Text(int i) {
    const char* const moods[] = {"good", "bad", "dull", "great", "poor"};
    const char* const things[] = {"film", "plot", "story"};
    return std::string("the ") + things[i % 3] + " was " + moods[i % 5];
  }
  // The columns of MRPC's samples among the fixtures of Transformers' tests.
  void WriteMrpcSamples() const {
    WriteFiles("label,sentence1,sentence2", [](int i) {
      return (i % 2 == 0 ? "equivalent," : "not_equivalent,") + Text(i) + "," +
             Text(i % 2 == 0 ? i : i + 1);
    });
  }

  Args Words(std::string line) const {
    const std::pair<const char*, std::string> places[] = {{"$TRAIN", Path("train.csv")},
                                                          {"$DEV", Path("dev.csv")},
                                                          {"$TEST", Path("test.csv")},
                                                          {"$JOINED", Path("joined")},
                                                          {"$OUT", Path("out")},
                                                          {"$PLAIN", Path("plain")},
                                                          {"$MODEL", model_},
                                                          {"\"", ""}};
    for (const auto& [word, path] : places) {
      for (size_t at = 0; (at = line.find(word, at)) != std::string::npos; at += path.size())
        line.replace(at, std::string(word).size(), path);
    }
    Args args;
    std::istringstream words(line);
    for (std::string word; words >> word;) args.push_back(word);
    return args;
  }
  RunResult Run(const std::string& line, int num_processes = 0) const {
    Args args = Words(line);
    if (num_processes == 0) return RunProgram("finetune", args);
    args.insert(args.begin(), "apps/finetune/finetune");
    return Launch(num_processes, args);
  }
  // Expects a line to do what `meaning` does: the same model, metrics and predictions.
  void ExpectSame(const std::string& line, const std::string& meaning,
                  int num_processes = 0) const {
    SCOPED_TRACE(line);
    fs::remove_all(Path("out"));
    fs::remove_all(Path("plain"));
    const RunResult run = Run(line, num_processes);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const RunResult plain = Run(meaning + " --no_report --output_dir $PLAIN", num_processes);
    ASSERT_EQ(plain.exit_code, 0) << plain.err;
    EXPECT_EQ(Read("out/model.safetensors"), Read("plain/model.safetensors"));
    EXPECT_EQ(ReadJson("out/config.json").at("problem_type"),
              ReadJson("plain/config.json").at("problem_type"));
    ASSERT_EQ(Exists("out/predict_results.tsv"), Exists("plain/predict_results.tsv"));
    if (Exists("plain/predict_results.tsv")) {
      EXPECT_EQ(Read("out/predict_results.tsv"), Read("plain/predict_results.tsv"));
    }
    ASSERT_EQ(Exists("out/eval_results.json"), Exists("plain/eval_results.json"));
    if (!Exists("plain/eval_results.json")) return;
    const Json metrics = ReadJson("out/eval_results.json");
    const Json expected = ReadJson("plain/eval_results.json");
    for (const auto& [name, value] : expected.items()) {
      if (name.ends_with("runtime") || name.ends_with("per_second")) continue;
      EXPECT_EQ(metrics.at(name), value) << name;
    }
  }
  // Expects a line to be refused before anything is written, with the reason and what to do.
  void ExpectRefused(const std::string& line, const std::string& reason, const std::string& hint,
                     int exit_code = 2) const {
    SCOPED_TRACE(line);
    const RunResult run = Run(line);
    ExpectError(run, reason, exit_code);
    EXPECT_NE(run.err.find("\nhint: "), std::string::npos) << run.err;
    EXPECT_NE(run.err.find(hint), std::string::npos) << run.err;
    EXPECT_FALSE(Exists("out"));
  }

  std::string model_;
};

// The table of the page has this line's results for each $TASK_NAME.
TEST_F(CommandLinesTest, EachTaskOfRunGluesPage) {
  const std::pair<std::string, std::string> tasks[] = {{"cola", "sentence"},
                                                       {"sst2", "sentence"},
                                                       {"mrpc", "sentence1,sentence2"},
                                                       {"stsb", "sentence1,sentence2"},
                                                       {"qqp", "question1,question2"},
                                                       {"mnli", "premise,hypothesis"},
                                                       {"qnli", "question,sentence"},
                                                       {"rte", "sentence1,sentence2"},
                                                       {"wnli", "sentence1,sentence2"}};
  for (const auto& [task, columns] : tasks) {
    const bool pair = columns.find(',') != std::string::npos;
    // The other columns would be taken for texts if the task did not name its own.
    WriteFiles("kind,note," + columns + ",label,idx", [&, name = task](int i) {
      const std::string label = name == "stsb"   ? std::to_string(i % 5) + ".5"
                                : name == "mnli" ? std::to_string(i % 3)
                                                 : std::to_string(i % 2);
      return "a,b," + Text(i) + (pair ? "," + Text(i + i % 2) : "") + "," + label + "," +
             std::to_string(i);
    });
    const std::string kind = task == "stsb" ? "regression" : "single_label_classification";
    ExpectSame(ReadmeLine(task) + kFiles,
               ReadmeMeaning() + "--text_columns " + columns + " --problem_type " + kind + kFiles);
    EXPECT_EQ(ReadJson("out/eval_results.json").contains("eval_combined_score"),
              task == "mrpc" || task == "qqp" || task == "stsb");
  }
}

TEST_F(CommandLinesTest, OtherLinesOfRunGluesPages) {
  WriteFiles("text,label", [](int i) { return Text(i) + "," + std::to_string(i % 2); });
  // imdb, with files in place of --dataset_name.
  ExpectSame(
      "--model_name_or_path google-bert/bert-base-cased --train_file $TRAIN --test_file $TEST "
      "--do_train --do_predict --max_seq_length 128 --per_device_train_batch_size 32 "
      "--learning_rate 2e-5 --num_train_epochs 3 --output_dir $OUT",
      "--model_name_or_path $MODEL --do_train --do_predict --train_file $TRAIN --test_file $TEST "
      "--text_columns text --per_device_train_batch_size 32 --learning_rate 2e-5");
  WriteMrpcSamples();
  const std::string meaning =
      ReadmeMeaning() + "--text_columns sentence1,sentence2 --num_labels 2" + kFiles;
  // The options of logging from the page of the Trainer, and a cache that is made anew.
  ExpectSame(ReadmeLine("rte") + kFiles +
                 " --log_level error --log_level_replica error --log_on_each_node 0 "
                 "--overwrite_cache",
             meaning);
  // As Transformers' page on special hardware has it, without --use_mps_device.
  ExpectSame(ReadmeLine("rte") + kFiles + " --overwrite_output_dir", meaning);
  // The arguments in a file, which is the only argument.
  const Json arguments = {{"model_name_or_path", "google-bert/bert-base-cased"},
                          {"task_name", "rte"},
                          {"train_file", Path("train.csv")},
                          {"validation_file", Path("dev.csv")},
                          {"do_train", true},
                          {"do_eval", true},
                          {"max_seq_length", 128},
                          {"per_device_train_batch_size", 32},
                          {"learning_rate", 2e-5},
                          {"num_train_epochs", 3.0},
                          {"output_dir", Path("out")}};
  Write("args.json", DumpJson(arguments));
  ExpectSame(Path("args.json"), meaning);
}

TEST_F(CommandLinesTest, LinesOfTransformersTests) {
  WriteMrpcSamples();
  // test_pytorch_examples.py
  const std::string test_run_glue =
      "--model_name_or_path distilbert/distilbert-base-uncased --output_dir $OUT "
      "--train_file $TRAIN --validation_file $DEV --do_train --do_eval "
      "--per_device_train_batch_size=2 --per_device_eval_batch_size=1 --learning_rate=1e-4 "
      "--max_steps=10 --warmup_steps=2 --seed=42 --max_seq_length=128";
  const std::string meaning =
      "--model_name_or_path $MODEL --text_columns sentence1,sentence2 --do_train --do_eval "
      "--per_device_train_batch_size 2 --per_device_eval_batch_size 1 --learning_rate 1e-4 "
      "--max_steps 10 --warmup_steps 2" +
      std::string(kFiles);
  ExpectSame(test_run_glue, meaning);
  // As it was in versions of Transformers 4.
  ExpectSame(test_run_glue + " --overwrite_output_dir", meaning);
  // The hyperparameters of the tests on SageMaker, which writes them so.
  WriteFiles("premise,hypothesis,label",
             [](int i) { return Text(i) + "," + Text(2 * i) + "," + std::to_string(i % 3); });
  ExpectSame(
      "--do_eval True --do_predict True --do_train True --max_steps 5 "
      "--model_name_or_path distilbert-base-cased --output_dir $OUT --overwrite_output_dir True "
      "--per_device_eval_batch_size 16 --per_device_train_batch_size 16 --save_steps 5500 "
      "--task_name mnli --test_file $TEST" +
          std::string(kFiles),
      "--model_name_or_path $MODEL --text_columns premise,hypothesis --do_train --do_eval "
      "--do_predict --max_steps 5 --per_device_eval_batch_size 16 --per_device_train_batch_size 16 "
      "--test_file $TEST" +
          std::string(kFiles));
}

// What stands before the script, `torchrun --nproc_per_node 8` or `accelerate launch`, is `lathe
// launch --num_processes 2` here.
TEST_F(CommandLinesTest, LaunchedLines) {
  WriteFiles("premise,hypothesis,label",
             [](int i) { return Text(i) + "," + Text(2 * i) + "," + std::to_string(i % 3); });
  ExpectSame(
      "--model_name_or_path google-bert/bert-large-uncased-whole-word-masking --task_name mnli "
      "--do_train --do_eval --max_seq_length 128 --per_device_train_batch_size 8 "
      "--learning_rate 2e-5 --num_train_epochs 3.0 --output_dir $OUT" +
          std::string(kFiles),
      "--model_name_or_path $MODEL --text_columns premise,hypothesis --do_train --do_eval "
      "--learning_rate 2e-5" +
          std::string(kFiles),
      2);
  WriteMrpcSamples();
  ExpectSame(
      "--model_name_or_path google-bert/bert-base-cased --task_name rte --do_train --do_eval "
      "--max_seq_length 128 --per_device_train_batch_size 16 --learning_rate 5e-5 "
      "--num_train_epochs 3 --output_dir $OUT --overwrite_output_dir" +
          std::string(kFiles),
      "--model_name_or_path $MODEL --text_columns sentence1,sentence2 --do_train --do_eval "
      "--per_device_train_batch_size 16" +
          std::string(kFiles),
      2);
}

TEST_F(CommandLinesTest, LinesOfRunClassificationsPage) {
  const auto title = [](int i) { return Text(i + 1); };
  WriteFiles("review_id,stars,review_body,review_title,language,product_category", [&](int i) {
    return std::to_string(i) + "," + std::to_string(1 + i % 5) + "," + Text(i) + "," + title(i) +
           ",en,film";
  });
  // The texts that the page's delimiter makes: bash leaves a backslash and an n in quotes.
  for (const auto& [name, begin, end] : {std::tuple("train", 0, 48), {"dev", 48, 72}}) {
    std::string text = "text,stars\n";
    for (int i = begin; i < end; ++i)
      text += title(i) + "\\n" + Text(i) + "\\nfilm," + std::to_string(1 + i % 5) + "\n";
    Write(std::string("joined_") + name + ".csv", text);
  }
  const std::string begin = "--model_name_or_path google-bert/bert-base-uncased" +
                            std::string(kFiles) + " --shuffle_train_dataset";
  const std::string end =
      " --label_column_name stars --do_train --do_eval --max_seq_length 512 "
      "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 1 "
      "--output_dir $OUT";
  const std::string meaning =
      "--model_name_or_path $MODEL --label_column stars --do_train --do_eval --max_seq_length 512 "
      "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 1 ";
  const std::string columns = "review_title,review_body,product_category";
  const std::string joined = " --train_file $JOINED_train.csv --validation_file $JOINED_dev.csv";
  ExpectSame(begin + " --metric_name accuracy --text_column_name \"" + columns +
                 "\" --text_column_delimiter \"\\n\"" + end,
             meaning + "--text_columns text" + joined);
  ExpectSame(begin + " --metric_name accuracy --text_column_name review_body" + end,
             meaning + "--text_columns review_body" + kFiles);
  // The same reviews with options that the page does not use, but the script's help.
  ExpectSame(begin + " --do_regression True --metric_name mse --text_column_names " + columns +
                 " --text_column_delimiter \\n" + end,
             meaning + "--text_columns text --problem_type regression" + joined);
}

TEST_F(CommandLinesTest, SeveralLabelsOfRunClassificationsPage) {
  const auto rows = [](int begin, int end) {
    std::string text;
    for (int i = begin; i < end; ++i) {
      const Json topics = i % 4 == 0   ? Json::array({"earn", "acq"})
                          : i % 4 == 1 ? Json::array({"acq"})
                                       : Json::array();
      text += DumpJson(Json({{"text", Text(i)}, {"text_type", "NORM"}, {"topics", topics}})) + "\n";
    }
    return text;
  };
  Write("train.json", rows(0, 48));
  Write("dev.json", rows(48, 72));
  const std::string files =
      " --train_file " + Path("train.json") + " --validation_file " + Path("dev.json");
  ExpectSame(
      "--model_name_or_path google-bert/bert-base-uncased" + files +
          " --shuffle_train_dataset --remove_splits \"unused\" --metric_name f1 "
          "--text_column_name text --label_column_name topics --do_train --do_eval "
          "--max_seq_length 512 --per_device_train_batch_size 32 --learning_rate 2e-5 "
          "--num_train_epochs 15 --output_dir $OUT",
      "--model_name_or_path $MODEL --text_columns text --label_column topics --do_train --do_eval "
      "--problem_type multi_label_classification --max_seq_length 512 "
      "--per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 15" +
          files);
  EXPECT_TRUE(ReadJson("out/eval_results.json").contains("eval_f1"));
}

TEST_F(CommandLinesTest, LinesThatCannotRunHere) {
  WriteMrpcSamples();
  ExpectRefused(ReadmeLine("mrpc"), "--task_name mrpc needs --train_file",
                "pass a file with the columns sentence1, sentence2, label");
  ExpectRefused(
      "--model_name_or_path google-bert/bert-base-cased --dataset_name imdb --do_train "
      "--do_predict --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 "
      "--num_train_epochs 3 --output_dir $OUT",
      "--dataset_name imdb is not supported: finetune reads files", "pass --train_file");
  const std::string line = ReadmeLine("mrpc") + kFiles;
  ExpectRefused(line + " --fp16", "mixed_precision fp16 needs a GPU", "bf16", 1);
  ExpectRefused(line + " --use_mps_device", "--use_mps_device true is not supported",
                "leave it out");
  ExpectRefused(line + " --debug tpu_metrics_debug", "--debug tpu_metrics_debug is not supported",
                "leave it out");
  ExpectRefused(line + " --push_to_hub --push_to_hub_model_id finetuned-bert-mrpc",
                "--push_to_hub true is not supported", "hf upload");
  ExpectRefused(
      "--model_name_or_path google-bert/bert-base-cased --do_train --max_train_samples 4 "
      "--per_device_train_batch_size 2 --num_train_epochs 1 --fp16 --report_to none "
      "--overwrite_output_dir --output_dir $OUT --train_file $TRAIN --max_seq_length 12 "
      "--task_name MRPC --deepspeed ds_config_zero2.json",
      "--deepspeed ds_config_zero2.json is not supported", "--shard_optimizer");
}

}  // namespace
}  // namespace lathe
