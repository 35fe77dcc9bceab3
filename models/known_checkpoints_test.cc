// What known checkpoints have in Transformers: numbers of parameters, with two labels, and
// DistilBERT's sinusoids.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "lathe/models/families_testing.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// It is long because it is a table: one statement for each checkpoint.
TEST(KnownCheckpoints, Sizes) {
  const auto count = [](const Json& config) {
    return AutoModelForSequenceClassification::WithoutValues(PretrainedConfig::FromJson(config),
                                                             {.num_labels = 2})
        ->NumParameters();
  };
  EXPECT_EQ(count({{"model_type", "bert"}}), 109483778);
  EXPECT_EQ(count({{"model_type", "bert"},
                   {"hidden_size", 1024},
                   {"num_hidden_layers", 24},
                   {"num_attention_heads", 16},
                   {"intermediate_size", 4096}}),
            335143938);
  const Json positions = {{"max_position_embeddings", 514}, {"type_vocab_size", 1}};
  EXPECT_EQ(count(With({{"model_type", "roberta"}}, positions)), 124647170);
  EXPECT_EQ(count(With({{"model_type", "xlm-roberta"}, {"vocab_size", 250002}}, positions)),
            278045186);
  EXPECT_EQ(count(With({{"model_type", "camembert"}, {"vocab_size", 32005}}, positions)),
            110623490);
  EXPECT_EQ(count({{"model_type", "distilbert"}}), 66955010);
  EXPECT_EQ(count({{"model_type", "convbert"}}), 106272650);
  EXPECT_EQ(count({{"model_type", "convbert"},
                   {"embedding_size", 128},
                   {"hidden_size", 384},
                   {"num_attention_heads", 8},
                   {"intermediate_size", 1536},
                   {"num_groups", 2}}),
            17624498);
  EXPECT_EQ(count({{"model_type", "electra"}}), 13549314);
  EXPECT_EQ(count({{"model_type", "electra"},
                   {"embedding_size", 768},
                   {"hidden_size", 768},
                   {"num_attention_heads", 12},
                   {"intermediate_size", 3072}}),
            109483778);
  EXPECT_EQ(count({{"model_type", "ernie"}}), 109483778);
  EXPECT_EQ(count({{"model_type", "ernie"},
                   {"use_task_id", true},
                   {"vocab_size", 40000},
                   {"max_position_embeddings", 2048},
                   {"type_vocab_size", 4}}),
            117946370);
  EXPECT_EQ(count({{"model_type", "eurobert"}}), 212358146);
  EXPECT_EQ(
      count({{"model_type", "eurobert"}, {"num_key_value_heads", 4}, {"attention_bias", true}}),
      202945538);
  EXPECT_EQ(count({{"model_type", "nomic_bert"}}), 137323778);
  EXPECT_EQ(count({{"model_type", "rembert"}}), 575922690);
  // The linear layer behind the embeddings is there even if these have the layers' columns.
  EXPECT_EQ(count({{"model_type", "rembert"}, {"input_embedding_size", 1152}}), 801686018);
  EXPECT_EQ(count({{"model_type", "albert"},
                   {"hidden_size", 768},
                   {"num_attention_heads", 12},
                   {"intermediate_size", 3072}}),
            11685122);
  EXPECT_EQ(count({{"model_type", "deberta-v2"},
                   {"hidden_size", 768},
                   {"num_hidden_layers", 12},
                   {"num_attention_heads", 12},
                   {"intermediate_size", 3072},
                   {"relative_attention", true},
                   {"position_buckets", 256},
                   {"norm_rel_ebd", "layer_norm"},
                   {"share_att_key", true},
                   {"pos_att_type", "p2c|c2p"},
                   {"position_biased_input", false}}),
            184423682);
  EXPECT_EQ(count({{"model_type", "megatron-bert"}}), 333642754);
  EXPECT_EQ(count({{"model_type", "modernbert"}}), 149606402);
  EXPECT_EQ(count({{"model_type", "mobilebert"}}), 24845570);
  EXPECT_EQ(count({{"model_type", "mobilebert"}, {"classifier_activation", false}}), 24582914);
  EXPECT_EQ(count({{"model_type", "mpnet"}, {"max_position_embeddings", 514}}), 109488002);
  EXPECT_EQ(count(With({{"model_type", "roberta-prelayernorm"}}, positions)), 124648706);
  EXPECT_EQ(count({{"model_type", "squeezebert"}}), 51091202);
  EXPECT_EQ(count({{"model_type", "xlm-roberta-xl"}}), 3482490882);
  EXPECT_EQ(count({{"model_type", "roformer"}}), 124147970);
}

// As in Transformers 5.24, whose attribute_map also prefers the other key and saves the family's
// own.
TEST(KnownCheckpoints, DistilBertTakesKeysOfOtherFamilies) {
  const nlohmann::json tiny = {{"model_type", "distilbert"},
                               {"vocab_size", 30},
                               {"hidden_dim", 12},
                               {"max_position_embeddings", 16}};
  const auto saved = [&](const nlohmann::json& keys) {
    nlohmann::json config = tiny;
    config.update(keys);
    return AutoModelForSequenceClassification::WithoutValues(PretrainedConfig::FromJson(config))
        ->config()
        .json();
  };
  const nlohmann::json other = {
      {"hidden_size", 8}, {"num_attention_heads", 4}, {"num_hidden_layers", 1}};
  for (const nlohmann::json& own :
       {nlohmann::json::object(), nlohmann::json{{"dim", 9}, {"n_heads", 3}, {"n_layers", 2}}}) {
    nlohmann::json keys = other;
    keys.update(own);
    const nlohmann::json json = saved(keys);
    EXPECT_EQ(json.at("dim"), 8);
    EXPECT_EQ(json.at("n_heads"), 4);
    EXPECT_EQ(json.at("n_layers"), 1);
    for (const auto& [key, value] : other.items()) EXPECT_FALSE(json.contains(key)) << key;
  }
  const nlohmann::json unset =
      saved({{"hidden_size", nullptr}, {"dim", 8}, {"n_heads", 2}, {"n_layers", 1}});
  EXPECT_EQ(unset.at("dim"), 8);

  // The name that is set counts, whichever one the file has.
  const auto overridden = [&](const nlohmann::json& keys, const std::string& overrides) {
    nlohmann::json file = tiny;
    file.update(keys);
    PretrainedConfig config = PretrainedConfig::FromJson(file);
    config.Override(overrides, KnownConfigKeys(config));
    return AutoModelForSequenceClassification::WithoutValues(config)->config().json();
  };
  const nlohmann::json by_own = overridden(other, "dim=12,n_layers=2");
  EXPECT_EQ(by_own.at("dim"), 12);
  EXPECT_EQ(by_own.at("n_heads"), 4);
  EXPECT_EQ(by_own.at("n_layers"), 2);
  const nlohmann::json by_other = overridden({{"dim", 8}, {"n_heads", 2}, {"n_layers", 2}},
                                             "num_hidden_layers=1,num_attention_heads=4");
  EXPECT_EQ(by_other.at("dim"), 8);
  EXPECT_EQ(by_other.at("n_heads"), 4);
  EXPECT_EQ(by_other.at("n_layers"), 1);
}

// The values are those of numpy's formula in Transformers' create_sinusoidal_embeddings.
TEST(KnownCheckpoints, DistilBertMayStartFromSinusoids) {
  const auto model = AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromJson({{"model_type", "distilbert"},
                                  {"vocab_size", 30},
                                  {"dim", 8},
                                  {"n_layers", 1},
                                  {"n_heads", 2},
                                  {"hidden_dim", 12},
                                  {"max_position_embeddings", 16},
                                  {"sinusoidal_pos_embds", true}}));
  bool found = false;
  for (const Parameter& p : model->Parameters()) {
    if (p.name != "distilbert.embeddings.position_embeddings.weight") continue;
    found = true;
    EXPECT_TRUE(p.tensor.requires_grad());
    const std::vector<float> row = p.tensor.Slice(3, 4).ToVector<float>();
    for (int i = 0; i < 4; ++i) {
      const double angle = 3 / std::pow(10, i);
      EXPECT_FLOAT_EQ(row[2 * i], static_cast<float>(std::sin(angle))) << i;
      EXPECT_FLOAT_EQ(row[2 * i + 1], static_cast<float>(std::cos(angle))) << i;
    }
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace lathe
