#include "lathe/data/datasets/label_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

std::optional<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Sorts by value if all names are integers, else by code point. For UTF-8 that is the order of the
// bytes.
std::vector<std::string> SortedNames(const std::set<std::string>& unique) {
  std::vector<std::string> names(unique.begin(), unique.end());
  auto is_integer = [](const std::string& name) { return ParseInteger(name).has_value(); };
  if (std::all_of(names.begin(), names.end(), is_integer)) {
    std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
      return *ParseInteger(a) < *ParseInteger(b);
    });
  }
  return names;
}

bool LooksLikeRegression(const std::set<std::string>& unique) {
  bool fraction = false;
  for (const std::string& label : unique) {
    std::optional<double> number = ParseNumber(label);
    if (!number) return false;
    fraction |= std::isfinite(*number) && !ParseInteger(label);
  }
  return fraction;
}

}  // namespace

std::optional<double> ParseNumber(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
  if (text.size() > 1 && text.starts_with('+') && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::vector<std::string>> ParseLabelArray(const std::string& text) {
  if (!text.starts_with('[')) return std::nullopt;
  CheckJsonNesting(text, "[labels] " + text.substr(0, 20) + "...");
  const auto array = ParseJsonOrDiscard(text);
  if (!array.is_array()) return std::nullopt;
  std::vector<std::string> labels;
  for (const auto& element : array) {
    if (!element.is_string() && !element.is_number_integer() && !element.is_boolean()) {
      throw InvalidArgument(
          "[labels] " + text + " must hold names of labels only but holds " + DumpJson(element),
          "list the names of the row's labels, e.g. [\"a\", \"b\"]");
    }
    labels.push_back(element.is_string() ? element.get<std::string>() : DumpJson(element));
  }
  return labels;
}

LabelSet::LabelSet(LabelKind kind, std::vector<std::string> names)
    : kind_(kind), names_(std::move(names)) {
  for (const std::string& name : names_) {
    Check(index_.emplace(name, static_cast<int64_t>(index_.size())).second, "labels", "label \"",
          name, "\" is given twice");
  }
}

LabelSet LabelSet::Infer(const std::vector<const std::vector<std::string>*>& columns) {
  std::set<std::string> unique, elements;
  std::string plain, array;  // one example of each
  for (const std::vector<std::string>* column : columns) {
    for (const std::string& label : *column) {
      if (label.empty() || !unique.insert(label).second) continue;
      if (auto labels = ParseLabelArray(label)) {
        array = label;
        elements.insert(labels->begin(), labels->end());
      } else {
        plain = label;
      }
    }
  }
  if (!array.empty()) {
    if (!plain.empty()) {
      throw InvalidArgument(
          "[labels] some labels are arrays and others are not: " + array + " and \"" + plain + "\"",
          "write the labels of all rows as JSON arrays, or those of no row");
    }
    if (elements.empty()) {
      throw InvalidArgument("[labels] every array of labels is empty",
                            "check which column holds the labels");
    }
    return MultiLabel(SortedNames(elements));
  }
  if (unique.empty()) {
    throw InvalidArgument("[labels] every label is empty", "check which column holds the labels");
  }
  if (LooksLikeRegression(unique)) return Regression();
  if (unique.size() == 1) {
    throw InvalidArgument("[labels] there is only one class, \"" + *unique.begin() +
                              "\", but at least two are needed",
                          "check which column holds the labels");
  }
  return Classes(SortedNames(unique));
}

LabelSet LabelSet::Classes(std::vector<std::string> names) {
  return LabelSet(LabelKind::kSingleLabel, std::move(names));
}

LabelSet LabelSet::MultiLabel(std::vector<std::string> names) {
  return LabelSet(LabelKind::kMultiLabel, std::move(names));
}

LabelSet LabelSet::Regression() { return LabelSet(LabelKind::kRegression, {}); }

std::optional<int64_t> LabelSet::Index(const std::string& label) const {
  auto it = index_.find(label);
  if (it == index_.end()) return std::nullopt;
  return it->second;
}

Error EmptyLabel(const std::string& where) {
  return InvalidArgument(where + ": the label is empty", "give the row a label or remove it");
}

Error UnseenLabel(const std::string& where, const std::string& label, const LabelSet& labels) {
  constexpr size_t kShown = 20;
  std::string known;
  for (size_t i = 0; i < std::min(labels.names().size(), kShown); ++i) {
    known += (i == 0 ? "" : ", ") + labels.names()[i];
  }
  if (labels.names().size() > kShown) {
    known += ", ... (" + std::to_string(labels.names().size()) + " in all)";
  }
  return InvalidArgument(
      where + ": label \"" + label + "\" was not seen in training; known labels: " + known,
      "correct the label, or add rows with it to the training file");
}

}  // namespace lathe
