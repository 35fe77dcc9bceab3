// The post-norm transformer encoder layer of BERT (Devlin et al. 2018), over packed sequences:
//
//   a = LayerNorm(x + dropout(W_o attention(x)));  y = LayerNorm(a + dropout(W_2 act(W_1 a)))
//
// With a gate the feed-forward block is W_2 (act(W_g a) * W_1 a) (Shazeer 2020).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lathe/nn/layers.h"

namespace lathe::nn {

// The names of the layer's parts, as paths of their parameters. The defaults are BERT's.
struct PostNormLayerNames {
  std::string self_attention = "attention.self";
  std::string query = "query", key = "key", value = "value";  // below self_attention
  // One layer with the outputs of all three, below self_attention; empty: there are three layers.
  std::string qkv = "";
  std::string attention_output = "attention.output.dense";
  std::string attention_norm = "attention.output.LayerNorm";
  std::string intermediate = "intermediate.dense", output = "output.dense";
  std::string gate = "";  // W_g; empty: there is no gate
  std::string output_norm = "output.LayerNorm";
};

struct PostNormLayerOptions {
  int64_t hidden_size = 768;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  ActivationKind hidden_act = ActivationKind::kGelu;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  bool drops_attention_output = true, drops_output = true;  // with hidden_dropout_prob
  bool has_biases = true;                                   // of the linear layers
  int64_t window = -1;  // a query sees only keys at this distance at most; -1: all keys
  // The values of queries', keys' and values' weights; replaces initializer_range.
  std::optional<Init> qkv_init = {};
  // The rows of the table distance_embedding below self_attention (Shaw et al. 2018); 0: there is
  // none. ForwardContext::relative says which row belongs to the distance of a query and a key.
  // The score of the two gets the row's product with the query, before the scores are scaled.
  int64_t num_distances = 0;
  bool multiplies_keys = false;  // scores get the row's product with the key, too
  PostNormLayerNames names = {};
};

// Multi-head self-attention without its output projection.
class SelfAttention : public Module {
 public:
  // Reads only the options of attention among those of a layer.
  explicit SelfAttention(const PostNormLayerOptions& options);
  // hidden_states: [T, H] -> [T, H], or [B, H] if first_tokens_only: only first tokens have
  // queries. Turns queries and keys if the context has rotary positions. `site` selects the dropout
  // masks.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context, bool first_tokens_only,
                 std::string_view site) const;

 private:
  // Returns queries, [N, H], of rows x: [N, H]. positions: [N] i32.
  Tensor Queries(const Tensor& x, const RotaryPositions& rotary, const Tensor& positions) const;
  // Returns keys and values one below the other: [2 T, H].
  Tensor KeysAndValues(const Tensor& x, const ForwardContext& context) const;
  // Returns queries, keys and values one below the other: [3 T, H].
  Tensor Stack(const Tensor& x, const ForwardContext& context) const;

  PostNormLayerOptions options_;
  std::shared_ptr<Linear> query_, key_, value_;  // null if there is one layer for all
  std::shared_ptr<Linear> qkv_;                  // null if there are three
  Tensor distance_embedding_;  // [num_distances, H / heads]; undefined if there is none
};

class PostNormLayer : public Module {
 public:
  explicit PostNormLayer(const PostNormLayerOptions& options);
  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens, exactly as in the
  // full result. `site` selects the dropout masks. It is the layer's path, or tells the uses of a
  // layer apart that is used several times.
  Tensor Forward(const Tensor& hidden_states, const ForwardContext& context, bool first_tokens_only,
                 const std::string& site) const;

 private:
  // [N, H] -> [N, H]: the feed-forward block without norm and dropout.
  Tensor Inner(const Tensor& a) const;

  PostNormLayerOptions options_;
  std::shared_ptr<SelfAttention> self_;
  std::shared_ptr<Linear> attention_output_, intermediate_, output_;
  std::shared_ptr<Linear> gate_;  // null if there is none
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
};

}  // namespace lathe::nn
