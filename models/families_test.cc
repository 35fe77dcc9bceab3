// Every family of models: the way to disk and back, gradient checkpointing, and the errors for
// broken configurations and checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/models/architecture.h"
#include "lathe/models/families_testing.h"
#include "lathe/models/parameter_places.h"
#include "lathe/models/pretrained.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class FamilyTest : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("families_test_" + GetParam().model_type);
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  static PretrainedConfig Config(const Json& changes = Json::object()) {
    return PretrainedConfig::FromJson(
        With(With(GetParam().config, {{"model_type", GetParam().model_type}}), changes));
  }
  static std::shared_ptr<SequenceClassifier> Make(const Json& changes = Json::object()) {
    return AutoModelForSequenceClassification::FromConfig(Config(changes), {.num_labels = 3});
  }
  static Batch Sequences() {
    Batch batch =
        Batch::Pack({{2, 7, 9, 3}, {2, 11, 3}, {5}}, {}, Tensor::FromVector<int64_t>({0, 2, 1}));
    batch.step = 4;
    return batch;
  }
  static std::vector<float> Logits(SequenceClassifier& model) {
    return model.Forward(Sequences()).logits.ToVector<float>();
  }
  static void FreezeEncoder(const SequenceClassifier& model) {
    const ParameterPlaces all = PlacesOfParameters(model);
    std::vector<Parameter> parameters = model.Parameters();
    for (size_t i = 0; i < parameters.size(); ++i)
      if (!all.places[i].in_head) parameters[i].tensor.SetRequiresGrad(false);
  }
  static std::vector<float> Logits(SequenceClassifier& model, const std::vector<int32_t>& ids) {
    return model.Forward(Batch::Pack({ids})).logits.ToVector<float>();
  }
  // Returns the gradients of the parameters that have one.
  static std::vector<std::vector<float>> Gradients(const Json& changes, bool checkpointing) {
    const auto model = Make(changes);
    model->Train();
    model->SetGradientCheckpointing(checkpointing);
    Backward(model->Forward(Sequences()).loss);
    std::vector<std::vector<float>> all;
    for (const Parameter& p : model->Parameters()) {
      if (p.tensor.requires_grad()) all.push_back(p.tensor.grad().ToVector<float>());
    }
    return all;
  }
  static std::string ErrorOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  static void ExpectError(const std::string& part, const std::function<void()>& call) {
    const std::string error = ErrorOf(call);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }

  // Saves a model's weights but for those that `change` removes or replaces.
  void SaveChanged(const SequenceClassifier& model,
                   const std::function<bool(std::string& name, Tensor& tensor)>& change) const {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const Parameter& p : model.Parameters()) {
      std::string name = p.name;
      Tensor tensor = p.tensor;
      if (change(name, tensor)) tensors.emplace_back(name, tensor);
    }
    fs::create_directories(dir_);
    WriteSafetensors(dir_ / "model.safetensors", tensors);
    model.config().SavePretrained(dir_);
  }

  fs::path dir_;
};

TEST_P(FamilyTest, IsSavedAndLoaded) {
  const auto saved = Make();
  saved->SavePretrained(dir_);
  const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
  EXPECT_EQ(model->load_report().Summary(), "");
  EXPECT_EQ(model->load_report().loaded.size(), model->Parameters().size());
  EXPECT_EQ(model->config().json(), saved->config().json());
  EXPECT_EQ(Logits(*model), Logits(*saved));
  EXPECT_EQ(model->max_length(), GetParam().max_length);
}

// A file of a bare encoder has no prefix, and a pre-training head is of no use.
TEST_P(FamilyTest, ABareEncoderGetsAFreshHead) {
  const auto saved = Make();
  const CheckpointNames& names = ArchitectureOf(saved->config()).names;
  const auto is_head = [&](const std::string& name) {
    return std::any_of(names.head_prefixes.begin(), names.head_prefixes.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  size_t heads = 0;
  SaveChanged(*saved, [&](std::string& name, Tensor& tensor) {
    if (is_head(name)) {
      name = "lm_head." + std::to_string(heads++);
      tensor = Tensor::Full({1}, 1);
    } else {
      name = name.substr(names.base_prefix.size());
    }
    return true;
  });
  const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
  const LoadReport& report = model->load_report();
  EXPECT_EQ(report.fresh_head.size(), heads);
  EXPECT_EQ(report.unused_pretraining.size(), heads);
  EXPECT_NE(report.Summary().find("tensors of pre-training heads in the checkpoint that are not "
                                  "used (" +
                                  std::to_string(heads) + "): lm_head.0"),
            std::string::npos)
      << report.Summary();
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty()) << report.Summary();
}

TEST_P(FamilyTest, ABrokenCheckpointIsRefused) {
  const auto saved = Make();
  SaveChanged(*saved, [](std::string& name, Tensor& tensor) {
    if (name.ends_with(GetParam().word_table)) tensor = Tensor::Full({29, 8}, 1);
    return true;
  });
  ExpectError(GetParam().word_table + ": file has [29, 8], model [30, ",
              [&] { AutoModelForSequenceClassification::FromPretrained(dir_); });
  std::string missing;
  SaveChanged(*saved, [&](std::string& name, Tensor&) {
    if (!missing.empty() || name.find(GetParam().norm) == std::string::npos) return true;
    missing = name;
    return false;
  });
  const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
  EXPECT_EQ(model->load_report().missing, std::vector<std::string>({missing}));
}

TEST_P(FamilyTest, WrongBatchesAreRefused) {
  const auto model = Make();
  ExpectError("id 30 at row 1 of table 0 is outside [0, 30)", [&] {
    model->Forward(Batch::Pack({{1, 30}}));
  });
  const std::vector<int32_t> longest(GetParam().max_length, 5), longer(longest.size() + 1, 5);
  EXPECT_TRUE(std::isfinite(model->Forward(Batch::Pack({longest})).logits.ToVector<float>()[0]));
  ExpectError("a sequence has " + std::to_string(longer.size()) + " tokens but the model's",
              [&] { model->Forward(Batch::Pack({longer})); });
}

TEST_P(FamilyTest, WrongConfigurationsAreRefused) {
  const Family& f = GetParam();
  ExpectError("config: \"" + f.columns + "\" 9 is not a multiple of \"" + f.heads + "\" 2", [&] {
    Make({{f.columns, 9}});
  });
  ExpectError("config: \"" + f.columns + "\" must be", [&] { Make({{f.columns, 0}}); });
  ExpectError("config: \"" + f.columns + "\" must be", [&] { Make({{f.columns, "wide"}}); });
  ExpectError("config: \"" + f.activation + "\": unknown activation \"step\"", [&] {
    Make({{f.activation, "step"}});
  });
  ExpectError("config: \"" + f.dropout + "\" must be at least 0 and less than 1 but is 1", [&] {
    Make({{f.dropout, 1.0}});
  });
  ExpectError("config: \"vocab_size\" must be", [&] { Make({{"vocab_size", 0}}); });
  ExpectError("config: \"max_position_embeddings\"", [&] {
    Make({{"max_position_embeddings", f.max_length == 16 ? 0 : 1}});
  });
}

// Dropout is on, so that each use of a layer must repeat its own masks.
TEST_P(FamilyTest, GradientCheckpointingChangesNothing) {
  EXPECT_EQ(Gradients(Json::object(), true), Gradients(Json::object(), false));
}

// Without its positions a model would not see the order of tokens behind the first one.
TEST_P(FamilyTest, KnowsTheOrderOfTokens) {
  const auto model = Make();
  EXPECT_NE(Logits(*model, {2, 7, 9, 3}), Logits(*model, {2, 9, 7, 3}));
}

TEST_P(FamilyTest, RelativeKeysReplacePositions) {
  if (!ArchitectureOf(Config()).config_defaults.contains("position_embedding_type")) GTEST_SKIP();
  const int64_t positions = GetParam().config.at("max_position_embeddings").get<int64_t>();
  for (const char* type : {"relative_key", "relative_key_query"}) {
    SCOPED_TRACE(type);
    const Json changes = {{"position_embedding_type", type}};
    const auto saved = Make(changes);
    EXPECT_NE(Logits(*saved, {2, 7, 9, 3}), Logits(*saved, {2, 9, 7, 3}));
    int tables = 0;
    for (const Parameter& p : saved->Parameters()) {
      if (p.name.find(".distance_embedding.weight") != std::string::npos) {
        EXPECT_EQ(p.tensor.shape(), Shape({2 * positions - 1, 4})) << p.name;
        EXPECT_TRUE(p.decays) << p.name;
        ++tables;
      }
      EXPECT_EQ(p.tensor.requires_grad(), p.name.find("position_embeddings") == std::string::npos);
    }
    EXPECT_GE(tables, 2);
    saved->SavePretrained(dir_);
    const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
    EXPECT_EQ(model->load_report().Summary(), "");
    EXPECT_EQ(Logits(*model), Logits(*saved));
    EXPECT_EQ(Gradients(changes, true), Gradients(changes, false));
    EXPECT_EQ(model->max_length(), GetParam().max_length);
    const std::vector<int32_t> longest(GetParam().max_length, 5);
    EXPECT_TRUE(std::isfinite(model->Forward(Batch::Pack({longest})).logits.ToVector<float>()[0]));
    ExpectError("has 2 tokens at positions 0 to 2, but a model with relative positions", [&] {
      model->Forward(Batch::FromPadded(Tensor::Full({1, 3}, 5, DType::kI32),
                                       Tensor::FromVector<int32_t>({1, 0, 1}).Reshape({1, 3})));
    });
  }
  ExpectError(
      "\"position_embedding_type\" \"rotary\" is not supported; supported: absolute, "
      "relative_key, relative_key_query",
      [] {
        Make({{"position_embedding_type", "rotary"}});
      });
}

TEST_P(FamilyTest, DropoutIsOnInTrainingOnly) {
  const auto model = Make();
  const std::vector<float> evaluated = Logits(*model);
  EXPECT_EQ(Logits(*model), evaluated);
  model->Train();
  EXPECT_NE(Logits(*model), evaluated);
}

std::string Name(const testing::TestParamInfo<Family>& info) {
  std::string name = info.param.model_type;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

// What the head reads of each sequence may be computed once, if nothing changes it.
TEST_P(FamilyTest, AFrozenEncoderNeedNotRunAgain) {
  Json no_dropout;
  for (const std::string& key : ArchitectureOf(Config()).dropout_keys) no_dropout[key] = 0.0;
  const auto model = Make(no_dropout);
  model->Train();
  EXPECT_FALSE(model->Encode(Sequences()).defined());  // the encoder is trained
  FreezeEncoder(*model);
  const Tensor encoded = model->Encode(Sequences());
  if (GetParam().model_type == "eurobert" &&
      GetParam().config.value("classifier_pooling", "late") == "late") {
    EXPECT_FALSE(encoded.defined());  // its head reads all tokens
    return;
  }
  ASSERT_TRUE(encoded.defined());
  Batch known = Sequences();
  known.encoded = encoded.Clone();
  EXPECT_EQ(model->Forward(known).logits.ToVector<float>(), Logits(*model));
  known.encoded = Tensor::Zeros(encoded.shape(), DType::kF32);
  EXPECT_NE(model->Forward(known).logits.ToVector<float>(), Logits(*model));

  const auto random = Make({{GetParam().dropout, 0.5}});
  FreezeEncoder(*random);
  random->Train();
  EXPECT_FALSE(random->Encode(Sequences()).defined());
  random->Eval();
  EXPECT_TRUE(random->Encode(Sequences()).defined());
}

// So a backward pass ends above the layers that are frozen.
TEST_P(FamilyTest, NoLayerReadsWhatLiesAboveIt) {
  const auto model = Make();
  model->Train();
  const ParameterPlaces all = PlacesOfParameters(*model);
  const std::vector<Parameter> parameters = model->Parameters();
  for (int64_t layer = 0; layer < all.num_layers; ++layer) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor tensor = parameters[i].tensor;
      if (all.places[i].depth <= layer) tensor.SetRequiresGrad(false);
    }
    const std::vector<Tensor> hidden_states =
        model->Forward(Sequences(), {.output_hidden_states = true}).hidden_states;
    // ALBERT uses the parameters of a layer several times.
    const int64_t uses = (std::ssize(hidden_states) - 1) / all.num_layers;
    const auto output = static_cast<size_t>(layer * uses);
    EXPECT_FALSE(hidden_states[output].requires_grad()) << layer;
    EXPECT_TRUE(hidden_states[output + 1].requires_grad()) << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTest, testing::ValuesIn(Families()), Name);
INSTANTIATE_TEST_SUITE_P(RareParts, FamilyTest, testing::ValuesIn(RareParts()), Name);

TEST(FamiliesTest, EachHasItsCases) {
  std::vector<std::string> tested;
  for (const Family& family : Families()) tested.push_back(family.model_type);
  EXPECT_EQ(tested, SupportedModelTypes());
}

}  // namespace
}  // namespace lathe
