#include "lathe/models/config/config.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <typename F>
Error Catch(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return InvalidArgument("");
}

PretrainedConfig Parse(const std::string& text) {
  return PretrainedConfig::FromJson(ParseJson(text));
}

class ConfigFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("config_test_") + info->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void Write(const std::string& text) {
    WriteFileAtomically((dir_ / "config.json").string(), text);
  }
  fs::path dir_;
};

// The text is what Transformers' to_json_string writes for this configuration.
TEST_F(ConfigFileTest, RoundTripKeepsEveryKey) {
  const std::string text = R"({
  "architectures": [
    "BertForSequenceClassification"
  ],
  "classifier_dropout": null,
  "hidden_size": 768,
  "id2label": {
    "0": "na\u00efve",
    "1": "b"
  },
  "layer_norm_eps": 1e-12,
  "model_type": "bert",
  "some_future_key": {
    "nested": [
      1,
      2.5
    ]
  }
}
)";
  Write(text);
  const PretrainedConfig config = PretrainedConfig::FromPretrained(dir_.string());
  EXPECT_EQ(config.model_type(), "bert");
  EXPECT_EQ(config.label_names(), (std::vector<std::string>{"na\xc3\xafve", "b"}));
  config.SavePretrained((dir_ / "new" / "folder").string());
  EXPECT_EQ(ReadFile((dir_ / "new" / "folder" / "config.json").string()), text);
}

TEST_F(ConfigFileTest, BrokenFilesAreReportedWithTheirLine) {
  const std::string path = (dir_ / "config.json").string();
  const auto message = [&] {
    return Catch([&] { PretrainedConfig::FromPretrained(dir_.string()); }).message();
  };
  EXPECT_EQ(Catch([&] { PretrainedConfig::FromPretrained(dir_.string()); }).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(message(), path + ": No such file or directory");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // nobody ever writes to it
  EXPECT_EQ(message(), path + ": is not a regular file");
  fs::remove(path);
  Write("{\n  \"a\": 1,\n  \"b\" 2\n}\n");
  EXPECT_TRUE(message().starts_with(path + ":3: not JSON: ")) << message();
  Write("{\n  \"a\": 1,\n");
  EXPECT_TRUE(message().starts_with(path + ":3: not JSON: ")) << message();
  Write("");
  EXPECT_TRUE(message().starts_with(path + ":1: not JSON: ")) << message();
  Write("[1]");
  EXPECT_EQ(message(), path + ": must be a JSON object");
}

TEST(ConfigTest, ACopyIsApartFromItsOriginal) {
  PretrainedConfig config = PretrainedConfig::FromJson({{"hidden_size", 8}}, "first");
  const PretrainedConfig copy = config;
  PretrainedConfig assigned;
  EXPECT_EQ(assigned.json(), json::object());
  assigned = config;
  config.json()["hidden_size"] = 16;
  EXPECT_EQ(copy.GetInt("hidden_size", 0), 8);
  EXPECT_EQ(copy.path(), "first");
  EXPECT_EQ(assigned.GetInt("hidden_size", 0), 8);
  EXPECT_EQ(assigned.path(), "first");
}

TEST(ConfigTest, TypedAccess) {
  const PretrainedConfig config =
      Parse(R"({"i": 3, "whole": 12.0, "x": 0.5, "s": "t", "b": true, "none": null})");
  EXPECT_EQ(config.GetInt("i", 1), 3);
  EXPECT_EQ(config.GetInt("whole", 1), 12);
  EXPECT_EQ(config.GetInt("absent", 7), 7);
  EXPECT_EQ(config.GetInt("none", 7), 7);
  EXPECT_EQ(config.GetDouble("x", 0), 0.5);
  EXPECT_EQ(config.GetDouble("i", 0), 3.0);
  EXPECT_EQ(config.GetOptionalDouble("none"), std::nullopt);
  EXPECT_EQ(config.GetString("s", ""), "t");
  EXPECT_TRUE(config.GetBool("b", false));
  EXPECT_TRUE(config.has("i"));
  EXPECT_FALSE(config.has("none"));
  EXPECT_EQ(Catch([&] { config.GetInt("x", 1); }).message(),
            "config: \"x\" must be a whole number but is 0.5");
  EXPECT_EQ(Catch([&] { config.GetInt("i", 1, 4); }).message(),
            "config: \"i\" must be at least 4 but is 3");
  EXPECT_EQ(Catch([&] { config.GetInt("i", 1, 0, 2); }).message(),
            "config: \"i\" must be from 0 to 2 but is 3");
  EXPECT_EQ(Catch([&] { config.GetDouble("s", 0); }).message(),
            "config: \"s\" must be a number but is \"t\"");
  EXPECT_EQ(Catch([&] { config.GetString("i", ""); }).message(),
            "config: \"i\" must be a text but is 3");
  EXPECT_EQ(Catch([&] { config.GetBool("i", true); }).message(),
            "config: \"i\" must be true or false but is 3");
  EXPECT_EQ(Catch([&] { config.model_type(); }).message(), "config: \"model_type\" is missing");

  const Error wrong = Catch([&] { config.GetInt("x", 1); });
  ASSERT_NE(wrong.detail<WrongConfigValues>(), nullptr);
  EXPECT_EQ(wrong.detail<WrongConfigValues>()->keys, std::vector<std::string>{"x"});
  EXPECT_EQ(wrong.detail<WrongConfigValues>()->what, "\"x\" must be a whole number but is 0.5");
}

TEST(ConfigTest, Labels) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(Parse("{}").label_names(), (Names{"LABEL_0", "LABEL_1"}));
  EXPECT_EQ(Parse(R"({"num_labels": 3})").num_labels(), 3);
  // Labels are ordered by their number, not by its text.
  PretrainedConfig config =
      Parse(R"({"id2label": {"10": "k", "0": "a", "1": "b", "2": "c", "3": "d",
      "4": "e", "5": "f", "6": "g", "7": "h", "8": "i", "9": "j"}})");
  EXPECT_EQ(config.label_names().back(), "k");
  EXPECT_EQ(config.label_names()[2], "c");
  config.SetNumLabels(11);
  EXPECT_EQ(config.label_names()[2], "c");
  config.SetNumLabels(2);
  EXPECT_EQ(config.label_names(), (Names{"LABEL_0", "LABEL_1"}));
  config.SetLabels({"no", "yes", "maybe"});
  EXPECT_EQ(config.num_labels(), 3);
  EXPECT_EQ(config.json()["label2id"], ParseJson(R"({"no": 0, "yes": 1, "maybe": 2})"));
  EXPECT_EQ(config.json()["id2label"]["1"], "yes");
  EXPECT_THROW(config.SetLabels({"a", "a"}), Error);
  EXPECT_THROW(config.SetNumLabels(0), Error);
  EXPECT_THROW(config.SetNumLabels(int64_t{1} << 40), Error);
  EXPECT_THROW(Parse(R"({"num_labels": 1099511627776})").label_names(), Error);
  EXPECT_THROW(Parse(R"({"id2label": {"x": "a"}})").label_names(), Error);
  EXPECT_THROW(Parse(R"({"id2label": {"0": "a", "5": "b"}})").label_names(), Error);
  EXPECT_THROW(Parse(R"({"id2label": ["a"]})").num_labels(), Error);
}

TEST(ConfigTest, Override) {
  PretrainedConfig config =
      Parse(R"({"hidden_size": 768, "p": 0.1, "act": "gelu", "cache": true, "l": [1], "d": null})");
  config.Override("hidden_size=64, p=0,act=relu,cache=false,d=0.5,extra=3", {"extra"});
  EXPECT_EQ(config.json(), ParseJson(R"({"hidden_size": 64, "p": 0.0, "act": "relu",
      "cache": false, "l": [1], "d": 0.5, "extra": 3})"));
  EXPECT_TRUE(config.json()["p"].is_number_float());
  const json before = config.json();
  const Error unknown = Catch([&] { config.Override("p=1,hiden_size=3"); });
  EXPECT_EQ(unknown.message(), "config: no key \"hiden_size\" to override");
  EXPECT_EQ(unknown.hint(), "did you mean \"hidden_size\"?");
  EXPECT_EQ(config.json(), before);
  EXPECT_EQ(Catch([&] { config.Override("hidden_size=1.5"); }).message(),
            "override hidden_size=1.5: must be a whole number");
  // A rate may be written without a point.
  PretrainedConfig rates = Parse(R"({"hidden_dropout_prob": 0, "rate": 1})");
  rates.Override("hidden_dropout_prob=0.1,rate=0.5");
  EXPECT_EQ(rates.json(), ParseJson(R"({"hidden_dropout_prob": 0.1, "rate": 0.5})"));
  rates = Parse(R"({"hidden_dropout_prob": 0})");
  rates.Override("hidden_dropout_prob=1");
  EXPECT_TRUE(rates.json()["hidden_dropout_prob"].is_number_integer());
  EXPECT_EQ(Catch([&] { rates.Override("hidden_dropout_prob=x"); }).message(),
            "override hidden_dropout_prob=x: must be a whole number");
  EXPECT_EQ(Catch([&] { config.Override("cache=maybe"); }).message(),
            "override cache=maybe: must be true or false");
  EXPECT_EQ(Catch([&] { config.Override("p=x"); }).message(), "override p=x: must be a number");
  EXPECT_EQ(Catch([&] { config.Override("p"); }).message(), "override \"p\": expected key=value");
  EXPECT_THROW(config.Override("l=2"), Error);
}

}  // namespace
}  // namespace lathe
