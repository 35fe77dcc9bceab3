// Tests files of options: as the first argument of `finetune`, and as --json_config.
#include "lathe/apps/cli/options_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lathe/apps/options/options.h"
#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

// The fewest options that are accepted, in JSON and in YAML.
constexpr char kFewestJson[] =
    R"({"model_name_or_path": "m", "train_file": "t.csv", "do_train": true, "output_dir": "o")";
constexpr char kFewestYaml[] =
    "model_name_or_path: m\ntrain_file: t.csv\ndo_train: true\noutput_dir: o\n";

class OptionsFileTest : public testing::Test {
 protected:
  ~OptionsFileTest() override {
    for (const std::string& path : {json_, yaml_}) std::remove(path.c_str());
  }
  static std::string Path(const std::string& ending) {
    return testing::TempDir() + "/options_file_test_" + std::to_string(getpid()) + ending;
  }
  void WriteJson(const std::string& text) const { std::ofstream(json_) << text; }
  void WriteYaml(const std::string& text) const { std::ofstream(yaml_) << text; }

  // Returns "message|hint" of the error that the arguments cause.
  static std::string ErrorOf(const Args& args) {
    try {
      ParseOptions(args);
    } catch (const Error& e) {
      return e.message() + "|" + e.hint();
    }
    return "no error";
  }
  // Returns the error of a file that has, besides the fewest options, these.
  std::string JsonError(const std::string& more) const {
    WriteJson(kFewestJson + (", " + more) + "}");
    return ErrorOf({json_});
  }
  std::string YamlError(const std::string& more) const {
    WriteYaml(kFewestYaml + more);
    return ErrorOf({yaml_});
  }

  const std::string json_ = Path(".json"), yaml_ = Path(".yaml");
  const std::string what_ =
      " names a file with an object of options, e.g. {\"learning_rate\": 3e-5}";
};

TEST_F(OptionsFileTest, HasTheSameNamesAndYieldsToTheCommandLine) {
  WriteJson(R"({"learning_rate": 1e-3, "do_eval": true, "validation_file": "v.csv", "seed": 1,
               "text_columns": ["a", "b"], "problem_type": null})");
  const FinetuneArguments o =
      ParseOptions({"--model_name_or_path", "m", "--train_file", "t.csv", "--do_train",
                    "--output_dir", "o", "--json_config", json_, "--seed", "2"})
          .options;
  EXPECT_EQ(o.learning_rate, 1e-3);
  EXPECT_TRUE(o.do_eval);
  EXPECT_EQ(o.seed, 2);
  EXPECT_EQ(o.text_columns, (Args{"a", "b"}));
}

TEST_F(OptionsFileTest, HoldsWeightsOfClassesAsAnObject) {
  WriteJson(std::string(kFewestJson) + R"(, "class_weights": {"a, b": 2, "c": 0.5}})");
  EXPECT_EQ(ParseOptions({json_}).options.class_weights, R"({"a, b":2,"c":0.5})");
  EXPECT_EQ(ParseOptions({json_, "--class_weights", "c=3"}).options.class_weights, "c=3");
  WriteYaml(std::string(kFewestYaml) + "class_weights:\n  a: 2\n  c: 0.5\n");
  EXPECT_EQ(ParseOptions({yaml_}).options.class_weights, R"({"a":2,"c":0.5})");
  EXPECT_EQ(JsonError(R"("class_weights": {"a": "much"})"),
            "class_weights: the weight of label \"a\" must be a positive number up to 1e+12 but is "
            "\"much\"|give each label a weight above 0");
  EXPECT_EQ(JsonError(R"("class_weights": [1, 2])"),
            json_ + ": \"class_weights\" must be one value but is [1,2]|");
}

// A number without a point is a rate all the same.
TEST_F(OptionsFileTest, AFractionOverridesAWholeNumber) {
  WriteJson(std::string(kFewestJson) +
            R"(, "weight_decay": 0, "learning_rate": 1, "label_smoothing_factor": 0})");
  EXPECT_EQ(ParseOptions({json_}).options.weight_decay, 0);
  EXPECT_EQ(ParseOptions({json_}).options.learning_rate, 1);
  const FinetuneArguments o = ParseOptions({json_, "--weight_decay", "0.01", "--learning_rate",
                                            "3e-5", "--label_smoothing_factor=0.1"})
                                  .options;
  EXPECT_EQ(o.weight_decay, 0.01);
  EXPECT_EQ(o.learning_rate, 3e-5);
  EXPECT_EQ(o.label_smoothing_factor, 0.1);
}

TEST_F(OptionsFileTest, IsTheOnlyArgument) {
  WriteJson(std::string(kFewestJson) + R"(, "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr": 1e-6}, "resume_from_checkpoint": true, "seed": 3})");
  const ParsedOptions parsed = ParseOptions({json_});
  EXPECT_EQ(parsed.options.model_name_or_path, "m");
  EXPECT_TRUE(parsed.options.do_train);
  EXPECT_EQ(parsed.options.lr_scheduler_kwargs, "{\"min_lr\":1e-06}");
  EXPECT_EQ(parsed.options.resume_from_checkpoint, "true");
  EXPECT_EQ(parsed.options.seed, 3);
  EXPECT_EQ(ParseOptions({json_, "--seed", "4"}).options.seed, 4);
  // What has been read from a file must agree on all ranks, too.
  EXPECT_NE(std::find(parsed.shared.begin(), parsed.shared.end(),
                      std::pair<std::string, std::string>("--seed", "3")),
            parsed.shared.end());
}

TEST_F(OptionsFileTest, ReadsYaml) {
  WriteYaml(std::string(kFewestYaml) +
            "# words without quotes are what the option takes them for\n"
            "eval_strategy: no\nsave_strategy: 'no'\nlabel_column: 3\nlearning_rate: 3e-5\n"
            "do_eval: False\ndataloader_drop_last: yes\nnum_labels: ~\nproblem_type:\n"
            "text_columns: [question, answer]\nlr_scheduler_type: cosine_with_min_lr\n"
            "lr_scheduler_kwargs:\n  min_lr: 1e-6\n");
  const FinetuneArguments o = ParseOptions({yaml_}).options;
  EXPECT_EQ(o.eval_strategy, "no");
  EXPECT_EQ(o.save_strategy, "no");
  EXPECT_EQ(o.label_column, "3");
  EXPECT_EQ(o.learning_rate, 3e-5);
  EXPECT_FALSE(o.do_eval);
  EXPECT_TRUE(o.dataloader_drop_last);
  EXPECT_EQ(o.num_labels, std::nullopt);
  EXPECT_EQ(o.text_columns, (Args{"question", "answer"}));
  EXPECT_EQ(o.lr_scheduler_kwargs, "{\"min_lr\":1e-06}");
}

TEST_F(OptionsFileTest, ErrorsInJsonNameFileAndKey) {
  EXPECT_EQ(JsonError("\"seed\": 1"), "no error");
  EXPECT_EQ(JsonError("\"learing_rate\": 1"),
            json_ + ": unknown option \"learing_rate\"|did you mean --learning_rate?");
  for (const char* key : {"json_config", "help"}) {
    EXPECT_EQ(JsonError("\"" + std::string(key) + "\": \"x\""),
              json_ + ": \"" + key + "\" has no meaning in a file|pass it on the command line");
  }
  EXPECT_EQ(JsonError("\"do_train\": false"),
            json_ + ": \"do_train\" appears twice|leave one of them out");
  EXPECT_EQ(JsonError("\"class_weights\": {\"a\": 2, \"a\": 50, \"b\": 1}"),
            json_ + ": \"class_weights\": \"a\" appears twice|leave one of them out");
  const std::vector<std::pair<std::string, std::string>> wrong_types = {
      {"\"seed\": \"x\"", "--seed must be a whole number but is \"x\"|"},
      {"\"seed\": 1.5", "--seed must be a whole number but is \"1.5\"|"},
      {"\"seed\": [1]", "\"seed\" must be one value but is [1]|"},
      {"\"learning_rate\": true", "--learning_rate must be a number but is \"true\"|"},
      {"\"do_eval\": \"maybe\"", "--do_eval must be true or false but is \"maybe\"|"},
      {"\"do_eval\": {}", "\"do_eval\" must be true or false but is {}|"},
      {"\"config_name\": {\"a\": 1}", "\"config_name\" must be one value but is {\"a\":1}|"},
      {"\"config_name\": false", "\"config_name\" must be text, in quotes, but is false|"},
      {"\"text_columns\": [true]",
       "\"text_columns\" must be a list of names, but its entry 1 is true|"},
      {"\"text_columns\": [\"a\", 2, {\"b\": 1}]",
       "\"text_columns\" must be a list of names, but its entry 3 is {\"b\":1}|"},
      {"\"evaluation_strategy\": \"often\"",
       "\"evaluation_strategy\": --eval_strategy must be one of no, steps, epoch but is "
       "\"often\"|"},
      {"\"text_columns\": true", "\"text_columns\" must be text, in quotes, but is true|"},
      {"\"lr_scheduler_kwargs\": [1]", "\"lr_scheduler_kwargs\" must be one value but is [1]|"}};
  for (const auto& [entry, error] : wrong_types) EXPECT_EQ(JsonError(entry), json_ + ": " + error);
}

TEST_F(OptionsFileTest, NoErrorShowsASecret) {
  const std::vector<std::pair<std::string, std::string>> wrong_types = {
      {"\"hub_token\": [\"hf_secret\"]", "\"hub_token\" must be one value|"},
      {"\"token\": {\"a\": \"hf_secret\"}", "\"token\" must be one value|"},
      {"\"token\": true", "\"token\" must be text, in quotes|"},
      {"\"use_auth_token\": \"hf_secret\"",
       "--use_auth_token must be true or false|a token is given by --token TOKEN"}};
  for (const auto& [entry, error] : wrong_types) EXPECT_EQ(JsonError(entry), json_ + ": " + error);
  for (const char* broken :
       {"\"token\": \"hf_secret", "\"token\": hf_secret", "\"tokn\": \"hf_secret\""}) {
    const std::string error = JsonError(broken);
    EXPECT_NE(error, "no error");
    EXPECT_EQ(error.find("hf_secret"), std::string::npos) << error;
  }
  for (const char* broken :
       {"token: [hf_secret]\n", "token: [hf_secret\n", "tokn: hf_secret\n",
        "token: hf_secret\ntoken: hf_secret\n", "use_auth_token: hf_secret\n"}) {
    const std::string error = YamlError(broken);
    EXPECT_NE(error, "no error");
    EXPECT_EQ(error.find("hf_secret"), std::string::npos) << error;
  }
}

TEST_F(OptionsFileTest, TwoNamesOfAnOptionMustAgree) {
  const std::string one = "\"activation_checkpointing\": false, \"gradient_checkpointing\": ";
  EXPECT_EQ(JsonError(one + "false"), "no error");
  EXPECT_EQ(JsonError(one + "true"),
            json_ + ": \"gradient_checkpointing\" is another name of " +
                "\"activation_checkpointing\", which has another value|leave one of them out");
}

TEST_F(OptionsFileTest, AnAcceleratorConfigOfDefaultsIsTaken) {
  const std::string start = "\"accelerator_config\": {\"split_batches\": false, ";
  EXPECT_EQ(JsonError(start + "\"dispatch_batches\": null, \"even_batches\": true, "
                              "\"use_seedable_sampler\": true, \"non_blocking\": false, "
                              "\"gradient_accumulation_kwargs\": null}"),
            "no error");
  for (const char* other : {"\"even_batches\": false", "\"unknown\": 1"}) {
    EXPECT_NE(JsonError(start + other + "}")
                  .find("--accelerator_config with " + std::string(other) + " is not supported"),
              std::string::npos)
        << other;
  }
}

TEST_F(OptionsFileTest, ANumberMayBeTheTextOfAnOption) {
  for (const char* entry : {"\"thresholds\": 0.4", "\"freeze_layers\": 1", "\"label_column\": 2"})
    EXPECT_EQ(JsonError(entry).find("must be text"), std::string::npos) << entry;
}

TEST_F(OptionsFileTest, ErrorsInYamlNameFileLineAndKey) {
  const std::string where = yaml_ + ":5: ";
  EXPECT_EQ(YamlError("seed: 1\n"), "no error");
  EXPECT_EQ(YamlError("learing_rate: 1\n"),
            where + "unknown option \"learing_rate\"|did you mean --learning_rate?");
  EXPECT_EQ(YamlError("do_train: true\n"),
            where + "\"do_train\" appears twice|leave one of them out");
  EXPECT_EQ(YamlError("seed: x\n"), where + "--seed must be a whole number but is \"x\"|");
  EXPECT_EQ(YamlError("seed: {a: 1}\n"), where + "\"seed\" must be one value but is {\"a\":1}|");
  EXPECT_EQ(YamlError("text_columns: &a [*a]\n").find(where + "the value has more than 1000 parts"),
            0u);
  EXPECT_EQ(YamlError("class_weights: {a: 2, a: 50, b: 1}\n"),
            where + "\"a\" appears twice|leave one of them out");
  EXPECT_EQ(YamlError("[a]: 1\n"), where + "a key must be text|the first argument" + what_);
  EXPECT_TRUE(YamlError("seed: [1\n").starts_with(yaml_ + ":6: not valid YAML: "));
}

// PyYAML's safe_load refuses it, too.
TEST_F(OptionsFileTest, ASecondDocumentOfYamlIsRefused) {
  const std::string second =
      ": a second YAML document begins, but only one may be in the file|the first argument" + what_;
  EXPECT_EQ(YamlError("---\nlearning_rate: oops\nfoo: 1\n"), yaml_ + ":5" + second);
  EXPECT_EQ(YamlError("seed: 1\n---\n"), yaml_ + ":6" + second);
  EXPECT_EQ(YamlError("...\nseed: 1\n"), yaml_ + ":6" + second);
  for (const std::string& text :
       {"---\n" + std::string(kFewestYaml), std::string(kFewestYaml) + "...\n",
        "# options\n%YAML 1.2\n---\n" + std::string(kFewestYaml)}) {
    WriteYaml(text);
    EXPECT_EQ(ErrorOf({yaml_}), "no error") << text;
  }
}

TEST_F(OptionsFileTest, ErrorsInTheFileItself) {
  const std::string json_hint = "|--json_config" + what_, hint = "|the first argument" + what_;
  WriteJson("{\n\"seed\": }");
  EXPECT_EQ(ErrorOf({json_}), json_ + ":2:9: not valid JSON behind \"seed\"" + hint);
  EXPECT_EQ(ErrorOf({"--json_config", json_}),
            json_ + ":2:9: not valid JSON behind \"seed\"" + json_hint);
  WriteJson("{\"learning_rate\": 1e999}");
  EXPECT_EQ(ErrorOf({json_}).find(json_ + ": \"learning_rate\": number overflow"), 0u);
  WriteJson("[1]");
  EXPECT_EQ(ErrorOf({json_}), json_ + ": must be a JSON object of options" + hint);
  WriteYaml("- 1");
  EXPECT_EQ(ErrorOf({yaml_}),
            yaml_ + ": must be a YAML map of options, such as `learning_rate: 3e-5`" + hint);
  for (const std::string& path : {"none" + json_, "none" + yaml_}) {
    EXPECT_EQ(ErrorOf({path}), path + ": No such file or directory" + hint);
  }
}

// Python's json.dump writes one line unless it is told otherwise.
TEST_F(OptionsFileTest, ErrorsInAFileOfOneLineNameColumnAndKey) {
  const auto place_of = [&](const std::string& text) {
    WriteJson(text);
    const std::string error = ErrorOf({json_});
    EXPECT_TRUE(error.starts_with(json_)) << error;
    return error.substr(json_.size(), error.find('|') - json_.size());
  };
  EXPECT_EQ(place_of(R"({"do_train": true, "seed": 1 "output_dir": "o"})"),
            ":1:41: not valid JSON behind \"seed\"");
  EXPECT_EQ(place_of(R"({"do_train": true, "text_columns": ["a", "b" "c"]})"),
            ":1:48: not valid JSON behind \"text_columns\"");
  EXPECT_EQ(place_of(R"({"do_train": true, "lr_scheduler_kwargs": {"min_lr": nan}})"),
            ":1:55: not valid JSON behind \"lr_scheduler_kwargs\"");
  EXPECT_EQ(place_of(R"({"seed": 1)"), ":1:11: not valid JSON behind \"seed\"");
  EXPECT_EQ(place_of(""), ":1:1: not valid JSON");
  EXPECT_EQ(place_of("{seed: 1}"), ":1:2: not valid JSON");
}

TEST_F(OptionsFileTest, StandsFirst) {
  WriteJson(std::string(kFewestJson) + "}");
  EXPECT_EQ(ErrorOf({"--seed", "1", json_}),
            "unexpected argument \"" + json_ +
                "\"|a file of arguments stands first; --help lists the options");
  EXPECT_EQ(ErrorOf({json_, json_}).find("unexpected argument"), 0u);
  EXPECT_EQ(ErrorOf({json_, "--json_config", json_}),
            "--json_config and " + json_ + " are two files of options|leave one of them out");
  EXPECT_TRUE(IsOptionsFile("a.yml"));
  EXPECT_FALSE(IsOptionsFile("--seed"));
  EXPECT_FALSE(IsOptionsFile("a.csv"));
  EXPECT_EQ(ErrorOf({"--test_file=t.json"}).find("nothing to do"), 0u);
}

}  // namespace
}  // namespace lathe
