// Tests that families beyond BERT give the losses of one process in two, too. Their layers, their
// heads and the orders of their parameters differ from BERT's, and so do the buckets of gradients.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

constexpr int kSteps = 12;

class FamiliesInProcesses : public LaunchedTest {
 protected:
  // Writes the configuration of a tiny model. Dropout is on: masks don't depend on the processes.
  void WriteConfig(const std::string& model_type, const Json& more) const {
    Json config = {{"model_type", model_type},
                   {"vocab_size", 31},
                   {"hidden_size", 16},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 2},
                   {"intermediate_size", 32},
                   {"hidden_dropout_prob", 0.1},
                   {"attention_probs_dropout_prob", 0.1},
                   {"max_position_embeddings", 64},
                   {"pad_token_id", 0}};
    config.update(more);
    Write("model/config.json", DumpJson(config));
  }

  RunResult Run(int num_processes) const {
    const std::string size = std::to_string(12 / num_processes);
    return Launch(
        num_processes,
        Finetune("out" + std::to_string(num_processes),
                 {"--max_steps", std::to_string(kSteps), "--per_device_train_batch_size", size,
                  "--learning_rate", "2e-3", "--do_eval", "--per_device_eval_batch_size", size}));
  }

  void Compare(const std::string& model_type) const {
    const RunResult one = Run(1), two = Run(2);
    ASSERT_EQ(one.exit_code, 0) << one.err;
    ASSERT_EQ(two.exit_code, 0) << two.err;
    EXPECT_NE(one.out.find("  model       " + model_type + ", "), std::string::npos) << one.out;
    EXPECT_NE(two.out.find("  processes   2\n"), std::string::npos) << two.out;
    for (const auto& [key, limit] : {std::pair("loss", 2e-6), std::pair("grad_norm", 1e-5)}) {
      const std::vector<double> expected = Logged("out1", key), values = Logged("out2", key);
      ASSERT_EQ(expected.size(), size_t{kSteps}) << key;
      ASSERT_EQ(values.size(), expected.size()) << key;
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], expected[i], limit * expected[i]) << key << ", step " << i + 1;
      }
    }
    // The model has changed so far that a lost gradient would show.
    const Json result = ReadJson("out1/eval_results.json");
    EXPECT_GT(std::abs(result["eval_loss"].get<double>() - std::log(2)), 1e-4);
    EXPECT_NEAR(ReadJson("out2/eval_results.json")["eval_loss"], result["eval_loss"], 1e-5);
  }
};

TEST_F(FamiliesInProcesses, Electra) {
  WriteConfig("electra", {{"embedding_size", 8}, {"type_vocab_size", 2}});
  Compare("electra");
}

// Bytes are the tokens, so that there is a vocabulary of its own kind without a training of merges.
TEST_F(FamiliesInProcesses, Roberta) {
  const std::string characters = "abcdefghijklmnopqrstuvwxyz,.!01";
  Json vocab = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}, {"<mask>", 4}, {"Ġ", 5}};
  for (const char c : characters) vocab[std::string(1, c)] = vocab.size();
  Write("model/vocab.json", DumpJson(vocab));
  Write("model/merges.txt", "#version: 0.2\n");
  WriteConfig("roberta", {{"vocab_size", vocab.size()},
                          {"max_position_embeddings", 66},
                          {"type_vocab_size", 1},
                          {"pad_token_id", 1}});
  Compare("roberta");
}

// Three of four layers see their neighbours only.
TEST_F(FamiliesInProcesses, ModernBert) {
  const std::string words = Read("model/vocab.txt");
  Json vocab, added = Json::array();
  for (size_t begin = 0; begin < words.size(); begin = words.find('\n', begin) + 1) {
    const std::string word = words.substr(begin, words.find('\n', begin) - begin);
    if (word.starts_with('[')) {
      added.push_back({{"id", vocab.size()}, {"content", word}, {"special", true}});
    }
    vocab[word] = vocab.size();
  }
  Write("model/tokenizer.json",
        DumpJson(
            Json({{"model", {{"type", "WordPiece"}, {"vocab", vocab}}},
                  {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                  {"added_tokens", added},
                  {"post_processor",
                   {{"type", "BertProcessing"}, {"sep", {"[SEP]", 3}}, {"cls", {"[CLS]", 2}}}}})));
  Write("model/tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  WriteConfig("modernbert", {{"num_hidden_layers", 4},
                             {"local_attention", 4},
                             {"attention_dropout", 0.1},
                             {"embedding_dropout", 0.1},
                             {"mlp_dropout", 0.1},
                             {"classifier_dropout", 0.1},
                             {"cls_token_id", 2},
                             {"sep_token_id", 3}});
  Compare("modernbert");
}

}  // namespace
}  // namespace lathe
