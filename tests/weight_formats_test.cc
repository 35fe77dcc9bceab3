// Loads the same weights from each format (tests/golden/make_weights.py), and compares the logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Folders(const fs::path& dir) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Returns the loading report that a folder's weights get: one line for those that training programs
// saved.
std::string ReportOf(const fs::path& weights) {
  const std::map<std::string, std::string> wrappers = {{"lightning", "state_dict.model."},
                                                       {"loop", "model_state_dict.module."},
                                                       {"data-parallel", "module."}};
  const auto wrapper = wrappers.find(weights.filename());
  if (wrapper == wrappers.end()) return "";
  return "the model's names in the checkpoint start with \"" + wrapper->second +
         "\", which is left out\n";
}

// The logits of the expected values' batch, by the weights in one of the family's folders.
std::vector<float> LogitsOf(const fs::path& family, const fs::path& weights) {
  const auto model = AutoModelForSequenceClassification::FromPretrained(
      weights, {.config = PretrainedConfig::FromPretrained(family)});
  EXPECT_EQ(model->load_report().loaded.size(), model->Parameters().size()) << weights;
  EXPECT_EQ(model->load_report().Summary(), ReportOf(weights)) << weights;
  model->Eval();
  const NoGradGuard no_grad;
  const Tensor ids = SafetensorsReader(family / "expected.safetensors").Read("input_ids");
  const Tensor mask = Tensor::Full(ids.shape(), 1, DType::kI64);
  return model->Forward(Batch::FromPadded(ids, mask)).logits.ToVector<float>();
}

// Returns the formats that a family's folder must have.
std::vector<std::string> FormatsOf(const std::string& family) {
  std::vector<std::string> formats = {"safetensors", "zip", "old", "f16", "shards"};
  const auto add = [&](const std::vector<std::string>& more) {
    formats.insert(formats.end(), more.begin(), more.end());
  };
  // TensorFlow never had ModernBERT.
  if (family != "modernbert") add({"h5", "h5-shards"});
  // TensorFlow's classifier of MPNet differs, and make_tensorflow_weights.py never wrote ConvBERT.
  if (family != "modernbert" && family != "mpnet" && family != "convbert") add({"tensorflow"});
  if (family == "bert") {
    add({"bf16", "f64", "strange", "strange-old", "shards-old", "old-protocol-3", "old-protocol-4",
         "old-protocol-5", "h5-packed", "h5-einsum", "lightning", "loop", "data-parallel"});
  }
  return formats;
}

class WeightFormats : public testing::TestWithParam<fs::path> {};

TEST_P(WeightFormats, GiveTheSameBits) {
  const fs::path family = GetParam();
  const std::vector<float> logits = LogitsOf(family, family / "safetensors");
  const std::vector<double> expected =
      SafetensorsReader(family / "expected.safetensors").Read("logits").ToVector<double>();
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], expected[i], 1e-5 * std::max(1.0, std::abs(expected[i])));
  }
  for (const std::string& format : FormatsOf(family.filename())) {
    EXPECT_TRUE(fs::exists(family / format)) << format;
  }
  for (const fs::path& folder : Folders(family)) {
    EXPECT_EQ(LogitsOf(family, folder), logits) << folder;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, WeightFormats,
                         testing::ValuesIn(Folders("tests/golden/weights")), [](const auto& p) {
                           std::string name = p.param.filename();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lathe
