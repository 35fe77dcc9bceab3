// DecideLabels: derives the classifier's outputs from label columns, options and the config.
#include "lathe/train/task/labels.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/dataset.h"
#include "lathe/data/metrics/glue_tasks.h"
#include "lathe/models/config/config.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

using Names = std::vector<std::string>;

std::string Join(const Names& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < 20; ++i) out += (i > 0 ? ", " : "") + names[i];
  return names.size() > 20 ? out + ", ..." : out;
}

Names NumbersBelow(int64_t n) {
  Names names;
  for (int64_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
  return names;
}

bool IsDefaultNames(const Names& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != PretrainedConfig::DefaultLabelName(static_cast<int64_t>(i))) return false;
  }
  return true;
}

bool Contains(const Names& all, const Names& some) {
  return std::all_of(some.begin(), some.end(), [&](const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  });
}

bool AreNumbers(const Names& names) {
  return std::all_of(names.begin(), names.end(),
                     [](const std::string& name) { return ParseNumber(name).has_value(); });
}

// Throws if a column of scores has a slip in it. It would otherwise be taken for names of classes.
void CheckScores(const DistinctLabels& train) {
  const Names& labels = train.labels();
  int64_t rows = 0, numbers = 0, fractions = 0;
  std::optional<size_t> bad;
  for (size_t i = 0; i < labels.size(); ++i) {
    rows += train.count(i);
    if (!ParseNumber(labels[i])) {
      if (!bad) bad = i;
    } else {
      numbers += train.count(i);
      fractions += labels[i].find('.') != std::string::npos;
    }
  }
  const bool are_scores = fractions > 0 && numbers * 2 > rows;
  if (!bad || !are_scores) return;
  throw InvalidArgument(train.Where(*bad) + ": score \"" + labels[*bad] + "\" is not a number",
                        "correct it, or pass " + OptionName("problem_type") +
                            " single_label_classification if these are names");
}

LabelSet Infer(const Names& column, const std::string& where) {
  try {
    return LabelSet::Infer({&column});
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + WithoutTag(e.message()), e.hint(), e.location());
  }
}

LabelSet FromTraining(const DistinctLabels& train, const FinetuneArguments& options) {
  const Names& column = train.labels();
  const auto empty = std::find(column.begin(), column.end(), "");
  if (empty != column.end())
    throw EmptyLabel(train.Where(static_cast<size_t>(empty - column.begin())));
  const std::string wish = !options.problem_type.empty()           ? options.problem_type
                           : options.do_regression.value_or(false) ? "regression"
                                                                   : "";
  if (wish.empty() && !options.do_regression) CheckScores(train);
  const std::string where = train.path() + ": column \"" + train.column() + "\"";
  const LabelSet inferred = Infer(column, where);
  LabelKind wanted = inferred.kind();
  if (!wish.empty()) {
    wanted = OutputKind(wish, inferred.num_labels());
  } else if (options.do_regression && wanted == LabelKind::kRegression) {
    wanted = LabelKind::kSingleLabel;
  }
  if (wanted == inferred.kind()) return inferred;
  if (wanted == LabelKind::kMultiLabel || inferred.kind() == LabelKind::kMultiLabel) {
    throw InvalidArgument(
        where + (wanted == LabelKind::kMultiLabel ? " holds no" : " holds") +
            " arrays of labels but " +
            (options.problem_type.empty() ? OptionName("do_regression") + " is true"
                                          : OptionName("problem_type") + " is " + wish),
        "multi-label data is a .json or .jsonl file whose labels are arrays");
  }
  if (wanted == LabelKind::kRegression) return LabelSet::Regression();
  // The names of the classes look like decimal numbers.
  const std::set<std::string> unique(column.begin(), column.end());
  return LabelSet::Classes(Names(unique.begin(), unique.end()));
}

// Without training data, the config says what the model's outputs mean.
LabelSet FromConfig(const DistinctLabels* validation, const PretrainedConfig& config,
                    const FinetuneArguments& options) {
  std::string type = options.problem_type.empty() ? config.problem_type() : options.problem_type;
  if (options.problem_type.empty() && options.do_regression.value_or(false)) type = "regression";
  const LabelKind kind = OutputKind(type, config.num_labels());
  if (kind == LabelKind::kRegression) return LabelSet::Regression();
  const Names names = config.label_names();
  if (kind == LabelKind::kSingleLabel && IsDefaultNames(names) && validation != nullptr) {
    const Names numbers = NumbersBelow(static_cast<int64_t>(names.size()));
    if (Contains(numbers, validation->labels())) return LabelSet::Classes(numbers);
  }
  return MakeLabelSet(kind, names);
}

// Returns the names in the model's own order, if it has the same names up to case (as run_glue
// does). Otherwise returns `names`.
Names InOrderOf(const Names& model_names, const Names& names) {
  Names ordered;
  for (const std::string& model_name : model_names) {
    for (const std::string& name : names) {
      if (absl::AsciiStrToLower(name) == absl::AsciiStrToLower(model_name)) ordered.push_back(name);
    }
  }
  return ordered.size() == names.size() && ordered.size() == model_names.size() ? ordered : names;
}

// Returns the names in the order of a GLUE task, if all of them are its labels up to case.
// Otherwise returns `names`.
Names InOrderOfTask(const std::string& task_name, const Names& names) {
  const GlueTask* task = FindGlueTask(task_name);
  if (task == nullptr) return names;
  Names ordered;
  for (const std::string& label : task->labels) {
    for (const std::string& name : names) {
      if (absl::AsciiStrToLower(name) == label) ordered.push_back(name);
    }
  }
  return ordered.size() == names.size() ? ordered : names;
}

Names Followed(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

}  // namespace

std::vector<std::string> LabelsOfValidationAlone(const LabelSet& labels,
                                                 const DistinctLabels& validation) {
  if (labels.kind() == LabelKind::kRegression) return {};
  const bool several = labels.kind() == LabelKind::kMultiLabel;
  const bool numbers = AreNumbers(labels.names());
  std::set<std::string> alone;
  for (const std::string& text : validation.labels()) {
    const std::optional<Names> array = ParseLabelArray(text);
    if (array.has_value() != several) continue;  // an error names its row later
    for (const std::string& name : several ? *array : Names{text}) {
      const bool is_number = ParseNumber(name).has_value();
      const bool is_score = is_number && name.find('.') != std::string::npos;
      if (!name.empty() && !is_score && is_number == numbers && !labels.Index(name))
        alone.insert(name);
    }
  }
  return {alone.begin(), alone.end()};
}

void DistinctLabels::Add(const TextTable& rows) {
  constexpr size_t kMostScores = 1 << 20;
  if (paths_.empty() || paths_.back() != rows.path) paths_.push_back(rows.path);
  const std::vector<std::string>& column = rows.column(column_);
  for (size_t row = 0; row < column.size(); ++row) {
    const std::string& label = column[row];
    if (const auto known = places_.find(label); known != places_.end()) {
      ++counts_[known->second];
      continue;
    }
    const bool is_score = label.find('.') != std::string::npos && ParseNumber(label).has_value();
    if (is_score && number_ && labels_.size() >= kMostScores) {
      ++counts_[*number_];
      continue;
    }
    if (is_score) number_ = labels_.size();
    places_.emplace(label, labels_.size());
    labels_.push_back(label);
    counts_.push_back(1);
    first_lines_.push_back(rows.lines[row]);
    first_elements_.push_back(rows.element(static_cast<int64_t>(row)));
    first_files_.push_back(paths_.size() - 1);
  }
}

LabelSet MakeLabelSet(LabelKind kind, std::vector<std::string> names) {
  switch (kind) {
    case LabelKind::kSingleLabel:
      return LabelSet::Classes(std::move(names));
    case LabelKind::kMultiLabel:
      return LabelSet::MultiLabel(std::move(names));
    case LabelKind::kRegression:
      break;
  }
  return LabelSet::Regression();
}

LabelSet DecideLabels(const DistinctLabels* train, const DistinctLabels* validation,
                      const PretrainedConfig& config, const FinetuneArguments& options) {
  LabelSet labels =
      train != nullptr ? FromTraining(*train, options) : FromConfig(validation, config, options);
  if (train != nullptr && validation != nullptr && !options.num_labels) {
    const Names alone = LabelsOfValidationAlone(labels, *validation);
    if (!alone.empty()) labels = MakeLabelSet(labels.kind(), Followed(labels.names(), alone));
  }
  const int64_t wanted = options.num_labels.value_or(labels.num_labels());
  if (labels.kind() == LabelKind::kRegression) {
    if (wanted != 1) {
      throw UsageError(OptionName("num_labels") + " is " + std::to_string(wanted) +
                           " but the labels are numbers, and a regression has one output",
                       "leave " + OptionName("num_labels") + " out, or pass " +
                           OptionName("problem_type") +
                           " single_label_classification if the numbers are names");
    }
    return labels;
  }
  Names names = labels.names();
  if (train != nullptr)
    names = InOrderOf(config.label_names(), InOrderOfTask(options.task_name, names));
  const int64_t found = static_cast<int64_t>(names.size());
  if (found > wanted) {
    const std::string what = std::to_string(found) + " labels (" + Join(names) + ") but " +
                             OptionName("num_labels") + " is " + std::to_string(wanted);
    const std::string hint =
        wanted == 1 && labels.kind() != LabelKind::kMultiLabel && AreNumbers(names)
            ? "pass " + OptionName("problem_type") + " regression to fit the numbers themselves"
            : "leave " + OptionName("num_labels") + " out or raise it";
    if (train == nullptr) throw WrongConfig(config.path(), {"num_labels"}, what, hint);
    throw UsageError(train->path() + ": " + what, hint);
  }
  if (const Names numbers = NumbersBelow(wanted); Contains(numbers, names)) {
    // The labels are class numbers, and the file happens to lack some of them.
    if (found < wanted) names = numbers;
  } else {
    for (int64_t i = found; i < wanted; ++i) {
      names.push_back(PretrainedConfig::DefaultLabelName(i));
    }
  }
  return MakeLabelSet(labels.kind(), std::move(names));
}

}  // namespace lathe
