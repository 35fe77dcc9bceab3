// Parts that only one family has, or two.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/models/families_testing.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// MPNet's table of biases belongs to all layers. By its name Trainer's rule takes it for a bias.
TEST(FamilyPartsTest, MpNetHasOneTableOfBiases) {
  const Json config =
      With(TinyConfig(), {{"model_type", "mpnet"}, {"max_position_embeddings", 18}});
  const auto make = [&](const Json& changes) {
    return AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(With(config, changes)), {.num_labels = 3});
  };
  int tables = 0;
  const std::vector<Parameter> parameters = make(Json::object())->Parameters();
  for (const Parameter& p : parameters) {
    if (p.name.find("relative") == std::string::npos) continue;
    EXPECT_EQ(p.name, "mpnet.encoder.relative_attention_bias.weight");
    EXPECT_EQ(p.tensor.shape(), Shape({32, 2}));
    EXPECT_FALSE(p.decays);
    // Fresh biases are drawn: 64 of standard deviation 0.02.
    double squares = 0;
    for (const float value : p.tensor.ToVector<float>()) squares += value * value;
    EXPECT_NEAR(std::sqrt(squares / 64), 0.02, 0.006);
    ++tables;
  }
  EXPECT_EQ(tables, 1);
  try {
    make({{"relative_attention_num_buckets", 31}});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("\"relative_attention_num_buckets\" must be"), std::string::npos)
        << error.message();
  }
}

TEST(FamilyPartsTest, SqueezeBertHasGroups) {
  const auto make = [](const Json& changes) {
    return AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(With(
            With(TinyConfig(), {{"model_type", "squeezebert"}, {"embedding_size", 8}}), changes)),
        {.num_labels = 3});
  };
  const auto shape = [](const SequenceClassifier& model, const std::string& name) {
    for (const Parameter& p : model.Parameters()) {
      if (p.name == "transformer.encoder.layers.1." + name) return p.tensor.shape();
    }
    return Shape();
  };
  const auto model = make({{"q_groups", 2}, {"output_groups", 1}});
  EXPECT_EQ(shape(*model, "attention.query.weight"), Shape({8, 4, 1}));
  EXPECT_EQ(shape(*model, "attention.key.weight"), Shape({8, 2, 1}));
  EXPECT_EQ(shape(*model, "post_attention.conv1d.weight"), Shape({8, 8, 1}));
  EXPECT_EQ(shape(*model, "output.conv1d.weight"), Shape({8, 12, 1}));
  const auto error = [&](const Json& changes) {
    try {
      make(changes);
    } catch (const Error& e) {
      return std::string(e.message());
    }
    return std::string();
  };
  EXPECT_EQ(error({{"v_groups", 3}}),
            "config: \"hidden_size\" 8 is not a multiple of \"v_groups\" 3");
  EXPECT_EQ(error({{"intermediate_groups", 8}}),
            "config: \"intermediate_size\" 12 is not a multiple of \"intermediate_groups\" 8");
  EXPECT_EQ(error({{"embedding_size", 6}}),
            "config: \"embedding_size\" 6 is not \"hidden_size\" 8, and this family has no layer "
            "between the two");
  EXPECT_NE(error({{"q_groups", 0}}).find("\"q_groups\" must be"), std::string::npos);
}

// Returns the error of a tiny configuration with these changes, or nothing.
std::string ErrorOfTiny(const std::string& model_type, const Json& changes) {
  try {
    AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(With(With(TinyConfig(), {{"model_type", model_type}}), changes)),
        {.num_labels = 3});
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

TEST(FamilyPartsTest, WrongConvBertsAreRefused) {
  const auto error = [](const Json& changes) {
    return ErrorOfTiny("convbert", With({{"embedding_size", 8}}, changes));
  };
  EXPECT_EQ(error(Json::object()), "");
  EXPECT_EQ(error({{"conv_kernel_size", 4}}), "config: \"conv_kernel_size\" must be odd but is 4");
  EXPECT_EQ(error({{"num_groups", 3}}),
            "config: \"hidden_size\" 8 is not a multiple of \"num_groups\" 3");
  EXPECT_EQ(error({{"num_groups", 8}}),
            "config: \"intermediate_size\" 12 is not a multiple of \"num_groups\" 8");
  // Only the heads that are left must divide the columns.
  EXPECT_EQ(error({{"num_attention_heads", 6}, {"head_ratio", 3}}), "");
  EXPECT_EQ(error({{"num_attention_heads", 9}, {"head_ratio", 3}}),
            "config: \"hidden_size\" 8 is not a multiple of 6, two for each head that "
            "\"num_attention_heads\" 9 and \"head_ratio\" 3 leave");
  EXPECT_NE(error({{"is_decoder", true}}).find("\"is_decoder\" is true"), std::string::npos);
}

TEST(FamilyPartsTest, WrongMobileBertsAreRefused) {
  const auto error = [](const Json& changes) {
    return ErrorOfTiny("mobilebert", With({{"intra_bottleneck_size", 4}}, changes));
  };
  EXPECT_EQ(error(Json::object()), "");
  EXPECT_EQ(error({{"normalization_type", "batch_norm"}}),
            "config: \"normalization_type\" \"batch_norm\" is unknown; known: no_norm, layer_norm");
  EXPECT_EQ(error({{"key_query_shared_bottleneck", false}}),
            "config: without \"use_bottleneck_attention\" and \"key_query_shared_bottleneck\", "
            "\"intra_bottleneck_size\" 4 must be \"hidden_size\" 8");
  EXPECT_EQ(error({{"key_query_shared_bottleneck", false}, {"use_bottleneck_attention", true}}),
            "");
  EXPECT_EQ(error({{"use_bottleneck", false}, {"num_attention_heads", 3}}),
            "config: \"hidden_size\" 8 is not a multiple of \"num_attention_heads\" 3");
}

// Their results for a text don't depend on what else is in the batch, and padding that lies between
// tokens is refused.
TEST(FamilyPartsTest, ConvolutionsReadOneSequence) {
  const std::vector<std::vector<int32_t>> texts = {{2, 7, 9, 3}, {5}, {2, 8, 3}};
  for (const char* model_type : {"convbert", "mobilebert"}) {
    SCOPED_TRACE(model_type);
    const auto model = AutoModelForSequenceClassification::FromConfig(
        PretrainedConfig::FromJson(
            With(TinyConfig(), {{"model_type", model_type}, {"initializer_range", 0.3}})),
        {.num_labels = 3});
    const std::vector<float> all = model->Forward(Batch::Pack(texts)).logits.ToVector<float>();
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<float> alone =
          model->Forward(Batch::Pack({texts[i]})).logits.ToVector<float>();
      for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(alone[c], all[3 * i + c], 1e-5) << i;
    }
    try {
      model->Forward(Batch::FromPadded(Tensor::Full({1, 3}, 5, DType::kI32),
                                       Tensor::FromVector<int32_t>({1, 0, 1}).Reshape({1, 3})));
      FAIL() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_NE(e.message().find("takes no padding between tokens"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lathe
