#include "lathe/train/rows/validation_rule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_number.h"

namespace lathe {
namespace {

// More labels than these are scores, or a mistake that is found elsewhere.
constexpr size_t kMostClasses = 10000;
constexpr size_t kMostNamed = 5;  // in a note

}  // namespace

uint64_t PlaceOfRow(std::string_view first, std::string_view second, bool pairs) {
  std::string text(first);
  if (pairs) text.append(1, '\0').append(second);
  return std::stoull(Sha256(text).substr(0, 16), nullptr, 16);
}

void ValidationRule::Class::Add(uint64_t place, bool is_below) {
  ++rows;
  below += is_below;
  lowest = std::min(lowest, place);
  highest = std::max(highest, place);
}

bool ValidationRule::IsBelow(uint64_t place) const {
  return std::ldexp(static_cast<double>(place), -64) < share_;
}

void ValidationRule::Add(const TextTable& rows, const TextColumns& columns,
                         const std::string& label_column) {
  const bool pairs = !columns.second.empty();
  const std::vector<std::string>& first = rows.column(columns.first);
  const std::vector<std::string>& second = pairs ? rows.column(columns.second) : first;
  const std::vector<std::string>& labels = rows.column(label_column);
  for (size_t row = 0; row < labels.size(); ++row) {
    const uint64_t place = PlaceOfRow(first[row], second[row], pairs);
    const bool is_below = IsBelow(place);
    all_.Add(place, is_below);
    if (too_many_classes_) continue;
    classes_[labels[row]].Add(place, is_below);
    if (classes_.size() <= kMostClasses) continue;
    too_many_classes_ = true;
    classes_.clear();
  }
}

void ValidationRule::DecideClass(const Class& rows, const std::string& label) {
  if (rows.lowest == rows.highest) {
    if (rows.below > 0) training_[label] = rows.highest;
  } else if (rows.below == 0) {
    validating_[label] = rows.lowest;
  } else if (rows.below == rows.rows) {
    training_[label] = rows.highest;
  }
}

void ValidationRule::Decide(LabelKind kind, const std::string& path) {
  if (all_.rows == 0 || all_.lowest == all_.highest) {
    throw InvalidArgument(
        path + ": " + OptionName("validation_split") + " needs two different texts at least",
        "add rows, or name a " + OptionName("validation_file"));
  }
  by_class_ = kind == LabelKind::kSingleLabel && !too_many_classes_;
  if (!by_class_) {
    DecideClass(all_, "");
    return;
  }
  std::string lone;
  size_t num_lone = 0;
  for (const auto& [label, rows] : classes_) {
    DecideClass(rows, label);
    if (rows.lowest != rows.highest) continue;
    if (num_lone < kMostNamed) lone += (lone.empty() ? "\"" : ", \"") + label + "\"";
    ++num_lone;
  }
  if (num_lone > 0) {
    if (num_lone > kMostNamed) lone += ", ...";
    notes_.push_back(OptionName("validation_split") + " leaves no row for validation of " +
                     std::to_string(num_lone) +
                     (num_lone == 1 ? " class that has" : " classes that have") +
                     " one text only: " + lone);
  }
  if (num_lone == classes_.size()) {
    throw InvalidArgument(
        path + ": " + OptionName("validation_split") + " needs a class with two different texts",
        "add rows, or name a " + OptionName("validation_file"));
  }
  classes_.clear();
}

std::vector<bool> ValidationRule::Validates(const TextTable& rows, const TextColumns& columns,
                                            const std::string& label_column) const {
  const bool pairs = !columns.second.empty();
  const std::vector<std::string>& first = rows.column(columns.first);
  const std::vector<std::string>& second = pairs ? rows.column(columns.second) : first;
  const std::vector<std::string>& labels = rows.column(label_column);
  const auto is_at = [](const std::map<std::string, uint64_t>& places, const std::string& label,
                        uint64_t place) {
    const auto found = places.find(label);
    return found != places.end() && found->second == place;
  };
  std::vector<bool> validates(labels.size());
  for (size_t row = 0; row < labels.size(); ++row) {
    const std::string label = by_class_ ? labels[row] : "";
    const uint64_t place = PlaceOfRow(first[row], second[row], pairs);
    validates[row] =
        IsBelow(place) ? !is_at(training_, label, place) : is_at(validating_, label, place);
  }
  return validates;
}

nlohmann::json ValidationRule::ToJson() const {
  return {{"share", share_},
          {"by_class", by_class_},
          {"validating", validating_},
          {"training", training_},
          {"notes", notes_}};
}

ValidationRule ValidationRule::FromJson(const nlohmann::json& json) {
  ValidationRule rule(json.at("share"));
  rule.by_class_ = json.at("by_class");
  const auto read_places = [&](const char* key, std::map<std::string, uint64_t>& places) {
    for (const auto& [label, place] : json.at(key).items())
      places[label] = GetWholeNumber<uint64_t>(place);
  };
  read_places("validating", rule.validating_);
  read_places("training", rule.training_);
  rule.notes_ = json.at("notes").get<std::vector<std::string>>();
  return rule;
}

}  // namespace lathe
