#include "lathe/models/config/decision_rule_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"
#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

constexpr char kHint[] = "correct config.json, or remove the key";

std::vector<double> ReadThresholds(const PretrainedConfig& config) {
  const nlohmann::json& value = config.json().at(kThresholdsKey);
  const int64_t num_labels = config.num_labels();
  const auto wrong = [&](const std::string& what) {
    return WrongConfig(config.path(), {kThresholdsKey},
                       "\"" + std::string(kThresholdsKey) + "\" " + what, kHint);
  };
  if (OutputKind(config.problem_type(), num_labels) != LabelKind::kMultiLabel)
    throw wrong("is for models of several labels at once, and this is none");
  if (!value.is_array() || std::ssize(value) != num_labels) {
    throw wrong("must have a number for each of " + std::to_string(num_labels) + " labels but is " +
                DumpJson(value));
  }
  std::vector<double> thresholds;
  for (const nlohmann::json& threshold : value) {
    if (!threshold.is_number() || !(threshold.get<double>() >= 0 && threshold.get<double>() <= 1))
      throw wrong("must have numbers from 0 to 1 but has " + DumpJson(threshold));
    thresholds.push_back(threshold.get<double>());
  }
  return thresholds;
}

}  // namespace

DecisionRule ReadDecisionRule(const PretrainedConfig& config) {
  DecisionRule rule;
  if (config.has(kThresholdsKey)) rule.thresholds = ReadThresholds(config);
  rule.temperature = config.GetDouble(kTemperatureKey, 1);
  if (!(rule.temperature > 0) || !std::isfinite(rule.temperature)) {
    throw WrongConfig(config.path(), {kTemperatureKey},
                      "\"" + std::string(kTemperatureKey) + "\" must be above 0 but is " +
                          DumpJson(config.json().at(kTemperatureKey)),
                      kHint);
  }
  return rule;
}

void WriteDecisionRule(const DecisionRule& rule, PretrainedConfig& config) {
  config.json().erase(kThresholdsKey);
  config.json().erase(kTemperatureKey);
  if (!rule.thresholds.empty()) config.json()[kThresholdsKey] = rule.thresholds;
  if (rule.temperature != 1) config.json()[kTemperatureKey] = rule.temperature;
}

}  // namespace lathe
