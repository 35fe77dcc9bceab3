#include "lathe/models/config/decision_rule_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

constexpr char kThresholds[] = "lathe_thresholds", kTemperature[] = "lathe_temperature";
constexpr char kHint[] = "correct config.json, or remove the key";

std::vector<double> ReadThresholds(const PretrainedConfig& config) {
  const nlohmann::json& value = config.json().at(kThresholds);
  const int64_t num_labels = config.num_labels();
  const auto wrong = [&](const std::string& what) {
    return WrongConfig(config.path(), {kThresholds}, "\"" + std::string(kThresholds) + "\" " + what,
                       kHint);
  };
  if (OutputKind(config.problem_type(), num_labels) != LabelKind::kMultiLabel)
    throw wrong("is for models of several labels at once, and this is none");
  if (!value.is_array() || std::ssize(value) != num_labels) {
    throw wrong("must have a number for each of " + std::to_string(num_labels) + " labels but is " +
                value.dump());
  }
  std::vector<double> thresholds;
  for (const nlohmann::json& threshold : value) {
    if (!threshold.is_number() || !(threshold.get<double>() >= 0 && threshold.get<double>() <= 1))
      throw wrong("must have numbers from 0 to 1 but has " + threshold.dump());
    thresholds.push_back(threshold.get<double>());
  }
  return thresholds;
}

}  // namespace

DecisionRule ReadDecisionRule(const PretrainedConfig& config) {
  DecisionRule rule;
  if (config.has(kThresholds)) rule.thresholds = ReadThresholds(config);
  rule.temperature = config.GetDouble(kTemperature, 1);
  if (!(rule.temperature > 0) || !std::isfinite(rule.temperature)) {
    throw WrongConfig(config.path(), {kTemperature},
                      "\"" + std::string(kTemperature) + "\" must be above 0 but is " +
                          config.json().at(kTemperature).dump(),
                      kHint);
  }
  return rule;
}

void WriteDecisionRule(const DecisionRule& rule, PretrainedConfig& config) {
  config.json().erase(kThresholds);
  config.json().erase(kTemperature);
  if (!rule.thresholds.empty()) config.json()[kThresholds] = rule.thresholds;
  if (rule.temperature != 1) config.json()[kTemperature] = rule.temperature;
}

}  // namespace lathe
