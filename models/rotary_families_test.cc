// What families with rotary positions have of their own: options of the configuration, fresh
// weights, pooling, padding and long texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/models/families_testing.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Floats = std::vector<float>;

Json ConfigOf(const std::string& model_type, const Json& changes = Json::object()) {
  for (const Family& family : Families()) {
    if (family.model_type == model_type) {
      return With(With(family.config, {{"model_type", model_type}}), changes);
    }
  }
  return {};
}

std::shared_ptr<SequenceClassifier> Make(const std::string& model_type,
                                         const Json& changes = Json::object()) {
  return AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromJson(ConfigOf(model_type, changes)), {.num_labels = 3});
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was thrown";
}

std::string ErrorOf(const std::string& model_type, const Json& changes) {
  return ErrorOf([&] { Make(model_type, changes); });
}

Floats Logits(SequenceClassifier& model, const std::vector<std::vector<int32_t>>& texts) {
  return model.Forward(Batch::Pack(texts)).logits.ToVector<float>();
}

Tensor ParameterOf(const Module& module, const std::string& name) {
  for (const Parameter& p : module.Parameters()) {
    if (p.name == name) return p.tensor;
  }
  ADD_FAILURE() << "no parameter " << name;
  return Tensor::Zeros({1});
}

void ExpectNear(const Floats& actual, const Floats& expected, double limit) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], limit) << i;
}

// Rows of one text, with padding in front of it.
Batch PaddedOnTheLeft(const std::vector<int32_t>& text, int64_t padding) {
  std::vector<int32_t> ids(static_cast<size_t>(padding), 0), mask(ids);
  ids.insert(ids.end(), text.begin(), text.end());
  mask.resize(ids.size(), 1);
  const auto width = std::ssize(ids);
  return Batch::FromPadded(Tensor::FromVector(ids, {1, width}),
                           Tensor::FromVector(mask, {1, width}));
}

TEST(ModernBert, BothKindsOfConfigurationMeanTheSame) {
  const Floats expected = Logits(*Make("modernbert"), {{2, 7, 9, 3, 8, 8, 1}});
  const Json newer = {
      {"layer_types",
       {"full_attention", "sliding_attention", "sliding_attention", "full_attention"}},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 160000.0}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}}};
  EXPECT_EQ(Logits(*Make("modernbert", newer), {{2, 7, 9, 3, 8, 8, 1}}), expected);
  const Json older = {{"global_attn_every_n_layers", 3},
                      {"global_rope_theta", 160000.0},
                      {"local_rope_theta", 10000.0}};
  EXPECT_EQ(Logits(*Make("modernbert", older), {{2, 7, 9, 3, 8, 8, 1}}), expected);
  for (const Json& other :
       {Json{{"global_rope_theta", 100.0}}, Json{{"local_rope_theta", 100.0}},
        Json{{"global_attn_every_n_layers", 2}}, Json{{"local_attention", 2}}}) {
    EXPECT_NE(Logits(*Make("modernbert", other), {{2, 7, 9, 3, 8, 8, 1}}), expected) << other;
  }
}

TEST(ModernBert, WrongConfigurations) {
  EXPECT_EQ(ErrorOf("modernbert", {{"layer_types", {"full_attention"}}}),
            "config: \"layer_types\" must be a list of 4 kinds, one for each of "
            "\"num_hidden_layers\", but is [\"full_attention\"]");
  EXPECT_EQ(
      ErrorOf("modernbert", {{"num_hidden_layers", 1}, {"layer_types", {"causal_attention"}}}),
      "config: \"layer_types\" has \"causal_attention\"; known kinds: full_attention, "
      "sliding_attention");
  EXPECT_EQ(ErrorOf("modernbert", {{"classifier_pooling", "max"}}),
            "config: \"classifier_pooling\" \"max\" is not supported; supported: cls, mean");
  EXPECT_EQ(ErrorOf("modernbert", {{"initializer_cutoff_factor", 0.0}}),
            "config: \"initializer_cutoff_factor\" must be positive but is 0");
  EXPECT_EQ(ErrorOf("modernbert", {{"hidden_size", 6}}),
            "config: \"hidden_size\" 6 and \"num_attention_heads\" 2 make heads of 3 columns, but "
            "rotary positions need an even number");
  EXPECT_EQ(ErrorOf("modernbert", {{"rope_parameters", {{"rope_type", "yarn"}}}}),
            "config: \"rope_parameters\": rope_type \"yarn\" is not supported; supported: default, "
            "linear");
}

// The numbers are Transformers': normal ones, cut off at twice their standard deviation. What adds
// to hidden states starts smaller, and the padding row of the table is drawn, too.
TEST(ModernBert, FreshWeights) {
  const auto model = Make("modernbert", {{"vocab_size", 500},
                                         {"hidden_size", 64},
                                         {"intermediate_size", 96},
                                         {"initializer_range", 0.1}});
  const double out = 0.1 / std::sqrt(8.0);
  for (const auto& [name, std_dev] :
       std::vector<std::pair<std::string, double>>{{"model.embeddings.tok_embeddings.weight", 0.1},
                                                   {"model.layers.0.attn.Wqkv.weight", 0.1},
                                                   {"model.layers.0.attn.Wo.weight", out},
                                                   {"model.layers.1.mlp.Wi.weight", 0.1},
                                                   {"model.layers.1.mlp.Wo.weight", out},
                                                   {"head.dense.weight", out},
                                                   {"classifier.weight", 1 / 8.0}}) {
    double squares = 0, largest = 0;
    const Floats values = ParameterOf(*model, name).ToVector<float>();
    for (const float value : values) {
      squares += value * value;
      largest = std::max<double>(largest, std::fabs(value));
    }
    EXPECT_LE(largest, 2 * std_dev * (1 + 1e-6)) << name;
    EXPECT_GT(largest, 1.6 * std_dev) << name;
    // Cut off at two, a standard deviation of 1 becomes 0.88.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())) / std_dev, 0.88, 0.06)
        << name;
  }
  const Tensor table = ParameterOf(*model, "model.embeddings.tok_embeddings.weight");
  EXPECT_NE(table.Slice(0, 1).ToVector<float>(), Floats(64, 0));
}

TEST(ModernBert, BiasesAreThereIfTheConfigurationSaysSo) {
  const auto biases = [](const Json& changes) {
    std::vector<std::string> names;
    for (const Parameter& p : Make("modernbert", changes)->Parameters()) {
      if (!p.name.ends_with(".bias")) continue;
      EXPECT_FALSE(p.decays) << p.name;
      names.push_back(p.name);
    }
    return names;
  };
  EXPECT_EQ(biases(Json::object()), std::vector<std::string>({"classifier.bias"}));
  EXPECT_EQ(biases({{"classifier_bias", true}}),
            std::vector<std::string>({"head.dense.bias", "classifier.bias"}));
  EXPECT_EQ(biases({{"attention_bias", true}}).size(), 1u + 4 * 2);
  EXPECT_EQ(biases({{"mlp_bias", true}}).size(), 1u + 4 * 2);
  EXPECT_EQ(biases({{"norm_bias", true}}).size(), 1u + 1 + 4 + 3 + 1 + 1);
}

// Each of the family's dropout rates acts on its own.
TEST(ModernBert, EachDropoutIsOnUnlessItsRateIs0) {
  const std::vector<std::string> rates = {"attention_dropout", "embedding_dropout", "mlp_dropout",
                                          "classifier_dropout"};
  Json off = Json::object();
  for (const std::string& rate : rates) off[rate] = 0.0;
  const auto train = [&](const Json& changes) {
    const auto model = Make("modernbert", With(off, changes));
    model->Train();
    return Logits(*model, {{2, 7, 9, 3}});
  };
  const Floats expected = Logits(*Make("modernbert", off), {{2, 7, 9, 3}});
  EXPECT_EQ(train(Json::object()), expected);
  std::vector<Floats> all;
  for (const std::string& rate : rates) {
    const Floats with = train({{rate, 0.5}});
    EXPECT_NE(with, expected) << rate;
    EXPECT_EQ(std::count(all.begin(), all.end(), with), 0) << rate;
    all.push_back(with);
  }
}

TEST(ModernBert, PaddingBetweenTokensIsRefused) {
  const Tensor ids = Tensor::FromVector<int32_t>({5, 4, 9}).Reshape({1, 3});
  const Batch batch =
      Batch::FromPadded(ids, Tensor::FromVector<int32_t>({1, 0, 1}).Reshape({1, 3}));
  EXPECT_EQ(ErrorOf([&] { Make("modernbert")->Forward(batch); }),
            "[modernbert] sequence 0 has 2 tokens at positions 0 to 2, but a model with relative "
            "positions takes no padding between tokens");
  // Without local layers, rotary positions say how far tokens are from each other.
  const auto global = Make("modernbert", {{"global_attn_every_n_layers", 1}});
  const Floats apart = global->Forward(batch).logits.ToVector<float>();
  EXPECT_NE(apart, Logits(*global, {{5, 9}}));
}

// 8,192 tokens are what published models take. A text is classified alike alone and among others.
TEST(ModernBert, LongTexts) {
  const auto model = Make("modernbert", {{"max_position_embeddings", 8192},
                                         {"local_attention", 128},
                                         {"classifier_pooling", "mean"}});
  EXPECT_EQ(model->max_length(), 8192);
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 8192; ++i) text.push_back(1 + i * i % 29);
  const Floats packed = Logits(*model, {{2, 7, 9}, text, {4}});
  ExpectNear(Floats(packed.begin() + 3, packed.begin() + 6), Logits(*model, {text}), 1e-5);
  ExpectNear(Floats(packed.begin(), packed.begin() + 3), Logits(*model, {{2, 7, 9}}), 1e-6);
  std::vector<int32_t> other = text;
  other[8000] = text[8000] == 5 ? 6 : 5;
  EXPECT_NE(Logits(*model, {other}), Logits(*model, {text}));
  text.push_back(1);
  EXPECT_EQ(ErrorOf([&] { Logits(*model, {text}); }),
            "[modernbert] a sequence has 8193 tokens but the model's max_position_embeddings is "
            "8192");
}

// A head that reads all tokens depends only on distances between positions. So padding on the left
// changes nothing.
TEST(RotaryFamilies, PaddingOnTheLeft) {
  const std::vector<int32_t> text = {2, 7, 9, 3, 11};
  for (const char* pooling : {"mean", "late"}) {
    const auto model = Make("eurobert", {{"classifier_pooling", pooling}});
    ExpectNear(model->Forward(PaddedOnTheLeft(text, 6)).logits.ToVector<float>(),
               Logits(*model, {text}), 1e-5);
  }
  for (const char* model_type : {"roformer", "nomic_bert", "modernbert"}) {
    EXPECT_EQ(ErrorOf([&] { Make(model_type)->Forward(PaddedOnTheLeft(text, 6)); }),
              std::string("[") + model_type +
                  "] sequence 0 starts at position 6, but the classifier reads position 0");
  }
}

TEST(RotaryFamilies, RopeValuesThatCannotBeMeantAreRefused) {
  struct Row {
    Json rope;
    std::string what;
  };
  const Row rows[] = {
      {{{"rope_theta", 0}}, "\"rope_theta\" must be a positive number but is 0"},
      {{{"rope_theta", -1e4}}, "\"rope_theta\" must be a positive number but is -10000.0"},
      {{{"rope_theta", "1e4"}}, "\"rope_theta\" must be a positive number but is \"1e4\""},
      {{{"rope_type", "linear"}}, "\"factor\" must be a number from 1 to 1e+06 but is null"},
      {{{"rope_type", "linear"}, {"factor", 0.5}},
       "\"factor\" must be a number from 1 to 1e+06 but is 0.5"},
      {{{"rope_type", "linear"}, {"factor", "2"}},
       "\"factor\" must be a number from 1 to 1e+06 but is \"2\""},
      {{{"partial_rotary_factor", 0}}, "\"partial_rotary_factor\" must be 1 but is 0"},
      {{{"partial_rotary_factor", 1.5}}, "\"partial_rotary_factor\" must be 1 but is 1.5"},
      {{{"rope_type", "dynamic"}},
       "rope_type \"dynamic\" is not supported; supported: default, linear"},
  };
  for (const char* model_type : {"eurobert", "modernbert", "nomic_bert"}) {
    for (const auto& [rope, what] : rows) {
      EXPECT_EQ(ErrorOf(model_type, {{"rope_parameters", rope}}),
                "config: \"rope_parameters\": " + what)
          << model_type;
    }
  }
}

TEST(RoFormer, TheTableIsNotTrained) {
  const auto model = Make("roformer");
  const Tensor table = ParameterOf(*model, "roformer.encoder.embed_positions.weight");
  EXPECT_EQ(table.shape(), Shape({16, 4}));
  EXPECT_FALSE(table.requires_grad());
  for (int p = 0; p < 16; ++p) {
    EXPECT_FLOAT_EQ(table.data<float>()[p * 4], std::sin(static_cast<float>(p)));
    EXPECT_FLOAT_EQ(table.data<float>()[p * 4 + 3], std::cos(static_cast<float>(p) / 100));
  }
  EXPECT_NE(Logits(*Make("roformer", {{"rotary_value", true}}), {{2, 7, 9}}),
            Logits(*model, {{2, 7, 9}}));
  EXPECT_EQ(ErrorOf("roformer", {{"hidden_size", 6}}),
            "config: \"hidden_size\" 6 and \"num_attention_heads\" 2 make heads of 3 columns, but "
            "rotary positions need an even number");
}

TEST(NomicBert, WrongHeads) {
  EXPECT_EQ(ErrorOf("nomic_bert", {{"head_dim", 4}}), "nothing was thrown");
  EXPECT_EQ(ErrorOf("nomic_bert", {{"head_dim", 6}}),
            "config: \"head_dim\" is 6, but \"hidden_size\" and \"num_attention_heads\" make heads "
            "of 4 columns");
}

TEST(EuroBert, WrongConfigurations) {
  EXPECT_EQ(ErrorOf("eurobert", {{"head_dim", 6}}), "nothing was thrown");
  EXPECT_EQ(ErrorOf("eurobert", {{"head_dim", 3}}),
            "config: heads have 3 columns, but rotary positions need an even number");
  EXPECT_EQ(ErrorOf("eurobert", {{"num_key_value_heads", 3}}),
            "config: \"num_attention_heads\" 2 is not a multiple of \"num_key_value_heads\" 3");
  EXPECT_EQ(ErrorOf("eurobert", {{"classifier_pooling", "cls"}}),
            "config: \"classifier_pooling\" \"cls\" is not supported; supported: bos, mean, late");
}

}  // namespace
}  // namespace lathe
