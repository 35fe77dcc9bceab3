#include "lathe/models/classification_loss.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

const Json& Golden() {
  static const Json golden = ParseJson(ReadFile("models/testdata/losses_golden.json"));
  return golden;
}

Tensor Floats(const Json& numbers) { return Tensor::FromVector(numbers.get<std::vector<float>>()); }

// Returns a batch of one-token sequences with the case's labels and weights.
Batch BatchOf(const Json& of, int64_t rows, int64_t classes) {
  Tensor labels = Floats(of.at("labels"));
  labels = of.at("kind") == "single_label_classification" ? labels.To(DType::kI64)
                                                          : labels.Reshape({rows, classes});
  Batch batch = Batch::Pack(std::vector<std::vector<int32_t>>(static_cast<size_t>(rows), {1}), {},
                            std::move(labels));
  if (!of.at("sample_weights").empty()) batch.sample_weights = Floats(of.at("sample_weights"));
  return batch;
}

// tests/golden/make_losses.py writes the numbers of PyTorch and of Transformers' LabelSmoother.
TEST(ClassificationLossTest, EqualsPyTorchs) {
  const int64_t rows = Golden().at("rows"), classes = Golden().at("classes");
  ASSERT_GE(Golden().at("cases").size(), 13u);
  for (const Json& of : Golden().at("cases")) {
    SCOPED_TRACE(DumpJson(of).substr(0, 90));
    Tensor logits = Floats(of.at("logits")).Reshape({rows, classes}).SetRequiresGrad(true);
    LossOptions options = {.label_smoothing = of.at("label_smoothing"),
                           .focal_gamma = of.at("focal_gamma")};
    if (!of.at("class_weights").empty()) options.class_weights = Floats(of.at("class_weights"));
    auto config = PretrainedConfig::FromJson({{"problem_type", of.at("kind")}});
    const Tensor loss = ClassificationLoss(logits, BatchOf(of, rows, classes), config, options);
    EXPECT_NEAR(loss.Item(), of.at("loss").get<double>(), 1e-6);
    Backward(loss);
    const std::vector<float> gradient = logits.grad().ToVector<float>();
    for (size_t i = 0; i < gradient.size(); ++i)
      EXPECT_NEAR(gradient[i], of.at("gradient").at(i).get<double>(), 1e-6) << i;
  }
}

TEST(ClassificationLossTest, RefusesOptionsThatTheLabelsDoNotHave) {
  const Tensor logits = Tensor::Zeros({2, 3});
  const auto loss = [&](const char* type, Tensor labels, const LossOptions& options) {
    auto config = PretrainedConfig::FromJson({{"problem_type", type}});
    ClassificationLoss(logits, Batch::Pack({{1}, {2}}, {}, std::move(labels)), config, options);
  };
  const Tensor scores = Tensor::Zeros({2, 3});
  EXPECT_NO_THROW(loss("regression", scores, {}));
  EXPECT_THROW(loss("regression", scores, {.focal_gamma = 1}), Error);
  EXPECT_THROW(loss("multi_label_classification", scores, {.label_smoothing = 0.1}), Error);
  EXPECT_NO_THROW(loss("multi_label_classification", scores, {.focal_gamma = 1}));
  EXPECT_THROW(loss("single_label_classification", Tensor::FromVector<int64_t>({0, 1}),
                    {.class_weights = Tensor::Zeros({2})}),
               Error);
}

}  // namespace
}  // namespace lathe
