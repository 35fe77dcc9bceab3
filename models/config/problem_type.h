// Problem types: the values of "problem_type" in config.json, which say what a classifier's outputs
// mean. Each stands for one kind of labels.
//
//   const LabelKind kind = OutputKind(config.problem_type(), config.num_labels());
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lathe/data/datasets/label_set.h"

namespace lathe {

// Returns the problem type of a kind of labels, e.g. "regression".
std::string ProblemType(LabelKind kind);

// Returns the kind of labels of a problem type, or nullopt if Lathe doesn't have the type.
std::optional<LabelKind> FindLabelKind(const std::string& problem_type);

// Returns the kind of labels that a trained model's outputs stand for. If `problem_type` is "" (not
// decided), one output means regression and several mean classes. A type that Lathe doesn't have
// counts as classes here; AutoModelForSequenceClassification refuses it.
LabelKind OutputKind(const std::string& problem_type, int64_t num_labels);

// Returns all problem types, as "A, B, C".
std::string KnownProblemTypes();

}  // namespace lathe
