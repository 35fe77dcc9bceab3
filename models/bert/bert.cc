#include "lathe/models/bert/bert.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace lathe {
const nlohmann::json& BertConfigDefaults() {
  static const auto* defaults = new nlohmann::json(BertLikeConfigDefaults());
  return *defaults;
}

BertModel::BertModel(const PretrainedConfig& config, bool pooler)
    : PostNormEncoder("bert", ConfigReader(config, BertConfigDefaults()).Settings(),
                      ReadPostNormEncoderOptions(ConfigReader(config, BertConfigDefaults()))) {
  if (pooler) {
    pooler_ = Register<nn::Linear>("pooler.dense", hidden_size(), hidden_size(),
                                   Init::Normal(options().layer.initializer_range),
                                   ActivationKind::kTanh);
  }
}

BertOutput BertModel::Forward(const Batch& batch, const BertForwardOptions& options) const {
  BertOutput out = {Encoder::Forward(batch, options), {}};
  if (pooler_ != nullptr) out.pooled = pooler_->Forward(out.first_tokens);
  return out;
}

namespace {

ClassifierHeadOptions HeadOptions(const PretrainedConfig& config) {
  const ConfigReader reader(config, BertConfigDefaults());
  const char* const rate =
      config.has("classifier_dropout") ? "classifier_dropout" : "hidden_dropout_prob";
  return {.dense = "bert.pooler.dense",
          .output = "classifier",
          .activation = ActivationKind::kTanh,
          .dropout = reader.Probability(rate),
          .initializer_range = reader.NotNegative("initializer_range")};
}

}  // namespace

BertForSequenceClassification::BertForSequenceClassification(const PretrainedConfig& config,
                                                             uint64_t seed)
    : EncoderClassifier(config, seed, "bert", std::make_shared<BertModel>(config, false),
                        HeadOptions(config)) {}

}  // namespace lathe
