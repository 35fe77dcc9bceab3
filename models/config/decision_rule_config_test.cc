#include "lathe/models/config/decision_rule_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

PretrainedConfig Config(const std::string& more) {
  return PretrainedConfig::FromText(
      R"({"problem_type": "multi_label_classification", "num_labels": 2)" + more + "}", "config");
}

TEST(DecisionRuleConfigTest, ReadsWhatItWrites) {
  PretrainedConfig config = Config("");
  EXPECT_EQ(ReadDecisionRule(config), DecisionRule{});
  const DecisionRule rule{.temperature = 1.5, .thresholds = {0.25, 0.1}};
  WriteDecisionRule(rule, config);
  EXPECT_EQ(DumpJson(config.json()["lathe_thresholds"]), "[0.25,0.1]");
  EXPECT_EQ(ReadDecisionRule(config), rule);
  WriteDecisionRule({}, config);
  EXPECT_FALSE(config.has("lathe_thresholds"));
  EXPECT_FALSE(config.has("lathe_temperature"));
}

TEST(DecisionRuleConfigTest, WrongValuesAreReported) {
  for (const char* more :
       {R"(, "lathe_thresholds": [0.5])", R"(, "lathe_thresholds": 0.5)",
        R"(, "lathe_thresholds": [0.5, 1.5])", R"(, "lathe_thresholds": [0.5, "a"])",
        R"(, "lathe_temperature": 0)", R"(, "lathe_temperature": -1)",
        R"(, "lathe_temperature": "x")",
        R"(, "problem_type": "single_label_classification", "lathe_thresholds": [0.5, 0.5])"}) {
    EXPECT_THROW(ReadDecisionRule(Config(more)), Error) << more;
  }
}

}  // namespace
}  // namespace lathe
