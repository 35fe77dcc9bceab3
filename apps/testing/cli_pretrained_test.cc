// Trains from the files of pre-trained models with the program, as a user does.
#include <nlohmann/json.hpp>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/safetensors/safetensors.h"

namespace lathe {
namespace {

// A pre-training head in the file is no error, but the summary must not hide that it is dropped.
TEST_F(CliTest, SaysThatAPretrainingHeadIsNotUsed) {
  for (const auto& [model_type, head] :
       {std::pair("bert", "cls.predictions.bias"), std::pair("bert", "cls.seq_relationship.bias"),
        std::pair("electra", "discriminator_predictions.dense.bias")}) {
    SetConfig({{"model_type", model_type}, {"embedding_size", 16}});
    ASSERT_EQ(Train({"--max_steps", "1", "--overwrite_output_dir"}).exit_code, 0) << head;
    std::vector<std::pair<std::string, Tensor>> tensors;
    {
      const SafetensorsReader reader(Path("out/model.safetensors"));
      for (const auto& [name, entry] : reader.entries()) {
        if (!name.starts_with("classifier.")) tensors.emplace_back(name, reader.Read(name));
      }
    }
    tensors.emplace_back(head, Tensor::FromVector<float>({1, 2}));
    WriteSafetensors(Path("out/model.safetensors"), tensors);
    const RunResult run =
        Train({"--model_name_or_path", Path("out"), "--config_name", Path("out"), "--max_steps",
               "1", "--output_dir", Path("tuned"), "--overwrite_output_dir"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.out.find("\n  note        parameters of the new head that get fresh values ("),
              std::string::npos)
        << run.out;
    EXPECT_NE(run.out.find("\n  note        tensors of pre-training heads in the checkpoint that "
                           "are not used (1): " +
                           std::string(head) + "\n"),
              std::string::npos)
        << run.out;
  }
}

// A tokenizer without an unknown token refuses texts with other words. That must not stop a
// training on texts that it takes, and a text that it refuses is named.
TEST_F(CliTest, ATokenizerMayRefuseTexts) {
  Write("model/tokenizer.json", R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab":
      {"good": 5, "bad": 6, "film": 7}}, "pre_tokenizer": {"type": "WhitespaceSplit"},
      "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}})");
  Write("model/tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  SetConfig({{"vocab_size", 8}});
  const std::string rows = "first,second,label\ngood film,film,positive\nbad film,film,negative\n";
  Write("train.csv", rows);
  for (const std::string& cache : {std::string("none"), Path("cache")}) {
    const RunResult run = Train({"--dataset_cache", cache, "--max_seq_length", "8", "--max_steps",
                                 "2", "--overwrite_output_dir"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.out.find("2 samples, 6.0 tokens on average"), std::string::npos) << run.out;
  }
  Write("train.csv", rows + "good,zebra,positive\n");
  ExpectError(Train({"--max_steps", "2", "--overwrite_output_dir"}),
              Path("train.csv") + ":4: " + Path("model/tokenizer.json") +
                  ": the WordLevel model has neither 'zebra' nor its unk_token '?'");
}

}  // namespace
}  // namespace lathe
