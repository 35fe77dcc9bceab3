#include "lathe/train/support/decision_arguments.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

constexpr char kForms[] = "pass 0.5, tune, or a threshold for each label as in a=0.4,b=0.6";

double ReadThreshold(const std::string& text, const std::string& all) {
  const std::optional<double> number = ParseNumber(text);
  if (!number || !(*number >= 0 && *number <= 1)) {
    throw InvalidArgument(
        "thresholds must be numbers from 0 to 1 but \"" + all + "\" has \"" + text + "\"", kForms);
  }
  return *number;
}

// Reads "a=0.4,b=0.6". A label may hold "=", as its threshold does not.
std::vector<std::pair<std::string, double>> ReadNamed(const std::string& text) {
  std::vector<std::pair<std::string, double>> named;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos) {
      throw InvalidArgument("thresholds has no \"=\" in \"" + part + "\"", kForms);
    }
    named.emplace_back(part.substr(0, equals), ReadThreshold(part.substr(equals + 1), text));
    begin = end + 1;
  }
  return named;
}

}  // namespace

void CheckDecisionArguments(const TrainingArguments& arguments) {
  const std::string& text = arguments.thresholds;
  if (!text.empty() && text != "tune") {
    text.find('=') == std::string::npos ? static_cast<void>(ReadThreshold(text, text))
                                        : static_cast<void>(ReadNamed(text));
  }
  if (arguments.calibrate != "no" && arguments.calibrate != "temperature") {
    throw InvalidArgument("calibrate must be one of no, temperature but is \"" +
                          arguments.calibrate + "\"");
  }
}

bool FitsDecision(const TrainingArguments& arguments) {
  return arguments.thresholds == "tune" || arguments.calibrate == "temperature";
}

std::vector<double> ThresholdsOf(const std::string& text, const std::vector<std::string>& names) {
  if (text.find('=') == std::string::npos)
    return std::vector<double>(names.size(), ReadThreshold(text, text));
  std::vector<std::optional<double>> found(names.size());
  for (const auto& [name, threshold] : ReadNamed(text)) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end())
      throw UsageError("thresholds names \"" + name + "\", which is no label", kForms);
    std::optional<double>& value = found[static_cast<size_t>(place - names.begin())];
    if (value) throw UsageError("thresholds names \"" + name + "\" twice", kForms);
    value = threshold;
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
