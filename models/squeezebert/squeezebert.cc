// SqueezeBERT (Iandola et al. 2020), computed like Transformers'
// SqueezeBertForSequenceClassification: BERT's encoder with linear layers in groups of columns.
// Checkpoints store these layers as convolutions of one tap.
#include <absl/strings/str_cat.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/ops/activation.h"
#include "lathe/core/ops/attention.h"
#include "lathe/models/architecture.h"
#include "lathe/models/encoders/encoder_classifier.h"
#include "lathe/models/encoders/post_norm_encoder.h"

namespace lathe {
namespace {

const nlohmann::json& Defaults() {
  static const auto* defaults = [] {
    auto* values = new nlohmann::json(BertLikeConfigDefaults());
    for (const char* key : {"classifier_dropout", "is_decoder", "position_embedding_type"}) {
      values->erase(key);
    }
    values->update({{"embedding_size", 768},
                    {"intermediate_groups", 4},
                    {"k_groups", 4},
                    {"output_groups", 4},
                    {"post_attention_groups", 1},
                    {"q_groups", 4},
                    {"v_groups", 4}});
    return values;
  }();
  return *defaults;
}

struct SqueezeBertOptions {
  PostNormEncoderOptions encoder;
  int64_t query_groups = 1, key_groups = 1, value_groups = 1, attention_output_groups = 1;
  int64_t intermediate_groups = 1, output_groups = 1;
};

SqueezeBertOptions ReadOptions(const ConfigReader& reader) {
  SqueezeBertOptions options;
  options.encoder = ReadPostNormEncoderOptions(reader);
  if (reader.Int("embedding_size") != reader.Int("hidden_size")) {
    throw WrongConfig(reader.path(), {"embedding_size", "hidden_size"},
                      absl::StrCat("\"embedding_size\" ", reader.Int("embedding_size"),
                                   " is not \"hidden_size\" ", reader.Int("hidden_size"),
                                   ", and this family has no layer between the two"),
                      "correct one of the two");
  }
  const auto groups = [&](const char* key, std::vector<std::string> columns_keys) {
    const int64_t count = reader.Int(key, 1, 32768);
    for (const std::string& columns_key : columns_keys) CheckHeads(reader, columns_key, key);
    return count;
  };
  options.query_groups = groups("q_groups", {"hidden_size"});
  options.key_groups = groups("k_groups", {"hidden_size"});
  options.value_groups = groups("v_groups", {"hidden_size"});
  options.attention_output_groups = groups("post_attention_groups", {"hidden_size"});
  options.intermediate_groups = groups("intermediate_groups", {"hidden_size", "intermediate_size"});
  options.output_groups = groups("output_groups", {"hidden_size", "intermediate_size"});
  return options;
}

class SqueezeBertLayer : public Module {
 public:
  explicit SqueezeBertLayer(const SqueezeBertOptions& options) : options_(options.encoder.layer) {
    const int64_t H = options_.hidden_size, I = options_.intermediate_size;
    const Init init = Init::Normal(options_.initializer_range);
    const auto grouped = [&](const char* name, int64_t in, int64_t out, int64_t groups) {
      return Register<nn::GroupedLinear>(name, in, out, groups, init);
    };
    // The norms of the layers have an epsilon of their own, whatever "layer_norm_eps" says.
    constexpr double kEps = 1e-12;
    query_ = grouped("attention.query", H, H, options.query_groups);
    key_ = grouped("attention.key", H, H, options.key_groups);
    value_ = grouped("attention.value", H, H, options.value_groups);
    attention_output_ = grouped("post_attention.conv1d", H, H, options.attention_output_groups);
    attention_norm_ = Register<nn::LayerNorm>("post_attention.layernorm", H, kEps);
    intermediate_ = grouped("intermediate.conv1d", H, I, options.intermediate_groups);
    output_ = grouped("output.conv1d", I, H, options.output_groups);
    output_norm_ = Register<nn::LayerNorm>("output.layernorm", H, kEps);
  }

  // [T, H] -> [T, H], or [B, H] if first_tokens_only: the rows of first tokens. `site` selects the
  // dropout masks.
  Tensor Forward(const Tensor& hidden_states, const nn::ForwardContext& context,
                 bool first_tokens_only, const std::string& site) const {
    const double p = options_.hidden_dropout_prob;
    const Tensor residual = first_tokens_only
                                ? nn::FirstTokens(hidden_states, context.sequences.cu_seqlens)
                                : hidden_states;
    const Tensor a = attention_norm_->Forward(
        attention_output_->Forward(
            Attend(hidden_states, residual, context, first_tokens_only, site + ".attention")),
        residual, context.Dropout(p, site + ".post_attention", first_tokens_only));
    return output_norm_->Forward(FeedForward(a), a,
                                 context.Dropout(p, site + ".output", first_tokens_only));
  }

 private:
  // Self-attention of the rows `queries`, which are all hidden states or those of first tokens.
  Tensor Attend(const Tensor& hidden_states, const Tensor& queries,
                const nn::ForwardContext& context, bool first_tokens_only,
                const std::string& site) const {
    AttentionOptions options;
    options.num_heads = options_.num_attention_heads;
    options.first_query_only = first_tokens_only;
    options.values_first = true;
    options.dropout = context.Dropout(options_.attention_probs_dropout_prob, site);
    return PackedAttention(query_->Forward(queries),
                           GroupedLinearStack(hidden_states, {value_->layer, key_->layer}),
                           context.sequences, options);
  }

  Tensor FeedForward(const Tensor& x) const {
    return output_->Forward(Activation(intermediate_->Forward(x), options_.hidden_act));
  }

  nn::PostNormLayerOptions options_;
  std::shared_ptr<nn::GroupedLinear> query_, key_, value_, attention_output_, intermediate_,
      output_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
};

class SqueezeBertModel : public Encoder {
 public:
  explicit SqueezeBertModel(const ConfigReader& reader)
      : Encoder("squeezebert", reader.Settings()), options_(ReadOptions(reader)) {
    embeddings_ =
        Register<NormedEmbeddings>("embeddings", options_.encoder.embeddings, "squeezebert");
    for (int64_t i = 0; i < num_layers(); ++i) {
      layers_.push_back(Register<SqueezeBertLayer>(absl::StrCat("encoder.layers.", i), options_));
    }
  }

  int64_t hidden_size() const override { return options_.encoder.layer.hidden_size; }
  int64_t num_layers() const override { return options_.encoder.num_hidden_layers; }
  int64_t max_length() const override { return embeddings_->max_length(); }

 private:
  Tensor Embed(const Batch& batch, const nn::ForwardContext& context) const override {
    return embeddings_->Forward(batch, context);
  }

  LayerFunction Layer(int64_t i) const override {
    return [layer = layers_[i], site = absl::StrCat("encoder.layer.", i)](
               const Tensor& hidden_states, const nn::ForwardContext& context, bool first_only) {
      return layer->Forward(hidden_states, context, first_only, site);
    };
  }

  SqueezeBertOptions options_;
  std::shared_ptr<NormedEmbeddings> embeddings_;
  std::vector<std::shared_ptr<SqueezeBertLayer>> layers_;
};

std::shared_ptr<SequenceClassifier> Make(const PretrainedConfig& config, uint64_t seed) {
  const ConfigReader reader(config, Defaults());
  return std::make_shared<EncoderClassifier>(
      config, seed, "transformer", std::make_shared<SqueezeBertModel>(reader),
      ClassifierHeadOptions{.dense = "transformer.pooler.dense",
                            .output = "classifier",
                            .activation = ActivationKind::kTanh,
                            .dropout = reader.Probability("hidden_dropout_prob"),
                            .initializer_range = reader.NotNegative("initializer_range")});
}

PassMemory Memory(const SequenceClassifier& model, const MemoryOptions& options) {
  const SqueezeBertOptions squeeze = ReadOptions(ConfigReader(model.config(), Defaults()));
  PostNormEncoderShape shape = PostNormEncoderShapeOf(model, squeeze.encoder);
  shape.keeps_activated = true;
  const int64_t H = squeeze.encoder.layer.hidden_size;
  const int64_t I = squeeze.encoder.layer.intermediate_size;
  shape.layer_weights = H * (H / squeeze.query_groups + H / squeeze.key_groups +
                             H / squeeze.value_groups + H / squeeze.attention_output_groups) +
                        I * (H / squeeze.intermediate_groups) + H * (I / squeeze.output_groups);
  return PostNormEncoderMemory(shape, options);
}

const ArchitectureRegistration kSqueezeBert({
    .model_type = "squeezebert",
    .class_name = "SqueezeBertForSequenceClassification",
    .make = Make,
    .names = {.base_prefix = "transformer."},
    .config_defaults = Defaults(),
    .dropout_keys = {"hidden_dropout_prob", "attention_probs_dropout_prob"},
    .pass_memory = Memory,
});

}  // namespace
}  // namespace lathe
