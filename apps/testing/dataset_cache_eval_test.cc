// Tests the files that keep tokenized validation and test data: finetune --dataset_cache.
#include "lathe/apps/testing/dataset_cache_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

TEST_F(DatasetCacheTest, KeepsValidationAndTestData) {
  std::string scores = "sentence1,sentence2,label\n", unlabelled = "sentence1,sentence2\n", several;
  for (int i = 0; i < 50; ++i) {
    const std::string text = i % 3 == 0 ? "good film" : i % 3 == 1 ? "a dull plot ." : "we saw";
    const std::string pair = text + "," + (i % 4 == 0 ? "very good" : "bad scene !");
    scores += pair + "," + std::to_string(0.5 * (i % 7)) + "\n";
    unlabelled += pair + "\n";
    several += "{\"text\": \"" + text + "\", \"label\": [" + (i % 2 == 0 ? "\"x\"" : "") +
               (i % 6 == 0 ? ", \"y\"" : "") + "]}\n";
  }
  Write("scores.csv", scores);
  Write("unlabelled.csv", unlabelled);
  Write("several.jsonl", several);
  const Args cases[] = {{},
                        {"--max_eval_samples", "17", "--max_predict_samples", "3"},
                        {"--train_file", Path("scores.csv"), "--validation_file",
                         Path("scores.csv"), "--test_file", Path("unlabelled.csv")},
                        {"--train_file", Path("several.jsonl"), "--validation_file",
                         Path("several.jsonl"), "--test_file", Path("several.jsonl")}};
  for (const Args& given : cases) {
    Args more = {"--do_eval", "--do_predict", "--eval_strategy", "steps", "--eval_steps", "10"};
    more.insert(more.end(), given.begin(), given.end());
    fs::remove_all(Path("cache"));
    for (const char* out : {"memory", "first", "second"}) fs::remove_all(Path(out));
    const RunResult memory = Run("memory", "none", more);
    EXPECT_EQ(memory.exit_code, 0) << memory.err;
    const RunResult first = Run("first", Path("cache"), more);
    const RunResult second = Run("second", Path("cache"), more);
    for (const char* part : kParts) {
      Expect(first, MadeNote(part));
      Expect(second, FoundNote(part));
    }
    EXPECT_EQ(FilesIn("cache").size(), 3u);
    ExpectSameResults("first", "memory");
    ExpectSameResults("second", "memory");
    for (const char* metric : {"eval_loss", "loss"}) {
      EXPECT_EQ(Logged("first", metric), Logged("memory", metric));
      EXPECT_EQ(Logged("second", metric), Logged("memory", metric));
    }
  }
}

// Without a training, the model and the validation file decide what labels mean.
TEST_F(DatasetCacheTest, KeepsValidationAndTestDataWithoutATraining) {
  const auto run = [&](const std::string& out, const std::string& cache, const Args& more) {
    Args args = {"--model_name_or_path", Path("model"), "--num_threads",   "1",
                 "--output_dir",         Path(out),     "--dataset_cache", cache};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram("finetune", args);
  };
  EXPECT_EQ(Run("trained", "none").exit_code, 0);
  fs::copy(Path("trained"), Path("model"),
           fs::copy_options::overwrite_existing | fs::copy_options::recursive);
  nlohmann::json config = ReadJson("model/config.json");
  for (const bool numbers : {false, true}) {
    if (numbers) {  // the config's names are the default ones, and the file has numbers
      config.erase("label2id");
      config["id2label"] = {{"0", "LABEL_0"}, {"1", "LABEL_1"}};
      Write("model/config.json", DumpJson(config));
      std::string csv = Read("dev.csv");
      for (const auto& [name, number] : {std::pair("negative", "0"), std::pair("positive", "1")})
        for (size_t at; (at = csv.find(name)) != std::string::npos;) csv.replace(at, 8, number);
      Write("dev.csv", csv);
    }
    const Args eval = {"--do_eval", "--validation_file", Path("dev.csv"), "--max_eval_samples",
                       "30"};
    const Args predict = {"--do_predict", "--test_file", Path("test.csv")};
    Args both = eval;
    both.insert(both.end(), predict.begin(), predict.end());
    for (const Args& more : {eval, predict, both}) {
      for (const char* out : {"cache", "memory", "first", "second"}) fs::remove_all(Path(out));
      EXPECT_EQ(run("memory", "none", more).exit_code, 0);
      const RunResult first = run("first", Path("cache"), more);
      const RunResult second = run("second", Path("cache"), more);
      for (const char* part : {"validation", "test"}) {
        const char* const flag = part == std::string("test") ? "--do_predict" : "--do_eval";
        if (std::count(more.begin(), more.end(), flag) == 0) continue;
        Expect(first, MadeNote(part));
        Expect(second, FoundNote(part));
      }
      EXPECT_EQ(FilesIn("cache").size(), more.size() == both.size() ? 2u : 1u);
      ExpectSameResults("first", "memory");
      ExpectSameResults("second", "memory");
    }
  }
}

TEST_F(DatasetCacheTest, MakesValidationDataAnewWhenTheirLabelsMeanSomethingElse) {
  const Args more = {"--do_eval"};
  Run("a", Path("cache"), more);
  EXPECT_EQ(Count("validation-"), 1);
  Write("train.csv", Read("train.csv") + "good film,positive\n");  // the labels mean the same
  Expect(Run("b", Path("cache"), more), FoundNote("validation"));
  Write("train.csv", Read("train.csv") + "good film,another\n");
  Expect(Run("c", Path("cache"), more), MadeNote("validation"));
  Expect(Run("d", Path("cache"), {"--do_eval", "--max_eval_samples", "5"}), MadeNote("validation"));
  Write("dev.csv", Read("dev.csv") + "good film,positive\n");
  Expect(Run("e", Path("cache"), more), MadeNote("validation"));
  EXPECT_EQ(Count("validation-"), 4);
  EXPECT_EQ(Count("train-"), 3);
}

TEST_F(DatasetCacheTest, ReplacesADamagedFileOfValidationData) {
  const Args more = {"--do_eval", "--do_predict"};
  Run("first", Path("cache"), more);
  for (const std::string& path : FilesIn("cache")) {
    const std::string name = path.substr(root_.size() + 1), whole = Read(name);
    Write(name, whole.substr(0, whole.size() / 2));
    fs::remove_all(Path("out"));
    Expect(Run("out", Path("cache"), more),
           path + " was damaged or of another version; it is made anew");
    EXPECT_EQ(Read(name), whole);
    ExpectSameResults("out", "first");
  }
}

TEST_F(DatasetCacheTest, GivesTheErrorsOfValidationDataInMemory) {
  const auto expect_same = [&](const std::string& csv, const Args& more) {
    Write("bad.csv", csv);
    Args args = {"--do_eval", "--validation_file", Path("bad.csv"), "--do_predict"};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult memory = Run("out", "none", args), cached = Run("out", Path("cache"), args);
    EXPECT_EQ(memory.exit_code, 1) << csv;
    EXPECT_EQ(cached.exit_code, 1) << csv;
    EXPECT_EQ(cached.err, memory.err);
    EXPECT_EQ(Count("validation-"), 0);
  };
  const std::string good = "sentence,label\ngood film,positive\nbad,negative\n";
  expect_same(good + "good,\n", {});
  expect_same(good + "good,7\n", {});
  expect_same(good + "good\n", {"--max_eval_samples", "1"});
  expect_same("sentence,label\n", {});
  expect_same("sentence,other\ngood,positive\n", {});
  expect_same("other,label\ngood,positive\n", {});
  expect_same(good, {"--test_file", Path("none.csv")});
}

TEST_F(DatasetCacheTest, EvaluatesInMemoryIfTheFileCannotBeWritten) {
  const Args more = {"--do_eval", "--do_predict"};
  Run("memory", "none", more);
  Write("file", "not a folder");
  const RunResult run = Run("a", Path("file/cache"), more);
  for (const char* part : kParts) {
    Expect(run, std::string("the ") + part +
                    " data are kept in memory, not in the dataset cache: " + Path("file/cache") +
                    ": Not a directory");
  }
  ExpectSameResults("a", "memory");
}

}  // namespace
}  // namespace lathe
