#include "lathe/models/parameter_places.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/models/architecture.h"
#include "lathe/models/families_testing.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Names = std::vector<std::string>;

// Returns the names of the parameters at a depth, outside the head, without the encoder's name.
Names NamesAt(const SequenceClassifier& model, int64_t depth) {
  const std::string& prefix = ArchitectureOf(model.config()).names.base_prefix;
  const ParameterPlaces all = PlacesOfParameters(model);
  const std::vector<Parameter> parameters = model.Parameters();
  Names names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (all.places[i].in_head || all.places[i].depth != depth) continue;
    EXPECT_TRUE(parameters[i].name.starts_with(prefix)) << parameters[i].name;
    names.push_back(parameters[i].name.substr(prefix.size()));
  }
  return names;
}

Names Plus(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

// What is frozen by --freeze_layers embeddings, and has the lowest rate of --layerwise_lr_decay.
// docs/training.md has the same as a table.
TEST(ParameterPlacesTest, EmbeddingsAreAllThatIsUsedBeforeTheFirstLayer) {
  const Names tables = {"embeddings.word_embeddings.weight",
                        "embeddings.position_embeddings.weight",
                        "embeddings.token_type_embeddings.weight"};
  const Names norm = {"embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"};
  const Names words_positions = {tables[0], tables[1]};
  const Names bert = Plus(tables, norm);
  const auto projected = [](const Names& names, const std::string& projection) {
    return Plus(names, {projection + ".weight", projection + ".bias"});
  };
  const std::map<std::string, Names> expected = {
      {"albert", projected(bert, "encoder.embedding_hidden_mapping_in")},
      {"bert", bert},
      {"camembert", bert},
      {"convbert", projected(bert, "embeddings_project")},
      {"data2vec-text", bert},
      {"deberta", Plus(Plus({tables[0]}, norm), {"encoder.rel_embeddings.weight"})},
      {"deberta-v2", Plus(Plus({tables[0], "embeddings.embed_proj.weight"}, norm),
                          {"encoder.rel_embeddings.weight", "encoder.LayerNorm.weight",
                           "encoder.LayerNorm.bias"})},
      {"distilbert", Plus(words_positions, norm)},
      {"electra", projected(bert, "embeddings_project")},
      {"ernie", Plus(Plus(tables, {"embeddings.task_type_embeddings.weight"}), norm)},
      {"eurobert", {"embed_tokens.weight"}},
      {"megatron-bert", tables},
      {"mobilebert", Plus(projected(tables, "embeddings.embedding_transformation"), norm)},
      {"modernbert", {"embeddings.tok_embeddings.weight", "embeddings.norm.weight"}},
      {"mpnet", Plus(Plus(words_positions, norm), {"encoder.relative_attention_bias.weight"})},
      {"nomic_bert", {tables[0], tables[2], "emb_ln.weight", "emb_ln.bias"}},
      {"rembert", projected(bert, "encoder.embedding_hidden_mapping_in")},
      {"roberta", bert},
      {"roberta-prelayernorm", bert},
      {"roformer", Plus(projected(Plus({tables[0], tables[2]}, norm), "embeddings_project"),
                        {"encoder.embed_positions.weight"})},
      {"squeezebert", bert},
      {"xlm-roberta", bert},
      {"xlm-roberta-xl", tables},
  };
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.model_type);
    const auto model = AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(With(family.config, {{"model_type", family.model_type}})),
        {.num_labels = 3});
    EXPECT_EQ(NamesAt(*model, 0), expected.at(family.model_type));
  }
  EXPECT_EQ(expected.size(), Families().size());
}

// What lies between the last layer and the head has the rate of the head.
TEST(ParameterPlacesTest, WhatFollowsTheLayersLiesAboveThem) {
  const std::map<std::string, Names> expected = {
      {"bert", {"pooler.dense.weight", "pooler.dense.bias"}},
      {"megatron-bert",
       {"encoder.ln.weight", "encoder.ln.bias", "pooler.dense.weight", "pooler.dense.bias"}},
      {"modernbert", {"final_norm.weight"}},
      {"roberta", {}},
      {"roberta-prelayernorm", {"LayerNorm.weight", "LayerNorm.bias"}},
  };
  size_t met = 0;
  for (const Family& family : Families()) {
    const auto found = expected.find(family.model_type);
    if (found == expected.end()) continue;
    SCOPED_TRACE(family.model_type);
    ++met;
    const auto model = AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(With(family.config, {{"model_type", family.model_type}})),
        {.num_labels = 3});
    EXPECT_EQ(NamesAt(*model, PlacesOfParameters(*model).num_layers + 1), found->second);
  }
  EXPECT_EQ(met, expected.size());
}

}  // namespace
}  // namespace lathe
