// Gives names of models on a Hub to the Auto classes of the C++ API.
#include "lathe/models/pretrained.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lathe/core/autograd.h"
#include "lathe/core/json/json_text.h"
#include "lathe/tests/hub/hub_testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Auto = AutoModelForSequenceClassification;

constexpr char kVocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nfine\nday\n##s\n";
constexpr char kText[] = "a fine days mystery";

class PretrainedTest : public HubTest {
 protected:
  // Saves a model whose fresh weights have this seed, and a tokenizer, and puts the files on the
  // Hub as `kModel`. Returns the folder.
  std::string Publish(uint64_t seed, HubServerModel model = {}) {
    const std::string folder = root_ + "/saved_" + std::to_string(seed);
    const nlohmann::json config = {
        {"model_type", "bert"},          {"vocab_size", 9},          {"hidden_size", 8},
        {"num_hidden_layers", 1},        {"num_attention_heads", 2}, {"intermediate_size", 12},
        {"max_position_embeddings", 16}, {"type_vocab_size", 2}};
    Auto::FromConfig(PretrainedConfig::FromJson(config),
                     {.label_names = {"bad", "good", "neither"}, .seed = seed})
        ->SavePretrained(folder);
    WriteFileAtomically(folder + "/vocab.txt", kVocabulary);
    for (const char* file : {"config.json", "vocab.txt", "model.safetensors"}) {
      model.files[file] = {ReadFile(folder + "/" + file),
                           std::string(file).ends_with(".safetensors")};
    }
    hub_.Add(kModel, std::move(model));
    return folder;
  }

  static std::vector<float> Logits(SequenceClassifier& model, const Tokenizer& tokenizer) {
    const NoGradGuard no_grad;
    model.Eval();
    const std::vector<int32_t> ids = tokenizer.Encode(kText).input_ids;
    const Shape shape = {1, std::ssize(ids)};
    const Tensor input =
        Tensor::FromVector(std::vector<int64_t>(ids.begin(), ids.end())).Reshape(shape);
    return model.Forward(Batch::FromPadded(input, Tensor::Full(shape, 1, DType::kI64)))
        .logits.ToVector<float>();
  }
  // Expects that all of the name's parts, with these options, are those of the folder.
  static void ExpectAsFolder(const std::string& folder, const HubOptions& hub) {
    const auto named = Auto::FromPretrained(kModel, {.hub = hub});
    const auto local = Auto::FromPretrained(folder);
    EXPECT_EQ(named->config().json(), local->config().json());
    EXPECT_EQ(AutoConfig::FromPretrained(kModel, hub).json(),
              AutoConfig::FromPretrained(folder).json());
    const std::vector<Parameter> parameters = named->Parameters(), expected = local->Parameters();
    ASSERT_EQ(parameters.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(parameters[i].name, expected[i].name);
      EXPECT_EQ(parameters[i].tensor.ToVector<float>(), expected[i].tensor.ToVector<float>())
          << expected[i].name;
    }
    const auto tokenizer = AutoTokenizer::FromPretrained(kModel, hub);
    const auto local_tokenizer = AutoTokenizer::FromPretrained(folder);
    EXPECT_EQ(tokenizer->files(), local_tokenizer->files());
    EXPECT_EQ(tokenizer->Encode(kText).input_ids, local_tokenizer->Encode(kText).input_ids);
    EXPECT_EQ(Logits(*named, *tokenizer), Logits(*local, *local_tokenizer));
  }

  const HubOptions quiet_ = {.show_progress = false};
};

TEST_F(PretrainedTest, ANameGivesWhatItsFolderGives) {
  const std::string folder = Publish(1);
  ExpectAsFolder(folder, quiet_);
  EXPECT_EQ(cdn_.Count("GET", "/stored/"), 1);
  EXPECT_EQ(hub_.Count("GET", "/resolve/"), 2);  // the weights lie on another host
  hub_.ForgetRequests();
  HubOptions offline = quiet_;
  offline.offline = true;
  ExpectAsFolder(folder, offline);
  EXPECT_TRUE(hub_.requests().empty());
}

// The Hub's part of the program and the reader of weights take the same shards.
TEST_F(PretrainedTest, ShardsMayLieInAFolder) {
  const std::string folder = Publish(1);
  const std::string shard = "weights/model-00001-of-00001.safetensors";
  fs::create_directories(folder + "/weights");
  fs::rename(folder + "/model.safetensors", folder + "/" + shard);
  nlohmann::json map;
  for (const Parameter& parameter :
       Auto::FromConfig(AutoConfig::FromPretrained(folder))->Parameters()) {
    map[parameter.name] = shard;
  }
  WriteFileAtomically(folder + "/model.safetensors.index.json",
                      DumpJson(nlohmann::json{{"weight_map", map}}));
  HubServerModel model;
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors.index.json"}) {
    model.files[file] = {ReadFile(folder + "/" + file)};
  }
  model.files[shard] = {ReadFile(folder + "/" + shard), true};
  hub_.Add(kModel, std::move(model));
  ExpectAsFolder(folder, quiet_);
}

TEST_F(PretrainedTest, OptionsOfTheModelHoldForANameToo) {
  Publish(1);
  ExpectError([&] { Auto::FromPretrained(kModel, {.num_labels = 2, .hub = quiet_}); },
              "classifier.weight: file has [3, 8], model [2, 8]");
  const auto model = Auto::FromPretrained(
      kModel, {.num_labels = 2, .ignore_mismatched_sizes = true, .hub = quiet_});
  EXPECT_EQ(model->config().num_labels(), 2);
  EXPECT_EQ(model->load_report().mismatched.size(), 2u);
}

TEST_F(PretrainedTest, ARevisionIsTaken) {
  const std::string one(40, '1'), two(40, '2');
  const std::string first = Publish(1, {.revisions = {{"v1", one}}});
  HubOptions v1 = quiet_;
  v1.revision = "v1";
  ExpectAsFolder(first, v1);
  ExpectError([&] { Auto::FromPretrained(kModel, {.hub = quiet_}); }, "no revision \"main\"");
  const std::string second = Publish(2, {.revisions = {{"v1", one}, {"main", two}}});
  ExpectAsFolder(second, quiet_);
  ExpectAsFolder(first, v1);
}

TEST_F(PretrainedTest, ATokenShowsAPrivateModel) {
  const std::string folder = Publish(1, {.token = "hf_secret"});
  ExpectError([&] { Auto::FromPretrained(kModel, {.hub = quiet_}); },
              "no such model, or it is private");
  ExpectError([&] { AutoConfig::FromPretrained(kModel, quiet_); },
              "no such model, or it is private");
  ExpectError([&] { AutoTokenizer::FromPretrained(kModel, quiet_); },
              "no such model, or it is private");
  HubOptions hub = quiet_;
  hub.token = "hf_secret";
  ExpectAsFolder(folder, hub);
}

TEST_F(PretrainedTest, TheCacheLiesWhereTheOptionSays) {
  HubOptions hub = quiet_;
  hub.cache_dir = root_ + "/elsewhere";
  ExpectAsFolder(Publish(1), hub);
  EXPECT_TRUE(
      Exists(hub.cache_dir + "/models--owner--name/snapshots/" + kCommit + "/model.safetensors"));
  EXPECT_FALSE(Exists(root_ + "/hub"));
}

}  // namespace
}  // namespace lathe
