// LabelSet: the meaning of the strings in a label column.
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

#include "lathe/core/base/error.h"

namespace lathe {

enum class LabelKind { kSingleLabel, kMultiLabel, kRegression };

class LabelSet {
 public:
  // Infers the kind and the names from label columns:
  //   JSON arrays                                      multi-label
  //   numbers, at least one of them with a fraction    regression
  //   anything else                                    classes
  // "4.0" is written as a float and counts as one. "nan" counts as a number; Tokenize reports it
  // with its line. Names are sorted as run_glue sorts a column's unique values: integers by value,
  // strings by code point. Empty labels are skipped; Tokenize reports them with their line. Throws
  // if no label is left, if arrays and plain labels are mixed, or if there is only one class.
  static LabelSet Infer(const std::vector<const std::vector<std::string>*>& columns);
  // Classes and MultiLabel keep the order of `names` and throw if a name is repeated.
  static LabelSet Classes(std::vector<std::string> names);
  static LabelSet MultiLabel(std::vector<std::string> names);
  static LabelSet Regression();

  LabelKind kind() const { return kind_; }
  const std::vector<std::string>& names() const { return names_; }  // empty for regression
  int64_t num_labels() const {
    return kind_ == LabelKind::kRegression ? 1 : static_cast<int64_t>(names_.size());
  }
  // The class index of a label; nullopt if the label is unknown.
  std::optional<int64_t> Index(const std::string& label) const;

 private:
  LabelSet(LabelKind kind, std::vector<std::string> names);

  LabelKind kind_ = LabelKind::kSingleLabel;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int64_t> index_;
};

// Parses the whole of `text`, without spaces and tabs around it, as a number. Here "nan" and "inf"
// are numbers.
std::optional<double> ParseNumber(std::string_view text);

// The labels in a JSON array such as `["joy", "fear"]` or `[0, 3]`; nullopt if `text` is not a JSON
// array. Throws if an element is not a string, an integer or a boolean, or if arrays are nested too
// deeply.
std::optional<std::vector<std::string>> ParseLabelArray(const std::string& text);

// Returns the errors for a row whose label is empty or not in the set; `where` is "path:line".
Error EmptyLabel(const std::string& where);
Error UnseenLabel(const std::string& where, const std::string& label, const LabelSet& labels);

}  // namespace lathe
