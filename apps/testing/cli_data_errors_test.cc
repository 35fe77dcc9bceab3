// Tests that data and flags that would silently give a wrong model are refused before training.
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

class CliDataErrorTest : public CliTest {
 protected:
  void ExpectNothingWritten() const { EXPECT_FALSE(Exists("out")); }
};

TEST_F(CliDataErrorTest, SlipInAColumnOfScores) {
  Write("train.csv", "sentence,label\na,0.5\nb,x\nc,1.5\nd,2.5\n");
  ExpectError(Train({}), "train.csv:3: score \"x\" is not a number");
  ExpectNothingWritten();
  // One score with a fraction is enough to take the column for scores.
  Write("train.csv", "sentence,label\na,1.5\nb,bad\nc,2\n");
  ExpectError(Train({}), "train.csv:3: score \"bad\" is not a number");
  ExpectNothingWritten();
  // With this --problem_type the values are names of classes.
  EXPECT_EQ(Train({"--problem_type", "single_label_classification"}).exit_code, 0);
}

TEST_F(CliDataErrorTest, EmptyLabel) {
  Write("train.csv", "sentence,label\na,x\nb,\nc,y\n");
  ExpectError(Train({}), "train.csv:3: the label is empty");
  ExpectNothingWritten();
}

TEST_F(CliDataErrorTest, OneClassOnly) {
  Write("train.csv", "sentence,mood\na,x\nb,x\n");
  ExpectError(
      Train({"--label_column", "mood"}),
      "train.csv: column \"mood\": there is only one class, \"x\", but at least two are needed");
  ExpectNothingWritten();
}

TEST_F(CliDataErrorTest, LabelAsText) {
  ExpectError(Train({"--text_columns", "sentence,label"}),
              "column \"label\" is the label and cannot be a text");
  ExpectNothingWritten();
}

TEST_F(CliDataErrorTest, PairsForAModelWithOneTokenType) {
  SetConfig({{"type_vocab_size", 1}});
  Write("train.csv", "sentence1,sentence2,label\na,b,x\nb,c,y\n");
  ExpectError(Train({}), "train.csv:2: a second text needs two token types");
  ExpectNothingWritten();
}

// A model without token types ignores them. DeBERTa is one.
TEST_F(CliDataErrorTest, PairsForAModelWithoutTokenTypes) {
  SetConfig({{"model_type", "deberta-v2"},
             {"relative_attention", true},
             {"pos_att_type", "p2c|c2p"},
             {"type_vocab_size", 0}});
  Write("model/tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  for (const char* file : {"train.csv", "dev.csv", "test.csv"})
    Write(file, "sentence1,sentence2,label\na,b,x\nb,c,y\n");
  const RunResult run = Train({"--max_steps", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(CliDataErrorTest, ImpossibleNumbers) {
  ExpectError(Train({"--num_threads", "100000"}), "--num_threads must be at most 1024", 2);
  ExpectError(Train({"--config_overrides", "layer_norm_eps=-1"}),
              "\"layer_norm_eps\" must not be negative", 2);
  ExpectNothingWritten();
}

TEST_F(CliDataErrorTest, PredictingWithAnIncompleteModel) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  auto config = ReadJson("out/config.json");
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() + 1;
  Write("out/config.json", DumpJson(config));
  ExpectError(RunProgram("lathe", {"predict", Path("out"), "a"}),
              "the checkpoint lacks 16 parameters");
}

TEST_F(CliDataErrorTest, PredictingWithTensorsThatTheModelLacks) {
  ASSERT_EQ(Train({"--max_steps", "1"}).exit_code, 0);
  EXPECT_EQ(RunProgram("lathe", {"predict", Path("out"), "a"}).err, "");
  auto config = ReadJson("out/config.json");
  const int layers = config["num_hidden_layers"].get<int>() - 1;
  config["num_hidden_layers"] = layers;
  Write("out/config.json", DumpJson(config));
  const RunResult run = RunProgram("lathe", {"predict", Path("out"), "a"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "note: " + Path("out") +
                         ": the checkpoint has 16 tensors that the model lacks, such as "
                         "bert.encoder.layer." +
                         std::to_string(layers) + ".attention.output.LayerNorm.bias\n");
}

}  // namespace
}  // namespace lathe
