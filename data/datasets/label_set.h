// LabelSet: what the strings of a label column mean.
//
//   LabelSet labels = LabelSet::Infer({&train.column("label"), &validation.column("label")});
//   if (auto index = labels.Index("positive")) ...
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lathe {

enum class LabelKind { kSingleLabel, kMultiLabel, kRegression };

class LabelSet {
 public:
  // Infers from label columns: JSON arrays -> multi-label; any number that is not an integer among
  // all-numeric values -> regression ("4.0" is written as a float and counts as one; "nan" counts
  // as a number, for Tokenize to report with its line); else classes. Names are sorted as run_glue
  // sorts a column's unique values: integers by value, strings by code point. Empty labels are
  // passed over: Tokenize reports them with their line. Throws if no label is left, if arrays and
  // plain labels are mixed, or if there is only one class.
  static LabelSet Infer(const std::vector<const std::vector<std::string>*>& columns);
  static LabelSet Classes(
      std::vector<std::string> names);  // in this order; throws if one is repeated
  static LabelSet MultiLabel(
      std::vector<std::string> names);  // in this order; throws if one is repeated
  static LabelSet Regression();

  LabelKind kind() const { return kind_; }
  const std::vector<std::string>& names() const { return names_; }  // empty for regression
  int64_t num_labels() const {
    return kind_ == LabelKind::kRegression ? 1 : static_cast<int64_t>(names_.size());
  }
  // Class index of a label; nullopt if unknown.
  std::optional<int64_t> Index(const std::string& label) const;

 private:
  LabelSet(LabelKind kind, std::vector<std::string> names);

  LabelKind kind_ = LabelKind::kSingleLabel;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int64_t> index_;
};

// The whole of `text`, spaces around it aside, as a number; "nan" and "inf" are numbers here.
std::optional<double> ParseNumber(std::string_view text);

// The labels in a JSON array such as `["joy", "fear"]` or `[0, 3]`; nullopt if `text` is not an
// array of strings, numbers or booleans.
std::optional<std::vector<std::string>> ParseLabelArray(const std::string& text);

}  // namespace lathe
