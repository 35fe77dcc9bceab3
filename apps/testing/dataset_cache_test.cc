// Tests the files that keep tokenized training data: finetune --dataset_cache.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "lathe/apps/testing/dataset_cache_testing.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/column_files/column_file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

constexpr char kMade[] = "the tokenized training data are kept in ";
constexpr char kFound[] = "the training data were tokenized before and are read from ";
constexpr char kInMemory[] = "the training data are kept in memory, not in the dataset cache: ";

TEST_F(DatasetCacheTest, GivesTheBitsOfDataInMemory) {
  std::string scores = "sentence1,sentence2,label\n", several;
  for (int i = 0; i < 50; ++i) {
    const std::string text = i % 3 == 0 ? "good film" : i % 3 == 1 ? "a dull plot ." : "we saw";
    scores += text + "," + (i % 4 == 0 ? "very good" : "bad scene !") + "," +
              std::to_string(0.5 * (i % 7)) + "\n";
    several += "{\"text\": \"" + text + "\", \"label\": [" + (i % 2 == 0 ? "\"x\"" : "") +
               (i % 6 == 0 ? ", \"y\"" : "") + "]}\n";
  }
  Write("scores.csv", scores);
  Write("several.jsonl", several);
  const Args cases[] = {{},
                        {"--group_by_length"},
                        {"--max_train_samples", "41"},
                        {"--train_file", Path("scores.csv")},
                        {"--train_file", Path("several.jsonl"), "--group_by_length"}};
  for (const Args& more : cases) {
    fs::remove_all(Path("cache"));
    for (const char* out : {"memory", "first", "second"}) fs::remove_all(Path(out));
    const RunResult memory = Run("memory", "none", more);
    EXPECT_EQ(memory.exit_code, 0) << memory.err;
    EXPECT_FALSE(Contains(memory.out, "tokenized"));
    Expect(Run("first", Path("cache"), more), kMade + Path("cache") + "/train-");
    ASSERT_EQ(FilesIn("cache").size(), 1u);
    const auto made_at = fs::last_write_time(FilesIn("cache")[0]);
    Expect(Run("second", Path("cache"), more), kFound + FilesIn("cache")[0]);
    EXPECT_EQ(fs::last_write_time(FilesIn("cache")[0]), made_at);
    EXPECT_EQ(Model("first"), Model("memory"));
    EXPECT_EQ(Model("second"), Model("memory"));
    EXPECT_EQ(ReadJson("second/config.json"), ReadJson("memory/config.json"));
    EXPECT_EQ(Losses("second"), Losses("memory"));
  }
}

TEST_F(DatasetCacheTest, GivesTheBitsOfDataInMemoryOnTwoRanks) {
  for (const Args& more : {Args{"--do_eval", "--do_predict"},
                           Args{"--group_by_length", "--do_eval", "--do_predict"}}) {
    for (const char* out : {"memory", "first", "second"}) fs::remove_all(Path(out));
    const auto run = [&](const std::string& out, const std::string& cache) {
      Args args = {"--num_threads", "1", "--max_steps", "20", "--dataset_cache", cache};
      args.insert(args.end(), more.begin(), more.end());
      const RunResult result = Launch(2, Finetune(out, args));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return result;
    };
    run("memory", "none");
    EXPECT_TRUE(Contains(run("first", Path("cache")).out, more.size() == 2 ? kMade : kFound));
    const RunResult second = run("second", Path("cache"));
    for (const char* part : kParts) EXPECT_TRUE(Contains(second.out, FoundNote(part)));
    EXPECT_EQ(FilesIn("cache").size(), 3u);
    ExpectSameResults("first", "memory");
    ExpectSameResults("second", "memory");
  }
}

TEST_F(DatasetCacheTest, MakesAnotherFileWhenTheDataWouldDiffer) {
  Expect(Run("a", Path("cache")), kMade);
  Expect(Run("b", Path("cache"), {"--learning_rate", "1e-3"}), kFound);
  Expect(Run("c", Path("cache"), {"--max_seq_length", "6"}), kMade);
  Expect(Run("d", Path("cache"), {"--num_labels", "3"}), kMade);
  std::string vocab = Read("model/vocab.txt");
  vocab.replace(vocab.find("##s"), 3, "##t");
  Write("model/vocab.txt", vocab);
  Expect(Run("e", Path("cache")), kMade);
  Write("train.csv", Read("train.csv") + "good,positive\n");
  Expect(Run("f", Path("cache")), kMade);
  EXPECT_EQ(FilesIn("cache").size(), 5u);
  Expect(Run("g", Path("cache"), {"--overwrite_cache"}), kMade);
  Expect(Run("h", Path("cache")), kFound);
  EXPECT_EQ(FilesIn("cache").size(), 5u);
}

// This tokenizer refuses the two texts that the file's name would tell it by.
TEST_F(DatasetCacheTest, TakesATokenizerWithoutATokenForEveryText) {
  nlohmann::json vocab;
  std::istringstream lines(Read("model/vocab.txt"));
  for (std::string token; std::getline(lines, token);) vocab[token] = vocab.size();
  Write("model/tokenizer.json",
        DumpJson(nlohmann::json(
            {{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", vocab}}},
             {"pre_tokenizer", {{"type", "WhitespaceSplit"}}}})));
  EXPECT_EQ(Run("memory", "none").exit_code, 0);
  Expect(Run("first", Path("cache")), kMade);
  Expect(Run("second", Path("cache")), kFound);
  EXPECT_EQ(Model("second"), Model("memory"));
}

TEST_F(DatasetCacheTest, ReplacesADamagedFile) {
  Expect(Run("first", Path("cache")), kMade);
  const std::string path = FilesIn("cache").at(0);
  const std::string name = path.substr(root_.size() + 1), whole = Read(name);
  std::string changed = whole;
  changed[whole.size() - 100] ^= 1;
  for (const std::string& bytes :
       {std::string(), std::string("no HDF5"), whole.substr(0, whole.size() / 2), changed}) {
    Write(name, bytes);
    fs::remove_all(Path("out"));
    const RunResult run = Run("out", Path("cache"));
    Expect(run, path + " was damaged or of another version; it is made anew");
    EXPECT_TRUE(Contains(run.out, kMade));
    EXPECT_EQ(Model("out"), Model("first"));
    EXPECT_EQ(Read(name), whole);
  }
}

TEST_F(DatasetCacheTest, NeverTrainsOnADamagedRow) {
  Expect(Run("first", Path("cache")), kMade);
  const std::string path = FilesIn("cache").at(0);
  std::string bytes = Read(path.substr(root_.size() + 1));
  bytes[static_cast<size_t>(ColumnFile(path).Find("input_ids")->addresses.at(0))] ^= 1;
  Write(path.substr(root_.size() + 1), bytes);
  ExpectError(Run("out", Path("cache")),
              path +
                  ": is damaged: row 0 has another digest\nhint: remove the file; it is made "
                  "again when needed");
}

TEST_F(DatasetCacheTest, TrainsInMemoryIfTheFileCannotBeWritten) {
  EXPECT_EQ(Run("memory", "none").exit_code, 0);
  Write("file", "not a folder");
  Expect(Run("a", Path("file/cache")), kInMemory + Path("file/cache") + ": Not a directory");
  EXPECT_EQ(Model("a"), Model("memory"));
  // A full disk. The model's files are smaller than the limit.
  const RunResult full = Run("b", Path("cache"), {}, {.max_file_bytes = 200000});
  Expect(full, kInMemory + Path("cache") + "/train-");
  EXPECT_TRUE(Contains(full.out, ".h5: File too large")) << full.out;
  EXPECT_TRUE(FilesIn("cache").empty());
  EXPECT_EQ(Model("b"), Model("memory"));
}

TEST_F(DatasetCacheTest, GivesTheErrorsOfDataInMemory) {
  const auto expect_same = [&](const std::string& csv, const Args& more, int code = 1) {
    Write("bad.csv", csv);
    Args args = {"--train_file", Path("bad.csv")};
    args.insert(args.end(), more.begin(), more.end());
    const RunResult memory = Run("out", "none", args), cached = Run("out", Path("cache"), args);
    EXPECT_EQ(memory.exit_code, code) << csv;
    EXPECT_EQ(cached.exit_code, code) << csv;
    EXPECT_EQ(cached.err, memory.err);
    EXPECT_TRUE(!Exists("cache") || FilesIn("cache").empty());
  };
  const std::string good = "sentence,label\ngood film,1\nbad,0\n";
  expect_same(good + "good,\n", {});
  expect_same(good + "good,1,2\n", {});
  expect_same(good + "\xFF,1\n", {});
  expect_same("sentence,label\ngood,1.5\nbad,2.5\ndull,x\n", {});
  expect_same("sentence,label\ngood,nan\nbad,2.5\n", {});
  expect_same("sentence,label\n", {});
  expect_same(good, {"--label_column", "none"});
  expect_same(good, {"--text_columns", "none"});
  expect_same(good, {"--text_columns", "label"});
  expect_same(good, {"--num_labels", "1"}, 2);
  expect_same(good + "a film was good and a plot was bad .,1\n",
              {"--config_overrides", "max_position_embeddings=5"});
}

// The file holds rows that another model can't take.
TEST_F(DatasetCacheTest, FindsRowsThatTheModelCannotTake) {
  Expect(Run("out", Path("cache")), kMade);
  const Args small = {"--config_overrides", "max_position_embeddings=5"};
  const RunResult memory = Run("a", "none", small), cached = Run("a", Path("cache"), small);
  ExpectError(cached, "tokens, but the model's max_position_embeddings allows 5");
  EXPECT_EQ(cached.err, memory.err);
  Expect(Run("b", Path("cache")), kFound);  // the file is still there
}

TEST_F(DatasetCacheTest, AResumeMayChangeBetweenFileAndMemory) {
  const Args saving = {"--save_strategy", "steps", "--save_steps", "10"};
  EXPECT_EQ(Run("whole", "none", saving).exit_code, 0);
  for (const bool file_first : {false, true}) {
    fs::remove_all(Path("out"));
    const std::string folders[] = {"none", Path("cache")};
    EXPECT_EQ(Run("out", folders[file_first], saving).exit_code, 0);
    fs::remove_all(Path("out/checkpoint-30"));
    fs::remove_all(Path("out/checkpoint-20"));
    const RunResult run =
        Run("out", folders[!file_first],
            {"--save_strategy", "steps", "--save_steps", "10", "--resume_from_checkpoint"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(Contains(run.out, "after step 10")) << run.out;
    EXPECT_EQ(Model("out"), Model("whole"));
  }
}

TEST_F(DatasetCacheTest, ProcessesThatStartAtOnceShareOneFile) {
  std::vector<std::jthread> threads;
  std::vector<RunResult> runs(4);
  for (size_t i = 0; i < runs.size(); ++i)
    threads.emplace_back([&, i] { runs[i] = Run("out" + std::to_string(i), Path("cache")); });
  threads.clear();
  for (const RunResult& run : runs) EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(FilesIn("cache").size(), 1u);
  for (const char* out : {"out1", "out2", "out3"}) EXPECT_EQ(Model(out), Model("out0"));
}

// Without the option, small files stay in memory and large ones are kept beside the Hub's.
TEST_F(DatasetCacheTest, KeepsLargeFilesBesideTheHubsCache) {
  const auto run = [&](const std::string& out) {
    return RunProgram("finetune", TrainingArgs(out, {"--num_threads", "1", "--max_steps", "3"}));
  };
  EXPECT_FALSE(Contains(run("small").out, "tokenized"));
  EXPECT_FALSE(Exists("hf"));
  const std::string csv = Read("train.csv");
  const size_t header = csv.find('\n') + 1;
  std::ofstream large(Path("train.csv"), std::ios::binary | std::ios::app);
  for (size_t size = csv.size(); size < size_t{16} << 20; size += csv.size() - header)
    large << csv.substr(header);
  large.close();
  Expect(run("first"), kMade + Path("hf/lathe/datasets/train-"));
  Expect(run("second"), kFound + Path("hf/lathe/datasets/train-"));
  EXPECT_EQ(Run("memory", "none", {"--max_steps", "3"}).exit_code, 0);
  EXPECT_EQ(Model("first"), Model("memory"));
  EXPECT_EQ(Model("second"), Model("memory"));
}

}  // namespace
}  // namespace lathe
