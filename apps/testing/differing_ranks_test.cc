// Tests that a job refuses to train if its ranks were given different options, files, data or
// programs.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

TEST_F(LaunchedTest, OptionsThatDiffer) {
  Args program = Finetune("out", {"--max_steps", "3"});
  std::string script = "test $RANK = 1 && more='--weight_decay 0.5'; exec";
  for (const std::string& arg : program) script += " '" + arg + "'";
  const RunResult run = Launch(2, {"sh", "-c", script + " $more"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("[preflight] rank 1 has --weight_decay 0.5 but rank 0 has no "
                         "--weight_decay"),
            std::string::npos)
      << run.err;
  EXPECT_FALSE(Exists("out/model.safetensors"));
}

// Ranks of one machine must name the same files: its first process reads them for all, and other
// files would be ignored.
TEST_F(LaunchedTest, FilesOfOneMachineThatDiffer) {
  std::filesystem::create_directories(Path("other"));
  const auto absolute = [this](const std::string& name) {
    return std::filesystem::canonical(Path(name)).string();
  };
  for (const auto& [option, own] : {std::pair<std::string, std::string>(
                                        "--train_file", "--train_file " + absolute("train.csv")),
                                    {"--tokenizer_name", "no --tokenizer_name"}}) {
    std::string script = "test $RANK = 1 && set -- " + option + " " + Path("other") + "; exec";
    for (const std::string& arg : Finetune("out", {"--max_steps", "3"})) script += " '" + arg + "'";
    const RunResult run = Launch(2, {"sh", "-c", script + " \"$@\""});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_NE(run.err.find("error: [preflight] rank 1 has " + option + " " + absolute("other") +
                           " but rank 0 of the same machine has " + own + "\n"),
              std::string::npos)
        << run.err;
    EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << run.err;
  }
}

// Two machines of one rank each, which have their own files under the same names.
class MachinesWithOwnFiles : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    for (const char* machine : {"0/", "1/"}) {
      std::filesystem::create_directories(Path(machine + std::string("model")));
      for (const char* file :
           {"model/config.json", "model/vocab.txt", "train.csv", "dev.csv", "test.csv"})
        Write(machine + std::string(file), Read(file));
    }
  }

  // Runs finetune on both machines and expects both to refuse to train. Returns what rank 0 says.
  std::string Refusal() {
    const std::string port = std::to_string(TestPort() + 2);
    std::string command = " \"$finetune\"";
    for (const char* arg :
         {"--config_name", "model", "--train_file", "train.csv", "--validation_file", "dev.csv",
          "--test_file", "test.csv", "--do_train", "--do_eval", "--do_predict", "--output_dir",
          "out", "--max_steps", "3", "--logging_steps", "1", "--num_threads", "1"})
      command += std::string(" ") + arg;
    const std::string both =
        "finetune=$PWD/apps/finetune/finetune; export ACCELERATE_USE_CPU=1 WORLD_SIZE=2 "
        "LOCAL_RANK=0 "
        "LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
        port + "; cd '" + Path("1") + "'; RANK=1" + command + " > ../out.1 2> ../err.1 & cd '" +
        Path("0") + "'; RANK=0" + command +
        " > ../out.0 2> ../err.0; code=$?; wait $!; test $? = " + "1 -a $code = 1";
    EXPECT_EQ(std::system(both.c_str()), 0);
    EXPECT_EQ(Read("err.1"), "");
    EXPECT_EQ(Read("out.0"), "");
    EXPECT_FALSE(Exists("0/out/model.safetensors"));
    return Read("err.0");
  }
  void ExpectRefusal(const std::string& begin) {
    const std::string said = Refusal();
    EXPECT_TRUE(said.starts_with("error: [preflight] " + begin)) << said;
  }
};

TEST_F(MachinesWithOwnFiles, DataThatDiffer) {
  const std::string dev = Read("dev.csv"), test = Read("test.csv"), train = Read("train.csv");
  const auto without_last_row = [](const std::string& text) {
    return text.substr(0, text.rfind('\n', text.size() - 2) + 1);
  };
  Write("1/dev.csv", without_last_row(dev));
  ExpectRefusal(
      "rank 1 has validation dataset of size 39 but rank 0 has validation dataset of size "
      "40\n");
  // Only the last row's label differs.
  std::string changed = dev;
  const size_t row = dev.rfind('\n', dev.size() - 2) + 1;
  const bool positive = dev.find("positive", row) != std::string::npos;
  const std::string label = positive ? "positive" : "negative";
  ASSERT_NE(dev.find(label, row), std::string::npos) << dev.substr(row);
  changed.replace(dev.find(label, row), label.size(), positive ? "negative" : "positive");
  Write("1/dev.csv", changed);
  ExpectRefusal("rank 1 has digest of validation labels ");
  Write("1/dev.csv", dev);
  Write("1/test.csv", without_last_row(test));
  ExpectRefusal("rank 1 has test dataset of size 19 but rank 0 has test dataset of size 20\n");
  Write("1/test.csv", test);
  Write("1/train.csv", without_last_row(train));
  ExpectRefusal("rank 1 has dataset of size 95 but rank 0 has dataset of size 96\n");
}

TEST_F(MachinesWithOwnFiles, ModelsAndTokenizersThatDiffer) {
  nlohmann::json config = ReadJson("model/config.json");
  config["hidden_dropout_prob"] = 0.25;
  config["task_specific"] = std::string(1000, 'x');
  Write("0/model/config.json", DumpJson(config));
  config["hidden_dropout_prob"] = 0.5;
  Write("1/model/config.json", DumpJson(config));
  ExpectRefusal(
      "rank 1 has config.json hidden_dropout_prob 0.5 but rank 0 has config.json "
      "hidden_dropout_prob 0.25\n");
  config["hidden_dropout_prob"] = 0.25;
  config["more"] = {{"deeper", {1, 2}}};
  Write("1/model/config.json", DumpJson(config));
  ExpectRefusal(
      "rank 1 has config.json more.deeper.0 1 but rank 0 has no config.json "
      "more.deeper.0\n");
  Write("1/model/config.json", Read("0/model/config.json"));

  // The last two words of the vocabulary change places.
  std::string vocab = Read("model/vocab.txt");
  const size_t last = vocab.rfind('\n', vocab.size() - 2) + 1,
               before = vocab.rfind('\n', last - 2) + 1;
  Write("1/model/vocab.txt",
        vocab.substr(0, before) + vocab.substr(last) + vocab.substr(before, last - before));
  ExpectRefusal("rank 1 has digest of the tokenizer's vocab.txt ");
  Write("1/model/vocab.txt", vocab);
  Write("1/model/tokenizer_config.json",
        R"({"tokenizer_class": "BertTokenizer", "do_lower_case": false})");
  ExpectRefusal("rank 1 has digest of the tokenizer's tokenizer_config.json ");
}

TEST_F(LaunchedTest, OtherPrograms) {
  ASSERT_EQ(Launch(1, Finetune("start", {"--max_steps", "1"})).exit_code, 0);
  std::string loop = "examples/training_loop", script;
  for (const char* name : {"start", "train.csv", "dev.csv", "loop"})
    loop += " '" + Path(name) + "'";
  for (const std::string& arg : Finetune("out", {})) script += " '" + arg + "'";
  const RunResult run =
      Launch(2, {"sh", "-c", "test $RANK = 1 && exec " + loop + "; exec" + script});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("error: [preflight] rank 1 has program with build id "), std::string::npos)
      << run.err;
}

}  // namespace
}  // namespace lathe
