// A BERT and data that are small enough for tests of whole training steps.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/models/pretrained.h"

namespace lathe {

// Returns a BERT with 50 words, one layer of 16 columns in two heads, up to 160 tokens, and dropout
// of 0.1. `changes` go into its config.json.
inline std::shared_ptr<SequenceClassifier> TinyBert(const nlohmann::json& changes = {},
                                                    int64_t num_labels = 2) {
  nlohmann::json config = {{"architectures", {"BertForSequenceClassification"}},
                           {"model_type", "bert"},
                           {"vocab_size", 50},
                           {"hidden_size", 16},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", 2},
                           {"intermediate_size", 36},
                           {"max_position_embeddings", 160},
                           {"type_vocab_size", 2}};
  if (!changes.is_null()) config.update(changes);
  return AutoModelForSequenceClassification::FromConfig(PretrainedConfig::FromJson(config),
                                                        {.num_labels = num_labels});
}

// Returns `n` sequences of 1 to `longest` tokens below 50. Each begins with its class, 0 or 1.
inline std::shared_ptr<TokenizedDataset> TinyData(int64_t n, int64_t longest = 7) {
  auto data = std::make_shared<TokenizedDataset>();
  data->has_labels = true;
  data->num_labels = 2;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t t = 0; t <= i * 5 % longest; ++t) {
      data->input_ids.push_back(static_cast<int32_t>((t == 0 ? i % 2 : i * 7 + t * 3) % 50));
    }
    data->token_type_ids.resize(data->input_ids.size());
    data->offsets.push_back(std::ssize(data->input_ids));
    data->classes.push_back(i % 2);
  }
  return data;
}

}  // namespace lathe
