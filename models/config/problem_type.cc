#include "lathe/models/config/problem_type.h"

namespace lathe {
namespace {

struct Row {
  LabelKind kind;
  const char* problem_type;
};
constexpr Row kRows[] = {
    {LabelKind::kRegression, "regression"},
    {LabelKind::kSingleLabel, "single_label_classification"},
    {LabelKind::kMultiLabel, "multi_label_classification"},
};

}  // namespace

std::string ProblemType(LabelKind kind) {
  for (const Row& row : kRows) {
    if (row.kind == kind) return row.problem_type;
  }
  return "";
}

std::optional<LabelKind> FindLabelKind(const std::string& problem_type) {
  for (const Row& row : kRows) {
    if (row.problem_type == problem_type) return row.kind;
  }
  return std::nullopt;
}

LabelKind OutputKind(const std::string& problem_type, int64_t num_labels) {
  if (problem_type.empty() && num_labels == 1) return LabelKind::kRegression;
  return FindLabelKind(problem_type).value_or(LabelKind::kSingleLabel);
}

std::string KnownProblemTypes() {
  std::string known;
  for (const Row& row : kRows) known += (known.empty() ? "" : ", ") + std::string(row.problem_type);
  return known;
}

}  // namespace lathe
