// Trains on SST-2 and evaluates its 872 sentences (no multiple of 3) in 1 to 4 processes, and on
// two machines of two. All give the results of one process. A run that ends well has compared the
// weights of its ranks bit by bit (Accelerator::CheckParametersAgree), unless the ranks share one
// copy. A shared copy must have the same bits. Reads sst2/ and bert-base-uncased/vocab.txt in
// $LATHE_DATA_DIR, and the golden BERT of $LATHE_GOLDEN_DIR. Skipped without them.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/machines.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

constexpr int kGlobalBatch = 24;
constexpr int64_t kEvalSamples = 872;

class Sst2InProcesses : public TwoMachines {
 protected:
  void SetUp() override {
    TwoMachines::SetUp();
    const char* data = std::getenv("LATHE_DATA_DIR");
    if (data == nullptr) GTEST_SKIP() << "LATHE_DATA_DIR is not set";
    data_ = data;
    ASSERT_TRUE(fs::exists(data_ / "sst2/train.tsv")) << data_;
  }

  Args Command(const std::string& out, int batch_size) const {
    const std::string size = std::to_string(batch_size);
    Args args = {"apps/finetune/finetune",
                 "--train_file",
                 data_ / "sst2/train.tsv",
                 "--validation_file",
                 data_ / "sst2/dev.tsv",
                 "--do_train",
                 "--do_eval",
                 "--max_steps",
                 std::to_string(steps_),
                 "--logging_steps",
                 "1",
                 "--per_device_train_batch_size",
                 size,
                 "--per_device_eval_batch_size",
                 size,
                 "--disable_tqdm",
                 "--output_dir",
                 Path(out)};
    args.insert(args.end(), model_.begin(), model_.end());
    return args;
  }

  void ExpectTheResultsOfOne(const std::string& out) const {
    const std::vector<double> one = Losses("1"), losses = Losses(out);
    ASSERT_EQ(one.size(), steps_);
    ASSERT_EQ(losses.size(), one.size());
    double most = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(losses[i], one[i], 1e-6 * one[i]) << out << " processes, step " << i + 1;
      most = std::max(most, std::abs(losses[i] - one[i]) / one[i]);
    }
    std::cout << out << " processes: losses within " << most << " of one's\n";
    const nlohmann::json results = ReadJson(out + "/eval_results.json");
    EXPECT_EQ(results["eval_samples"], kEvalSamples);
    const nlohmann::json expected = ReadJson("1/eval_results.json");
    EXPECT_EQ(results.size(), expected.size());
    for (const auto& [name, value] : expected.items()) {
      if (name.ends_with("_second") || name == "eval_runtime") continue;
      if (name == "eval_loss") {
        EXPECT_NEAR(results[name].get<double>(), value.get<double>(), 1e-6);
      } else {
        EXPECT_EQ(results[name], value) << name;
      }
    }
  }

  void Compare() {
    for (const int n : {1, 2, 3, 4}) {
      Args command = Command(std::to_string(n), kGlobalBatch / n);
      command.push_back("--no_share_parameters");  // so that each rank has weights to compare
      const RunResult run = Launch(n, command);
      ASSERT_EQ(run.exit_code, 0) << run.err;
      ExpectTheResultsOfOne(std::to_string(n));
    }
    const RunResult in_common = Launch(4, Command("4 in common", kGlobalBatch / 4));
    ASSERT_EQ(in_common.exit_code, 0) << in_common.err;
    ExpectTheResultsOfOne("4 in common");
    EXPECT_EQ(Read("4 in common/model.safetensors"), Read("4/model.safetensors"));
    ASSERT_EQ(RunOnAll(Command("2x2", kGlobalBatch / 4)), (std::vector<int>{0, 0}))
        << Read("err.0") << Read("err.1");
    ExpectTheResultsOfOne("2x2");
    std::cout << "2x2: " << (network_ != nullptr ? "two network namespaces" : "two addresses")
              << "\n";
  }

  // Writes a vocabulary of `size` words: special tokens and the most frequent words of SST-2.
  void WriteVocab(const std::string& file, size_t size) const {
    std::ifstream table(data_ / "sst2/train.tsv");
    std::map<std::string, int> counts;
    std::string line;
    std::getline(table, line);  // the header
    while (std::getline(table, line)) {
      std::istringstream words(line.substr(0, line.find('\t')));
      for (std::string word; words >> word;) ++counts[word];
    }
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(-count, word);
    std::sort(order.begin(), order.end());
    std::string vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (size_t i = 0; i + 5 < size; ++i) vocab += order[i].second + "\n";
    Write(file, vocab);
  }

  fs::path data_;
  Args model_;  // the options that choose the model
  size_t steps_ = 50;
};

TEST_F(Sst2InProcesses, TheGoldenBert) {
  const char* golden = std::getenv("LATHE_GOLDEN_DIR");
  if (golden == nullptr) GTEST_SKIP() << "LATHE_GOLDEN_DIR is not set";
  fs::create_directories(Path("bert"));
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy(fs::path(golden) / "models/bert-single-label" / file, Path("bert"));
  WriteVocab("bert/vocab.txt", ReadJson("bert/config.json")["vocab_size"]);
  model_ = {
      "--model_name_or_path", Path("bert"), "--ignore_mismatched_sizes", "--learning_rate", "1e-3",
      "--max_seq_length",     "40"};
  Compare();
}

// A model of MiniLM's size, with dropout. It has fresh weights, because MiniLM's are not here.
// Its steps take much longer than the golden BERT's, so there are fewer.
TEST_F(Sst2InProcesses, MiniLM) {
  steps_ = 6;
  SetConfig({{"vocab_size", 30522},
             {"hidden_size", 384},
             {"num_hidden_layers", 6},
             {"num_attention_heads", 12},
             {"intermediate_size", 1536},
             {"max_position_embeddings", 512}});
  fs::copy(data_ / "bert-base-uncased/vocab.txt", Path("model/vocab.txt"),
           fs::copy_options::overwrite_existing);
  model_ = {"--config_name", Path("model"), "--learning_rate", "1e-4"};
  Compare();
}

}  // namespace
}  // namespace lathe
