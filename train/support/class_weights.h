// Reads options that give each label a number: the classes' weights
// (TrainingArguments::class_weights) and the labels' thresholds (decision_arguments.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lathe {

using LabelNumbers = std::vector<std::pair<std::string, double>>;  // labels and their numbers

// Says which numbers such an option takes, with words for errors.
struct LabelNumberKind {
  const char* option;      // the option's name, such as "class_weights"
  const char* name;        // what a number is called, such as "weight"
  const char* wanted;      // what a number must be, such as "a positive number"
  const char* hint;        // how to mend a number that isn't so
  const char* entry;       // the form of an entry, such as "LABEL=WEIGHT"
  const char* forms;       // a hint with all forms that the option may have
  const char* example;     // an object of JSON, for messages
  bool (*allows)(double);  // true if a number is what is wanted
};

// Returns the label and the number of each entry. The text is "a=2,b=0.5" or a JSON object such as
// {"a": 2, "b": 0.5}. If it ends with ".json", the object is in that file. A label that has a comma
// needs an object. Throws for anything else, a number that the kind doesn't allow, or a label that
// is named twice.
LabelNumbers ReadLabelNumbers(const std::string& text, const LabelNumberKind& kind);

// Returns the labels and weights that the text gives, as ReadLabelNumbers does. Returns nothing for
// "none" and "balanced". A weight must be a positive number.
LabelNumbers ReadClassWeights(const std::string& text);

// Returns these weights in the order of `labels`. Throws for an unknown or a missing label.
std::vector<float> InOrderOfLabels(const LabelNumbers& weights,
                                   const std::vector<std::string>& labels);

}  // namespace lathe
