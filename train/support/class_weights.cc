#include "lathe/train/support/class_weights.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/base/json_nesting.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Weights = std::vector<std::pair<std::string, double>>;

constexpr char kForms[] =
    "write none, balanced, LABEL=WEIGHT,LABEL=WEIGHT, a JSON object or the name of a .json file";
// No sum of products with weights of samples overflows a float.
constexpr double kLargest = 1e12;

// Adds an entry. `where` begins the message of an error, and `text` is the weight as it was given.
void Add(Weights& weights, const std::string& where, const std::string& label, double weight,
         const std::string& text) {
  if (!(weight > 0 && weight <= kLargest)) {
    throw InvalidArgument(where + ": the weight of label \"" + label +
                              "\" must be a positive number up to 1e+12 but is " + text,
                          "give each label a weight above 0");
  }
  for (const auto& [name, unused] : weights) {
    if (name == label)
      throw InvalidArgument(where + ": label \"" + label + "\" has two weights", "leave one out");
  }
  weights.emplace_back(label, weight);
}

// Reads an object. `where` begins the messages of errors.
Weights ReadObject(const std::string& text, const std::string& where) {
  CheckJsonNesting(text, where);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw InvalidArgument(where + ": expected a JSON object of labels and their weights",
                          "write it as {\"a\": 2, \"b\": 0.5}");
  }
  Weights weights;
  for (const auto& [label, weight] : json.items()) {
    Add(weights, where, label, weight.is_number() ? weight.get<double>() : NAN,
        weight.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return weights;
}

Weights ReadFileOfWeights(const std::string& path) {
  const std::string text = [&] {
    try {
      return ReadFile(path);
    } catch (const Error& e) {
      throw e.WithHint("class_weights names this file");
    }
  }();
  return ReadObject(text, path);
}

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 20; ++i) out += (i > 0 ? ", " : "") + names[i];
  return names.size() > 20 ? out + ", ..." : out;
}

}  // namespace

Weights ReadClassWeights(const std::string& text) {
  if (text == "none" || text == "balanced") return {};
  if (text.ends_with(".json")) return ReadFileOfWeights(text);
  if (text.starts_with('{') && text.ends_with('}')) return ReadObject(text, "class_weights");
  Weights weights;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    const size_t equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0)
      throw InvalidArgument("class_weights: \"" + entry + "\" is no LABEL=WEIGHT", kForms);
    const std::string number = entry.substr(equals + 1);
    Add(weights, "class_weights", entry.substr(0, equals), ParseNumber(number).value_or(NAN),
        "\"" + number + "\"");
    begin = end + 1;
  }
  return weights;
}

std::vector<float> InOrderOfLabels(const Weights& weights, const std::vector<std::string>& labels) {
  for (const auto& [name, unused] : weights) {
    if (std::find(labels.begin(), labels.end(), name) != labels.end()) continue;
    throw UsageError("class_weights: \"" + name + "\" is not one of the labels " + Join(labels),
                     "name the labels as the training data have them");
  }
  std::vector<float> ordered;
  for (const std::string& label : labels) {
    const auto found = std::find_if(weights.begin(), weights.end(),
                                    [&](const auto& weight) { return weight.first == label; });
    if (found == weights.end()) {
      throw UsageError("class_weights: there is no weight for label \"" + label + "\"",
                       "give each of " + Join(labels) + " a weight; 1 changes nothing");
    }
    ordered.push_back(static_cast<float>(found->second));
  }
  return ordered;
}

}  // namespace lathe
