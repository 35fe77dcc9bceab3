// The model card of a training: a README.md in the form of Transformers' Trainer, which the Hub
// shows. It has a digest of itself, by which a later training sees whether people have edited it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lathe {

inline constexpr char kModelCard[] = "README.md";

// What a card tells. Texts may hold any characters.
struct ModelCardFacts {
  std::string model_name = {};
  // The model that training began with: its name on the Hub or, if `base_is_local`, of its folder.
  // Empty: training began with fresh weights.
  std::string base_model = {};
  bool base_is_local = false;
  // The names of the files of data; empty: unknown.
  std::string training_data = {}, evaluation_data = {};
  nlohmann::ordered_json hyperparameters = {};  // as TrainerHyperparameters returns them
  nlohmann::json log_history = {};              // TrainerState::log_history
  // The metrics of the model that was saved, with "eval_" before their names; null: none.
  nlohmann::json evaluation = {};
};

// Returns the card. A metric that is null counts as undefined: the card says so, and its front
// matter, which is YAML, leaves it out.
std::string ModelCard(const ModelCardFacts& facts);

// Returns true if `text` is a card that ModelCard has returned, with no byte changed since.
bool IsUneditedCard(const std::string& text);

// Returns true if there is such a card at `path`.
bool HasUneditedCard(const std::string& path);
// Returns true if there is anything at `path` that is no such card, even if it can't be read.
bool HasForeignCard(const std::string& path);

}  // namespace lathe
