// ALBERT (Lan et al. 2020), computed like Transformers' AlbertForSequenceClassification: groups of
// layers that are used several times, and embeddings with fewer columns than the layers.
#include <absl/strings/str_cat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = new nlohmann::json{{"attention_probs_dropout_prob", 0.0},
                                                   {"classifier_dropout_prob", 0.1},
                                                   {"embedding_size", 128},
                                                   {"hidden_act", "gelu_new"},
                                                   {"hidden_dropout_prob", 0.0},
                                                   {"hidden_size", 4096},
                                                   {"initializer_range", 0.02},
                                                   {"inner_group_num", 1},
                                                   {"intermediate_size", 16384},
                                                   {"layer_norm_eps", 1e-12},
                                                   {"max_position_embeddings", 512},
                                                   {"num_attention_heads", 64},
                                                   {"num_hidden_groups", 1},
                                                   {"num_hidden_layers", 12},
                                                   {"pad_token_id", 0},
                                                   {"position_embedding_type", "absolute"},
                                                   {"type_vocab_size", 2},
                                                   {"vocab_size", 30000}};
  return *defaults;
}

struct AlbertOptions {
  PostNormEncoderOptions encoder;
  int64_t num_hidden_groups = 1;
  int64_t inner_group_num = 1;  // layers of a group
};

AlbertOptions ReadOptions(const ConfigReader& reader) {
  AlbertOptions options;
  options.encoder = ReadPostNormEncoderOptions(reader);
  options.encoder.layer.drops_output = false;
  options.encoder.layer.names = {.self_attention = "attention",
                                 .attention_output = "attention.dense",
                                 .attention_norm = "attention.LayerNorm",
                                 .intermediate = "ffn",
                                 .output = "ffn_output",
                                 .output_norm = "full_layer_layer_norm"};
  options.num_hidden_groups = reader.Int("num_hidden_groups", 1, options.encoder.num_hidden_layers);
  options.inner_group_num = reader.Int("inner_group_num", 1, 1024);
  return options;
}

class AlbertModel : public Encoder {
 public:
  explicit AlbertModel(const ConfigReader& reader)
      : Encoder("albert", reader.Settings()), options_(ReadOptions(reader)) {
    const PostNormEncoderOptions& o = options_.encoder;
    embeddings_ = Register<NormedEmbeddings>("embeddings", o.embeddings, "albert");
    if (o.relative_row) UseRelativePositions(o.relative_row);
    projection_ =
        Register<nn::Linear>("encoder.embedding_hidden_mapping_in", o.embeddings.hidden_size,
                             o.layer.hidden_size, Init::Normal(o.layer.initializer_range));
    for (int64_t g = 0; g < options_.num_hidden_groups; ++g) {
      auto& group = groups_.emplace_back();
      for (int64_t k = 0; k < options_.inner_group_num; ++k) {
        group.push_back(Register<nn::PostNormLayer>(
            absl::StrCat("encoder.albert_layer_groups.", g, ".albert_layers.", k), o.layer));
      }
    }
  }

  int64_t hidden_size() const override { return options_.encoder.layer.hidden_size; }
  int64_t num_layers() const override { return options_.encoder.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    return projection_->Forward(embeddings_->Forward(batch, context));
  }

  // Layer `i` runs all inner layers of its group.
  LayerFunction Layer(int64_t i) const override {
    const int64_t g = i * options_.num_hidden_groups / num_layers();
    return [group = groups_[g], i](Tensor hidden_states, const nn::ForwardContext& context,
                                   bool first_tokens_only) {
      for (size_t k = 0; k < group.size(); ++k) {
        hidden_states =
            group[k]->Forward(hidden_states, context, first_tokens_only && k + 1 == group.size(),
                              absl::StrCat("encoder.layer.", i, ".", k));
      }
      return hidden_states;
    };
  }

  AlbertOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::shared_ptr<nn::Linear> projection_;
  std::vector<std::vector<std::shared_ptr<nn::PostNormLayer>>> groups_;
};

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "albert", std::make_shared<AlbertModel>(reader),
      ClassifierHeadOptions{.dense = "albert.pooler",
                            .output = "classifier",
                            .activation = ActivationKind::kTanh,
                            .dropout = reader.Probability("classifier_dropout_prob"),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const AlbertOptions albert = ReadOptions(ConfigReader(model.config(), Defaults()));
  PostNormEncoderOptions encoder = albert.encoder;
  encoder.num_hidden_layers *= albert.inner_group_num;
  return PostNormEncoderMemory(model, encoder, options,
                               albert.num_hidden_groups * albert.inner_group_num);
}

const ArchitectureRegistration kAlbert({
    .model_type = "albert",
    .class_name = "AlbertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "albert."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob",
                     "classifier_dropout_prob"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
