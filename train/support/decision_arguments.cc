#include "lathe/train/support/decision_arguments.h"

#include <algorithm>
#include <optional>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/train/support/class_weights.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

constexpr char kForms[] =
    "pass 0.5, tune, a threshold for each label as in a=0.4,b=0.6, a JSON object or the name of a "
    ".json file";

constexpr LabelNumberKind kThresholds = {
    .option = "thresholds",
    .name = "threshold",
    .wanted = "a number from 0 to 1",
    .hint = kForms,
    .entry = "LABEL=THRESHOLD",
    .forms = kForms,
    .example = "{\"a\": 0.4, \"b\": 0.6}",
    .allows = [](double threshold) { return threshold >= 0 && threshold <= 1; }};

// Returns true if the text gives each label a threshold of its own.
bool NamesLabels(const std::string& text) {
  return text.ends_with(".json") || text.starts_with('{') || text.find('=') != std::string::npos;
}

double ReadThreshold(const std::string& text) {
  const std::optional<double> number = ParseNumber(text);
  if (number && kThresholds.allows(*number)) return *number;
  throw InvalidArgument("thresholds must be numbers from 0 to 1 but are \"" + text + "\"", kForms);
}

}  // namespace

void CheckDecisionArguments(const TrainingArguments& arguments) {
  const std::string& text = arguments.thresholds;
  if (NamesLabels(text)) {
    ReadLabelNumbers(text, kThresholds);
  } else if (!text.empty() && text != "tune") {
    ReadThreshold(text);
  }
  if (arguments.calibrate != "no" && arguments.calibrate != "temperature") {
    throw InvalidArgument("calibrate must be one of no, temperature but is \"" +
                          arguments.calibrate + "\"");
  }
}

bool FitsDecision(const TrainingArguments& arguments) {
  return arguments.thresholds == "tune" || arguments.calibrate == "temperature";
}

bool IsDefaultThreshold(const std::string& thresholds) { return ParseNumber(thresholds) == 0.5; }

std::vector<double> ThresholdsOf(const std::string& text, const std::vector<std::string>& names) {
  if (!NamesLabels(text)) return std::vector<double>(names.size(), ReadThreshold(text));
  std::vector<std::optional<double>> found(names.size());
  for (const auto& [name, threshold] : ReadLabelNumbers(text, kThresholds)) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end())
      throw UsageError("thresholds names \"" + name + "\", which is no label", kForms);
    found[static_cast<size_t>(place - names.begin())] = threshold;
  }
  std::vector<double> thresholds;
  for (size_t c = 0; c < names.size(); ++c) {
    if (!found[c]) {
      throw UsageError("thresholds names no value for label \"" + names[c] + "\"",
                       "name all labels, or pass one number for all");
    }
    thresholds.push_back(*found[c]);
  }
  return thresholds;
}

}  // namespace lathe
