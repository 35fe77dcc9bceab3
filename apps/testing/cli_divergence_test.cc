// Tests that a training whose numbers are no longer finite ends with an error, names the cause and
// keeps the last good model.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

class DivergenceTest : public CliTest {
 protected:
  // Overwrites `count` values of a parameter in out/model.safetensors.
  void SpoilParameter(const std::string& name, size_t begin, size_t count = 1,
                      float value = NAN) const {
    std::string file = Read("out/model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    const auto json = ParseJson(file.substr(8, header));
    begin = 8 + header + json[name]["data_offsets"][0].get<size_t>() + begin * 4;
    for (size_t i = 0; i < count; ++i) std::memcpy(file.data() + begin + i * 4, &value, 4);
    Write("out/model.safetensors", file);
  }
};

TEST_F(DivergenceTest, DivergenceKeepsTheLastGoodModel) {
  // The first step moves the parameters so far that the second one overflows.
  const RunResult run = Train({"--learning_rate", "1e30", "--lr_scheduler_type", "constant"});
  ExpectError(run, "step 2: the loss is NaN; ");
  EXPECT_NE(run.err.find("parameter \"classifier.bias\""), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("the last good model, from before step 1, is in"), std::string::npos);
  EXPECT_TRUE(Exists("out/trainer_state.json"));
  EXPECT_FALSE(Exists("out/train_results.json"));

  // The saved model can be trained further, at a lower rate.
  EXPECT_EQ(Train({"--model_name_or_path", Path("out"), "--output_dir", Path("more")}).exit_code,
            0);
}

TEST_F(DivergenceTest, OneBadRowLateCostsLittle) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  SpoilParameter("bert.embeddings.word_embeddings.weight", 30 * 16, 16, 3e38f);  // the row of "##s"
  // There are enough rows for a second snapshot, even if the first took 5 ms.
  std::string rows = "sentence,label\n";
  for (int i = 0; i < 24000; ++i)
    rows += i % 2 == 0 ? "good film,positive\n" : "bad film,negative\n";
  Write("train.csv", rows + "the films,positive\n");
  const RunResult run = Train({"--shuffle_train", "false", "--num_train_epochs", "1",
                               "--model_name_or_path", Path("out"), "--output_dir", Path("more")});
  ExpectError(run, "step 3001: the loss is NaN");
  const std::string kept = "the last good model, from before step ";
  const size_t at = run.err.find(kept);
  ASSERT_NE(at, std::string::npos) << run.err;
  EXPECT_GT(std::stoi(run.err.substr(at + kept.size())), 10) << run.err;
}

TEST_F(DivergenceTest, DivergenceThatAnEvaluationNotices) {
  const RunResult run = Train({"--learning_rate", "1e30", "--lr_scheduler_type", "constant",
                               "--eval_strategy", "steps", "--eval_steps", "1"});
  ExpectError(
      run, "step 1: the logits of evaluation sample 0 are not finite; all parameters are finite");
  EXPECT_NE(run.err.find("the last good model, from before step 1, is in"), std::string::npos)
      << run.err;
  EXPECT_FALSE(Exists("out/train_results.json"));
  EXPECT_EQ(Train({"--model_name_or_path", Path("out"), "--output_dir", Path("more")}).exit_code,
            0);
}

TEST_F(DivergenceTest, DivergenceInTheLastStep) {
  for (const bool eval : {false, true}) {
    const std::string out = eval ? "with_eval" : "without";
    std::vector<std::string> args = {"--max_steps",  "1",      "--learning_rate", "1e30",
                                     "--output_dir", Path(out)};
    if (eval) args.push_back("--do_eval");
    const RunResult run = Train(args);
    ExpectError(run,
                "step 1: the logits after this step are not finite; all parameters are finite");
    EXPECT_NE(run.err.find("the last good model, from before step 1, is in"), std::string::npos)
        << run.err;
    EXPECT_FALSE(Exists(out + "/train_results.json"));
    EXPECT_FALSE(Exists(out + "/eval_results.json"));
    EXPECT_EQ(RunProgram("lathe", {"predict", Path(out), "the film"}).exit_code, 0);
  }
}

// Without epsilon, AdamW gives NaN to words that the first batch lacks. A later loss may show it,
// or the norm of gradients, or nothing at all.
TEST_F(DivergenceTest, NoBadModelIsKeptWhateverShowsThatItIsBad) {
  for (const std::string size : {"4", "8", "16", "32", "96"}) {
    const std::string out = "out" + size;
    const RunResult run = Train(
        {"--adam_epsilon", "0", "--per_device_train_batch_size", size, "--output_dir", Path(out)});
    EXPECT_EQ(run.exit_code, 1) << size;
    EXPECT_NE(run.err.find("the last good model"), std::string::npos) << run.err;
    const RunResult more =
        Train({"--model_name_or_path", Path(out), "--output_dir", Path(out + "more")});
    EXPECT_EQ(more.exit_code, 0) << size << more.err;
  }
}

TEST_F(DivergenceTest, BadParameterIsNamedAndNothingSaved) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  const std::string name = "bert.encoder.layer.1.output.dense.bias";
  SpoilParameter(name, 0);
  const RunResult run = Train({"--model_name_or_path", Path("out"), "--output_dir", Path("bad")});
  ExpectError(
      run, "step 1: the loss is NaN; parameter \"" + name + "\" holds a value that is not finite");
  EXPECT_NE(run.err.find("the weights that training starts from are damaged"), std::string::npos)
      << run.err;
  EXPECT_FALSE(Exists("bad"));
}

// A model with one bad word, which only the last evaluation or prediction meets.
class SpoiledWordTest : public DivergenceTest {
 protected:
  void SetUp() override {
    DivergenceTest::SetUp();
    ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
    constexpr size_t kId = 30, kHiddenSize = 16;  // "##s"
    SpoilParameter("bert.embeddings.word_embeddings.weight", kId * kHiddenSize);
    Write("bad.csv", "sentence,label\nthe film,positive\nthe films,negative\n");
  }
  std::vector<std::string> Args(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {
        "--model_name_or_path", Path("out"),     "--output_dir", Path("again"),  "--max_steps", "1",
        "--validation_file",    Path("bad.csv"), "--test_file",  Path("bad.csv")};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(SpoiledWordTest, WithoutTrainingNothingIsWritten) {
  ExpectError(RunProgram("finetune", Args({"--do_eval"})),
              "out: the logits of evaluation sample 1 are not finite");
  ExpectError(RunProgram("finetune", Args({"--do_predict"})),
              "out: the logits of test sample 1 are not finite");
  EXPECT_FALSE(Exists("again"));
}

TEST_F(SpoiledWordTest, LathePredictAnswersWhatItCan) {
  const RunResult run = RunProgram("lathe", {"predict", Path("out"), "the film", "the films"});
  ExpectError(run, "text 2: the logits are not finite");
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
}

TEST_F(DivergenceTest, DivergenceThatOnlyThePredictionsShow) {
  // Training never meets the word whose embedding overflows; only the evaluation or prediction
  // does. The error says which model is kept.
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  SpoilParameter("bert.embeddings.word_embeddings.weight", 30 * 16, 16, 3e38f);
  Write("bad.csv", "sentence,label\nthe film,positive\nthe films,negative\n");
  for (const std::string what : {"--do_eval", "--do_predict"}) {
    const RunResult run =
        Train({"--model_name_or_path", Path("out"), "--output_dir", Path(what), "--validation_file",
               Path("bad.csv"), "--test_file", Path("bad.csv"), what});
    ExpectError(run, what == "--do_eval" ? "step 36: the logits of evaluation sample 1 are not"
                                         : "step 36: the logits of test sample 1 are not finite");
    EXPECT_NE(run.err.find("the last good model, from before step "), std::string::npos);
    EXPECT_TRUE(Exists(what + "/model.safetensors"));
    for (const char* name :
         {"train_results.json", "eval_results.json", "all_results.json", "predict_results.tsv"}) {
      EXPECT_FALSE(Exists(what + "/" + name)) << name;
    }
  }
}

}  // namespace
}  // namespace lathe
