// Records a training pass of each family of models and repeats it for other batches. Each pass must
// have the loss and the gradients of a pass without graphs. The families' configurations are those
// of the golden models, in tests/golden/models and, if set, $LATHE_GOLDEN_DIR/models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/distributed/batch_passes.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Returns a configuration of each family, by its name; the last one of several.
std::map<std::string, nlohmann::json> Families() {
  std::vector<fs::path> roots = {"tests/golden/models"};
  if (const char* dir = std::getenv("LATHE_GOLDEN_DIR")) roots.push_back(fs::path(dir) / "models");
  std::map<std::string, nlohmann::json> families;
  for (const fs::path& root : roots) {
    std::vector<fs::path> cases;
    for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
      if (fs::exists(entry.path() / "config.json")) cases.push_back(entry.path());
    }
    std::ranges::sort(cases);
    for (const fs::path& dir : cases) {
      nlohmann::json config = ParseJson(ReadFile(dir / "config.json"));
      for (const char* key : {"problem_type", "id2label", "label2id"}) config.erase(key);
      families[config.at("model_type")] = config;
    }
  }
  return families;
}

// Returns 8 sequences with other tokens and another longest sequence for each `step`. All these
// batches have the same graph.
Batch BatchOf(int64_t step) {
  std::vector<std::vector<int32_t>> sequences(8);
  std::vector<int64_t> labels;
  for (int64_t b = 0; b < 8; ++b) {
    for (int64_t t = 0; t < (b == step % 8 ? 11 : 3); ++t)
      sequences[static_cast<size_t>(b)].push_back(
          static_cast<int32_t>(5 + (step * 7 + b * 5 + t) % 20));
    labels.push_back((b + step) % 2);
  }
  Batch batch = Batch::Pack(sequences, {}, Tensor::FromVector<int64_t>(labels));
  batch.step = step;
  return batch;
}

class StepGraphFamiliesTest : public testing::TestWithParam<std::string> {};

TEST_P(StepGraphFamiliesTest, EachPassIsThatWithoutGraphs) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const auto model = AutoModelForSequenceClassification::FromConfig(
      PretrainedConfig::FromJson(Families().at(GetParam())), {.num_labels = 2});
  model->To(CheckedDevice());
  model->Train();
  AdamW optimizer(model->Parameters(), AdamWOptions{});
  BatchPasses graphs(CheckedDevice(), nullptr);
  const auto gradients = [&] {
    const std::vector<float> values =
        optimizer.shared_arena()->RawGrads().To(Device{}).ToVector<float>();
    optimizer.ZeroGrad();
    return values;
  };
  for (int64_t step = 0; step < 6; ++step) {
    const Batch batch = BatchOf(step);
    const double loss =
        graphs.Run(*model, batch, 1, [&](const Batch& b) { return model->Forward(b).loss; }).Item();
    const std::vector<float> actual = gradients();
    const Tensor plain = model->Forward(batch).loss;
    Backward(plain);
    EXPECT_NEAR(loss, plain.Item(), 1e-5 * std::fabs(plain.Item())) << "step " << step;
    const std::vector<float> expected = gradients();
    ASSERT_EQ(actual.size(), expected.size());
    double error = 0, largest = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      error = std::isfinite(actual[i]) ? std::max<double>(error, std::fabs(actual[i] - expected[i]))
                                       : INFINITY;
      largest = std::max<double>(largest, std::fabs(expected[i]));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LE(error, 1e-5 * largest) << "step " << step;
  }
  // The first pass meets fresh gradients. The second one warms up for the third, which is recorded.
  EXPECT_EQ(graphs.statistics().eager, 2);
  EXPECT_EQ(graphs.statistics().recorded, 1);
  EXPECT_EQ(graphs.statistics().replayed, 4);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : Families()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, StepGraphFamiliesTest, testing::ValuesIn(Names()),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(StepGraphFamilies, AllAreThere) {
  EXPECT_EQ(Names().size(), std::getenv("LATHE_GOLDEN_DIR") == nullptr ? 19u : 23u);
}

}  // namespace
}  // namespace lathe
