// Registers a family of its own, a BERT with another head, and uses it as any other family.
#include "lathe/models/architecture.h"

#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/models/bert/bert.h"
#include "lathe/models/pretrained.h"
#include "lathe/nn/layers.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Returns the defaults of BERT, and the dropout rate of this family's head.
nlohmann::json TwoLayerHeadDefaults() {
  nlohmann::json defaults = BertConfigDefaults();
  defaults["head_dropout"] = 0.25;
  return defaults;
}

// Reads BERT's first tokens by two linear layers, without a pooler.
class BertWithTwoLayerHead : public SequenceClassifier {
 public:
  BertWithTwoLayerHead(PretrainedConfig config, uint64_t seed)
      : SequenceClassifier(std::move(config)), seed_(seed) {
    bert_ = Register<BertModel>("bert", config_, /*pooler=*/false);
    const Init init = Init::Normal(0.02);
    dense_ = Register<nn::Linear>("head.dense", bert_->hidden_size(), bert_->hidden_size(), init,
                                  ActivationKind::kGelu);
    out_ = Register<nn::Linear>("head.out", bert_->hidden_size(), config_.num_labels(), init);
  }

  SequenceClassifierOutput Forward(const Batch& batch, const ForwardOptions&) override {
    const BertOutput encoded =
        bert_->Forward(batch, {.first_tokens_only = true, .training = training(), .seed = seed_});
    SequenceClassifierOutput out;
    out.logits = out_->Forward(dense_->Forward(encoded.first_tokens));
    return out;
  }
  int64_t max_length() const override { return bert_->max_length(); }

 private:
  uint64_t seed_;
  std::shared_ptr<BertModel> bert_;
  std::shared_ptr<nn::Linear> dense_, out_;
};

const ArchitectureRegistration kTwoLayerHead({
    .model_type = "bert-two-layer-head",
    .class_name = "BertWithTwoLayerHead",
    .make = MakeClassifier<BertWithTwoLayerHead>,
    .names = {.base_prefix = "bert.",
              .head_prefixes = {"head."},
              .renamed_endings = {{"top.kernel", "head.out.weight"}},
              .pretraining_heads = {"puzzle."}},
    .config_defaults = TwoLayerHeadDefaults(),
    .dropout_keys = {"hidden_dropout_prob", "head_dropout"},
    .tokenizer_model_type = "distilbert",
});

class ArchitectureTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("architecture_test_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  static PretrainedConfig Config(const std::string& model_type) {
    return PretrainedConfig::FromJson({{"model_type", model_type},
                                       {"vocab_size", 30},
                                       {"hidden_size", 8},
                                       {"num_hidden_layers", 1},
                                       {"num_attention_heads", 2},
                                       {"intermediate_size", 12},
                                       {"max_position_embeddings", 16}});
  }
  static std::vector<float> Logits(SequenceClassifier& model) {
    return model.Forward(Batch::Pack({{2, 7, 9, 3}, {2, 11, 3}})).logits.ToVector<float>();
  }
  static std::string ErrorOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  fs::path dir_;
};

TEST_F(ArchitectureTest, AFamilyOfItsOwnIsSavedAndLoaded) {
  const auto saved = AutoModelForSequenceClassification::FromConfig(Config("bert-two-layer-head"),
                                                                    {.num_labels = 3});
  saved->SavePretrained(dir_);
  const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
  EXPECT_NE(dynamic_cast<BertWithTwoLayerHead*>(model.get()), nullptr);
  EXPECT_EQ(model->load_report().Summary(), "");
  EXPECT_EQ(model->load_report().loaded.size(), model->Parameters().size());
  EXPECT_EQ(model->config().json()["architectures"], nlohmann::json({"BertWithTwoLayerHead"}));
  const std::vector<float> logits = Logits(*model);
  EXPECT_EQ(logits.size(), 6u);
  EXPECT_EQ(logits, Logits(*saved));
}

TEST_F(ArchitectureTest, ItsNamesDecideWhatACheckpointMayHold) {
  const auto saved = AutoModelForSequenceClassification::FromConfig(Config("bert-two-layer-head"));
  std::vector<std::pair<std::string, Tensor>> tensors;
  Tensor top;
  for (const Parameter& p : saved->Parameters()) {
    if (p.name == "head.out.weight") {
      top = p.tensor;
      tensors.emplace_back("top.kernel", top);
    } else if (p.name.starts_with("bert.")) {
      tensors.emplace_back(p.name, p.tensor);
    }
  }
  tensors.emplace_back("puzzle.bias", Tensor::FromVector<float>({1}));
  tensors.emplace_back("cls.predictions.bias", Tensor::FromVector<float>({1}));
  WriteSafetensors(dir_ / "model.safetensors", tensors);
  saved->config().SavePretrained(dir_);
  const auto model = AutoModelForSequenceClassification::FromPretrained(dir_);
  using Names = std::vector<std::string>;
  const LoadReport& report = model->load_report();
  EXPECT_EQ(report.fresh_head, (Names{"head.dense.weight", "head.dense.bias", "head.out.bias"}));
  EXPECT_EQ(report.unused_pretraining, (Names{"puzzle.bias"}));
  EXPECT_EQ(report.unexpected, (Names{"cls.predictions.bias"}));
  for (const Parameter& p : model->Parameters()) {
    if (p.name == "head.out.weight") {
      EXPECT_EQ(p.tensor.ToVector<float>(), top.ToVector<float>());
    }
  }
}

TEST_F(ArchitectureTest, ItsConfigKeysAndDropoutRates) {
  const std::vector<std::string> keys = KnownConfigKeys(Config("bert-two-layer-head"));
  EXPECT_TRUE(std::find(keys.begin(), keys.end(), "head_dropout") != keys.end());
  EXPECT_EQ(keys.size(), BertConfigDefaults().size() + 1);
  const auto model = AutoModelForSequenceClassification::WithoutValues(
      Config("bert-two-layer-head"), {.dropout = 0.5});
  EXPECT_EQ(model->config().GetDouble("hidden_dropout_prob", 0), 0.5);
  EXPECT_EQ(model->config().GetDouble("head_dropout", 0), 0.5);
  EXPECT_FALSE(model->config().has("attention_probs_dropout_prob"));
}

TEST_F(ArchitectureTest, ItsTokenizerIsThatOfAnotherModelType) {
  WriteFileAtomically(dir_ / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n");
  Config("bert-two-layer-head").SavePretrained(dir_);
  EXPECT_FALSE(AutoTokenizer::FromPretrained(dir_)->makes_token_type_ids());  // as DistilBERT
  Config("bert").SavePretrained(dir_);
  EXPECT_TRUE(AutoTokenizer::FromPretrained(dir_)->makes_token_type_ids());
}

TEST_F(ArchitectureTest, AModelsClassTellsItsTypeIfNothingElseDoes) {
  const auto type_of = [](const nlohmann::json& classes) {
    return ModelTypeOf(PretrainedConfig::FromJson({{"architectures", classes}}));
  };
  EXPECT_EQ(type_of({"BertForMaskedLM"}), "bert");
  EXPECT_EQ(type_of({"BertModel"}), "bert");
  EXPECT_EQ(type_of({"TFBertForPreTraining"}), "bert");
  EXPECT_EQ(type_of({"XLMRobertaForMaskedLM"}), "xlm-roberta");
  EXPECT_EQ(type_of({"RobertaModel"}), "roberta");
  EXPECT_EQ(type_of({"DebertaModel"}), "deberta");
  EXPECT_EQ(type_of({"DebertaV2Model"}), "deberta-v2");
  EXPECT_EQ(type_of({"DistilBertForSequenceClassification"}), "distilbert");
  EXPECT_EQ(type_of({"BertLMHeadModel"}), "bert");
  EXPECT_EQ(type_of({"TFBertLMHeadModel"}), "bert");
  EXPECT_EQ(type_of({"FlaxBertForMaskedLM"}), "bert");
  EXPECT_EQ(type_of({"FlaxXLMRobertaModel"}), "xlm-roberta");
  EXPECT_EQ(type_of({"TFFlaxBertModel"}), "");
  EXPECT_EQ(type_of({"GPT2LMHeadModel"}), "");
  EXPECT_EQ(type_of({"BertGenerationDecoder"}), "");
  EXPECT_EQ(type_of(nlohmann::json::array()), "");
  EXPECT_EQ(type_of("BertModel"), "");
  EXPECT_EQ(ModelTypeOf(Config("gpt2")), "gpt2");

  PretrainedConfig config = Config("bert");
  const auto model = AutoModelForSequenceClassification::FromConfig(config);
  config.json().erase("model_type");
  config.json()["architectures"] = {"BertModel"};
  const auto same = AutoModelForSequenceClassification::FromConfig(config);
  EXPECT_EQ(Logits(*same), Logits(*model));
  EXPECT_EQ(same->config().model_type(), "bert");  // so that a saved model has it
}

TEST_F(ArchitectureTest, AnUnknownModelTypeIsRefused) {
  const std::vector<std::string> known = SupportedModelTypes();
  EXPECT_TRUE(std::is_sorted(known.begin(), known.end()));
  for (const char* type : {"bert", "bert-two-layer-head"}) {
    EXPECT_TRUE(std::binary_search(known.begin(), known.end(), type)) << type;
  }
  EXPECT_EQ(FindArchitecture("gpt2"), nullptr);
  const std::string message =
      "config: model_type \"gpt2\" is not one that Lathe has\nhint: known model types: " +
      absl::StrJoin(known, ", ");
  const PretrainedConfig config = Config("gpt2");
  EXPECT_EQ(ErrorOf([&] { AutoModelForSequenceClassification::FromConfig(config); }), message);
  EXPECT_EQ(ErrorOf([&] { KnownConfigKeys(config); }), message);
  EXPECT_EQ(ErrorOf([&] { ArchitectureOf(config); }), message);
  EXPECT_EQ(ErrorOf([&] { ArchitectureOf(PretrainedConfig()); }),
            "config: \"model_type\" is missing\nhint: add it, e.g. \"model_type\": \"bert\"");
}

TEST_F(ArchitectureTest, AnIncompleteDeclarationIsRefused) {
  const Architecture whole = *FindArchitecture("bert-two-layer-head");
  const auto refused = [&](const std::function<void(Architecture&)>& change) {
    Architecture architecture = whole;
    architecture.model_type = "new";
    change(architecture);
    return ErrorOf([&] { RegisterArchitecture(architecture); });
  };
  EXPECT_EQ(refused([](Architecture& a) { a.model_type = "bert"; }),
            "[architecture] model_type \"bert\" is registered twice");
  EXPECT_EQ(refused([](Architecture& a) { a.model_type = ""; }),
            "[architecture] model_type \"\" is empty");
  EXPECT_EQ(refused([](Architecture& a) { a.class_name = ""; }),
            "[architecture] model_type \"new\" has no class_name");
  EXPECT_EQ(refused([](Architecture& a) { a.make = nullptr; }),
            "[architecture] model_type \"new\" has no make");
  EXPECT_EQ(refused([](Architecture& a) {
              a.config_defaults = {1, 2};
            }),
            "[architecture] model_type \"new\" has config_defaults that are no JSON object");
  EXPECT_EQ(refused([](Architecture& a) { a.dropout_keys = {"dropuot"}; }),
            "[architecture] model_type \"new\" has the dropout key \"dropuot\" but no default for "
            "it");
  EXPECT_EQ(
      refused([](Architecture& a) { a.tokenizer = TokenizerFamily{.tokenizer_class = "New"}; }),
      "[architecture] model_type \"new\" has a tokenizer of its own and that of another "
      "model_type");
  EXPECT_EQ(refused([](Architecture& a) {
              a.tokenizer_model_type = "";
              a.tokenizer = TokenizerFamily{.tokenizer_class = "BertTokenizer"};
            }),
            "[tokenizer] the class \"BertTokenizer\" is registered twice");
  EXPECT_EQ(FindArchitecture("new"), nullptr);
}

}  // namespace
}  // namespace lathe
