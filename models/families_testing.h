// The cases of the tests of every family (families_test.cc): tiny configurations, and what their
// keys are called.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace lathe {

struct Family {
  std::string model_type;
  nlohmann::json config;  // of a tiny model
  // The keys of config.json for what every family has.
  std::string columns = "hidden_size", heads = "num_attention_heads", activation = "hidden_act",
              dropout = "hidden_dropout_prob";
  int64_t max_length = 16;
  std::string norm = "LayerNorm.bias";                // part of the name of a norm's parameter
  std::string word_table = "word_embeddings.weight";  // the end of its name
};

inline void PrintTo(const Family& family, std::ostream* out) { *out << family.model_type; }

// Returns the sizes and rates of a tiny model under the keys that BERT's configuration has.
nlohmann::json TinyConfig();

// Returns `config` with the values of `changes`.
nlohmann::json With(nlohmann::json config, const nlohmann::json& changes);

// Returns a case for each family that Lathe has.
std::vector<Family> Families();

// Returns cases for parts that few configurations of a family have. Each family occurs once.
std::vector<Family> RareParts();

}  // namespace lathe
