// NormedEmbeddings: what enters the first layer of BERT and its siblings.
//
//   y[t] = dropout(LayerNorm(word[id[t]] + token_type[type[t]] + position[first + pos[t]]
//                            + task_type[0]))
//
// If first > 0, tokens of id first - 1 are padding: pos[t] doesn't count them, and is -1 for them.
// There is no norm if the layers normalise their input themselves. There are no positions if
// attention uses distances.
//
// A model with rotary positions has no table of positions.
//
//   embeddings_ = Register<NormedEmbeddings>("embeddings", options, "bert");
//   Tensor hidden_states = embeddings_->Forward(batch, context);   // [T, H]
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lathe/data/datasets/batch.h"
#include "lathe/nn/layers.h"

namespace lathe {

struct NormedEmbeddingsOptions {
  int64_t vocab_size = 0, max_position_embeddings = 0;  // rows of the tables
  int64_t type_vocab_size = 0;                          // the same; 0: no table of token types
  int64_t task_type_vocab_size = 0;                     // the same for task types
  int64_t hidden_size = 0;
  // The row of position 0. RoBERTa's positions follow the row of its padding, pad_token_id. If it
  // is not 0, the token of the row before it is padding, which has no position of its own.
  int64_t first_position = 0;
  int64_t pad_token_id = 0;  // its row in the word table starts at 0 and gets no gradient
  double initializer_range = 0.02, layer_norm_eps = 1e-12, hidden_dropout_prob = 0.1;
  // Paths of the word table, the table of token types and the norm.
  std::string word = "word_embeddings", types = "token_type_embeddings", norm = "LayerNorm";
  std::optional<Init> word_init = {};      // replaces normal numbers of initializer_range
  std::optional<Init> position_init = {};  // the same for the position table
  bool has_norm = true, norm_has_bias = true;
  bool has_positions = true;   // false: there is no position table, but its length still counts
  bool adds_positions = true;  // false: the position table exists, but is neither read nor trained
  bool in_float32 = false;     // gives float32, whatever the compute dtype is
};

class NormedEmbeddings : public Module {
 public:
  // `model` is the tag of errors, as in "[bert] ...".
  NormedEmbeddings(const NormedEmbeddingsOptions& options, const char* model);

  // Returns [N, H] in the compute dtype or float32, for the N rows of `context`. The context
  // belongs to `batch` (forward_context.h). Throws if a sequence is longer than the position table,
  // or if an id is outside its table.
  Tensor Forward(const Batch& batch, const nn::ForwardContext& context) const;
  // Returns the length of the longest sequence that max_position_embeddings allows.
  int64_t max_length() const { return options_.max_position_embeddings - options_.first_position; }

 private:
  // Returns the row of each token in the position table: [N] i32.
  Tensor PositionRows(const nn::ForwardContext& context) const;

  NormedEmbeddingsOptions options_;
  const char* model_;
  std::shared_ptr<nn::Embedding> word_;
  std::shared_ptr<nn::Embedding> position_, token_type_, task_type_;  // null without such a table
  std::shared_ptr<nn::LayerNorm> norm_;                               // null without a norm
};

}  // namespace lathe
