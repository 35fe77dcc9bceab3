// Weights of classes as TrainingArguments::class_weights gives them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lathe {

// Returns the label and the weight of each entry of "a=2,b=0.5", of a JSON object such as
// {"a": 2, "b": 0.5} or, if the text ends with ".json", of the object in that file. Returns nothing
// for "none" and "balanced". A label that has a comma needs an object. Throws for anything else, a
// weight that is not a positive number, or a label that is named twice.
std::vector<std::pair<std::string, double>> ReadClassWeights(const std::string& text);

// Returns these weights in the order of `labels`. Throws for an unknown or a missing label.
std::vector<float> InOrderOfLabels(const std::vector<std::pair<std::string, double>>& weights,
                                   const std::vector<std::string>& labels);

}  // namespace lathe
