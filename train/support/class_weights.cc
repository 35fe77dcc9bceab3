#include "lathe/train/support/class_weights.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/text/written_json.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// No sum of products with weights of samples overflows a float.
constexpr double kLargest = 1e12;

constexpr LabelNumberKind kWeights = {
    .option = "class_weights",
    .name = "weight",
    .wanted = "a positive number up to 1e+12",
    .hint = "give each label a weight above 0",
    .entry = "LABEL=WEIGHT",
    .forms =
        "write none, balanced, LABEL=WEIGHT,LABEL=WEIGHT, a JSON object or the name of a "
        ".json file",
    .example = "{\"a\": 2, \"b\": 0.5}",
    .allows = [](double weight) { return weight > 0 && weight <= kLargest; }};

// Adds an entry. `where` begins the message of an error, and `text` is the number as it was given.
void Add(LabelNumbers& numbers, const LabelNumberKind& kind, const std::string& where,
         const std::string& label, double number, const std::string& text) {
  if (!kind.allows(number)) {
    throw InvalidArgument(where + ": the " + kind.name + " of label \"" + label + "\" must be " +
                              kind.wanted + " but is " + text,
                          kind.hint);
  }
  for (const auto& [name, unused] : numbers) {
    if (name != label) continue;
    throw InvalidArgument(where + ": label \"" + label + "\" has two " + kind.name + "s",
                          "leave one out");
  }
  numbers.emplace_back(label, number);
}

// Reads an object. `where` begins the messages of errors.
LabelNumbers ReadObject(const std::string& text, const LabelNumberKind& kind,
                        const std::string& where) {
  const std::string hint = std::string("write it as ") + kind.example;
  const Json json = ParseWrittenJson(text, where, hint);
  if (!json.is_object()) {
    throw InvalidArgument(where + ": expected a JSON object of labels and their " + kind.name + "s",
                          hint);
  }
  LabelNumbers numbers;
  for (const auto& [label, number] : json.items()) {
    Add(numbers, kind, where, label, number.is_number() ? number.get<double>() : NAN,
        DumpJson(number));
  }
  return numbers;
}

LabelNumbers ReadFileOfNumbers(const std::string& path, const LabelNumberKind& kind) {
  const std::string text = [&] {
    try {
      return ReadFile(path);
    } catch (const Error& e) {
      throw e.WithHint(std::string(kind.option) + " names this file");
    }
  }();
  return ReadObject(text, kind, path);
}

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 20; ++i) out += (i > 0 ? ", " : "") + names[i];
  return names.size() > 20 ? out + ", ..." : out;
}

}  // namespace

LabelNumbers ReadLabelNumbers(const std::string& text, const LabelNumberKind& kind) {
  if (text.ends_with(".json")) return ReadFileOfNumbers(text, kind);
  if (text.starts_with('{') && text.ends_with('}')) return ReadObject(text, kind, kind.option);
  LabelNumbers numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    const size_t equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0) {
      throw InvalidArgument(std::string(kind.option) + ": \"" + entry + "\" is no " + kind.entry,
                            kind.forms);
    }
    const std::string number = entry.substr(equals + 1);
    Add(numbers, kind, kind.option, entry.substr(0, equals), ParseNumber(number).value_or(NAN),
        "\"" + number + "\"");
    begin = end + 1;
  }
  return numbers;
}

LabelNumbers ReadClassWeights(const std::string& text) {
  if (text == "none" || text == "balanced") return {};
  return ReadLabelNumbers(text, kWeights);
}

std::vector<float> InOrderOfLabels(const LabelNumbers& weights,
                                   const std::vector<std::string>& labels) {
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
