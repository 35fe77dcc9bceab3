// Tests what is special in DeBERTa: the errors of its configurations, its loss, and its
// convolution.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

Json Config(const Json& changes = Json::object()) {
  Json config = {{"model_type", "deberta-v2"}, {"vocab_size", 30},
                 {"hidden_size", 8},           {"num_hidden_layers", 2},
                 {"num_attention_heads", 2},   {"intermediate_size", 12},
                 {"hidden_dropout_prob", 0},   {"attention_probs_dropout_prob", 0},
                 {"initializer_range", 0.3},   {"max_position_embeddings", 16}};
  config.update(changes);
  return config;
}

std::shared_ptr<SequenceClassifier> Make(const Json& changes, int64_t num_labels = 3) {
  return AutoModelForSequenceClassification::FromConfig(PretrainedConfig::FromJson(Config(changes)),
                                                        {.num_labels = num_labels});
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

std::string ErrorOf(const Json& changes) {
  return ErrorOf([&] { Make(changes); });
}

TEST(Disentangled, WrongConfigurationsAreRefused) {
  EXPECT_EQ(ErrorOf(Json::object()), "");
  EXPECT_EQ(ErrorOf({{"pos_att_type", "c2p|p2p"}}),
            "config: \"pos_att_type\" has \"p2p\"; known: c2p, p2c");
  EXPECT_EQ(ErrorOf({{"pos_att_type", {"c2p", "C2P"}}}),
            "config: \"pos_att_type\" has \"C2P\"; known: c2p, p2c");
  EXPECT_EQ(ErrorOf({{"pos_att_type", 7}}), "config: \"pos_att_type\" has \"7\"; known: c2p, p2c");
  EXPECT_EQ(ErrorOf({{"pos_att_type", "c2p| C2P"}}), "config: \"pos_att_type\" has \"c2p\" twice");
  EXPECT_EQ(ErrorOf({{"pos_att_type", {""}}}),
            "config: \"pos_att_type\" has \"\"; known: c2p, p2c");
  EXPECT_EQ(ErrorOf({{"pos_att_type", ""}}), "");
  EXPECT_EQ(ErrorOf({{"pos_att_type", "c2p| "}}), "");
  EXPECT_EQ(ErrorOf({{"pooler_hidden_size", 4}}),
            "config: \"pooler_hidden_size\" 4 is not \"hidden_size\" 8");
  EXPECT_EQ(ErrorOf({{"attention_head_size", 3}}),
            "config: \"attention_head_size\" 3 is not \"hidden_size\" / \"num_attention_heads\" 4");
  EXPECT_EQ(ErrorOf({{"attention_head_size", 4}}), "");
  EXPECT_EQ(ErrorOf({{"position_buckets", 1}}),
            "config: \"position_buckets\" 1 does not fit \"max_relative_positions\" 16");
  EXPECT_EQ(ErrorOf({{"position_buckets", 10}, {"max_relative_positions", 5}}),
            "config: \"position_buckets\" 10 does not fit \"max_relative_positions\" 5");
  EXPECT_EQ(ErrorOf({{"embedding_size", 0}}),
            "config: \"embedding_size\" must be from 1 to 32768 but is 0");
  EXPECT_EQ(ErrorOf({{"conv_kernel_size", 4}}),
            "config: \"conv_kernel_size\" must be odd but is 4");
  EXPECT_EQ(ErrorOf({{"conv_kernel_size", 3}, {"conv_groups", 3}}),
            "config: \"hidden_size\" 8 is not a multiple of \"conv_groups\" 3");
  EXPECT_EQ(ErrorOf({{"conv_kernel_size", 3}, {"conv_act", "step"}}),
            "config: \"conv_act\": unknown activation \"step\"");
  // Without a convolution the other two keys mean nothing.
  EXPECT_EQ(ErrorOf({{"conv_kernel_size", 0}, {"conv_groups", 3}, {"conv_act", "step"}}), "");
  // The first DeBERTa has no such layer, and the second no talking heads.
  EXPECT_EQ(ErrorOf({{"model_type", "deberta"}, {"conv_kernel_size", 4}}), "");
  EXPECT_EQ(ErrorOf({{"talking_head", "yes"}}), "");
  EXPECT_EQ(ErrorOf({{"model_type", "deberta"}, {"talking_head", "yes"}}),
            "config: \"talking_head\" must be true or false but is \"yes\"");
}

TEST(Disentangled, WrongBatchesAreRefused) {
  const auto model = Make(Json::object());
  const auto error = [&](const std::vector<int32_t>& mask) {
    const auto columns = static_cast<int64_t>(mask.size());
    const Tensor ids = Tensor::Full({1, columns}, 5, DType::kI32);
    return ErrorOf([&] {
      model->Forward(Batch::FromPadded(ids, Tensor::FromVector(mask, {1, columns})));
    });
  };
  EXPECT_EQ(error({1, 1, 0}), "");
  EXPECT_EQ(error({1, 0, 1}),
            "[deberta] sequence 0 has 2 tokens at positions 0 to 2, but a model with relative "
            "positions takes no padding between tokens");
  EXPECT_EQ(error({0, 1, 1}),
            "[deberta] sequence 0 starts at position 1, but the classifier reads position 0");
  EXPECT_EQ(error(std::vector<int32_t>(17, 1)),
            "[deberta] a sequence has 17 tokens but the model's max_position_embeddings is 16");
}

// The table of distances is in the file, but nothing reads it. So it gets no gradient, and no
// weight decay.
TEST(Disentangled, RelativeAttentionWithoutTermsReadsNoDistance) {
  for (const char* model_type : {"deberta", "deberta-v2"}) {
    for (const Json& none : {Json(), Json::array(), Json("")}) {
      const Json changes = {
          {"model_type", model_type}, {"pos_att_type", none}, {"norm_rel_ebd", "layer_norm"}};
      const auto absolute = Make(changes);
      Json relative_changes = changes;
      relative_changes["relative_attention"] = true;
      const auto relative = Make(relative_changes);
      int64_t num_tables = 0;
      for (const Parameter& p : relative->Parameters()) {
        if (!p.name.ends_with("encoder.rel_embeddings.weight")) continue;
        EXPECT_FALSE(p.tensor.requires_grad());
        EXPECT_EQ(p.tensor.shape(), (Shape{32, 8}));
        ++num_tables;
      }
      EXPECT_EQ(num_tables, 1);
      EXPECT_EQ(relative->NumParameters(), absolute->NumParameters() + 32 * 8);
      const Batch batch = Batch::Pack({{2, 7, 9, 3}, {5}, {2, 8, 3}});
      EXPECT_EQ(relative->Forward(batch).logits.ToVector<float>(),
                absolute->Forward(batch).logits.ToVector<float>());
    }
  }
}

// A sequence gets the same logits alone and between others, wherever the convolution ends.
TEST(Disentangled, TheConvolutionReadsOneSequence) {
  for (const int64_t layers : {1, 2}) {
    const auto model = Make({{"num_hidden_layers", layers},
                             {"conv_kernel_size", 5},
                             {"conv_groups", 2},
                             {"position_biased_input", false}});
    const auto logits = [&](const std::vector<std::vector<int32_t>>& texts) {
      return model->Forward(Batch::Pack(texts)).logits.ToVector<float>();
    };
    const std::vector<std::vector<int32_t>> texts = {{2, 7, 9, 3}, {5}, {2, 8, 3}};
    const std::vector<float> together = logits(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<float> alone = logits({texts[i]});
      for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(alone[c], together[3 * i + c], 1e-5) << i;
    }
    // The convolution is the only part that knows the order here.
    const std::vector<float> other = logits({{2, 9, 7, 3}});
    EXPECT_GT(std::fabs(other[0] - together[0]), 1e-4);
  }
}

// Returns the loss without a problem_type, and checks that the config still has none.
float LossOf(SequenceClassifier& model, const Tensor& labels) {
  const float loss =
      static_cast<float>(model.Forward(Batch::Pack({{2, 7}, {3}, {4, 5}}, {}, labels)).loss.Item());
  EXPECT_EQ(model.config().problem_type(), "");
  return loss;
}

std::vector<double> LogProbabilities(SequenceClassifier& model) {
  const std::vector<float> logits =
      model.Forward(Batch::Pack({{2, 7}, {3}, {4, 5}})).logits.ToVector<float>();
  std::vector<double> logs;
  for (size_t row = 0; row < 3; ++row) {
    double sum = 0;
    for (size_t c = 0; c < 3; ++c) sum += std::exp(logits[3 * row + c]);
    for (size_t c = 0; c < 3; ++c) logs.push_back(logits[3 * row + c] - std::log(sum));
  }
  return logs;
}

TEST(Disentangled, TheLossFollowsTheLabels) {
  const auto model = Make(Json::object());
  const std::vector<double> logs = LogProbabilities(*model);
  EXPECT_NEAR(LossOf(*model, Tensor::FromVector<int64_t>({2, 0, 1})),
              -(logs[2] + logs[3] + logs[7]) / 3, 1e-5);
  EXPECT_NEAR(LossOf(*model, Tensor::FromVector<int64_t>({2, -1, 1})), -(logs[2] + logs[7]) / 2,
              1e-5);
  EXPECT_NEAR(LossOf(*model, Tensor::FromVector<float>({0, 0, 1, 0.5f, 2, 0, 0, 0, 0}, {3, 3})),
              -(logs[2] + 0.5 * logs[3] + 2 * logs[4]) / 3, 1e-5);
  // All labels are ignored.
  const Tensor nothing =
      model->Forward(Batch::Pack({{2}}, {}, Tensor::FromVector<int64_t>({-7}))).loss;
  EXPECT_EQ(nothing.Item(), 0);
  Backward(nothing);
  for (const Parameter& p : model->Parameters()) {
    for (const float g : p.tensor.grad().ToVector<float>()) ASSERT_EQ(g, 0) << p.name;
  }
  EXPECT_EQ(ErrorOf([&] {
              LossOf(*model, Tensor::FromVector<int64_t>({2, 3, 0}));
            }),
            "[cross_entropy] the label of row 1 is 3 but there are 3 classes");
  EXPECT_EQ(ErrorOf([&] {
              LossOf(*model, Tensor::FromVector<float>({2, 1, 0}));
            }),
            "[loss] a model without problem_type needs integer labels of shape [B] but got float32 "
            "[3]");
  EXPECT_EQ(ErrorOf([&] {
              LossOf(*model, Tensor::Zeros({3, 2}));
            }),
            "[loss] a model without problem_type needs [3, 3] labels but got [3, 2]");
}

TEST(Disentangled, OneLabelIsARegression) {
  const auto model = Make(Json::object(), 1);
  const std::vector<float> scores =
      model->Forward(Batch::Pack({{2, 7}, {3}, {4, 5}})).logits.ToVector<float>();
  const auto square = [](double x) { return x * x; };
  EXPECT_NEAR(LossOf(*model, Tensor::FromVector<float>({1, 2, 3})),
              (square(scores[0] - 1) + square(scores[1] - 2) + square(scores[2] - 3)) / 3, 1e-5);
}

TEST(Disentangled, AProblemTypeHasTheCommonLoss) {
  const Json type = {{"problem_type", "multi_label_classification"}};
  const auto own = Make(type), bert = [&] {
    Json config = Config(type);
    config["model_type"] = "bert";
    return AutoModelForSequenceClassification::FromConfig(PretrainedConfig::FromJson(config),
                                                          {.num_labels = 3});
  }();
  const Tensor labels = Tensor::FromVector<float>({1, 0, 1, 0, 0, 1, 1, 1, 1}, {3, 3});
  for (const auto& model : {own, bert}) {
    const SequenceClassifierOutput out =
        model->Forward(Batch::Pack({{2, 7}, {3}, {4, 5}}, {}, labels));
    double expected = 0;
    for (size_t i = 0; i < 9; ++i) {
      const double x = out.logits.ToVector<float>()[i], t = labels.ToVector<float>()[i];
      expected += (std::log1p(std::exp(-x)) + (1 - t) * x) / 9;
    }
    EXPECT_NEAR(out.loss.Item(), expected, 1e-5);
  }
}

}  // namespace
}  // namespace lathe
