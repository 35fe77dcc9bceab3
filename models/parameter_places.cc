#include "lathe/models/parameter_places.h"

#include <algorithm>
#include <optional>
#include <string>

#include "lathe/models/architecture.h"

namespace lathe {
namespace {

// Returns the first part of the path that is a number, such as 3 in "encoder.layer.3.output".
std::optional<int64_t> FirstNumber(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (digits) return std::stoll(part);
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

ParameterPlaces PlacesOfParameters(const SequenceClassifier& model) {
  const std::string& prefix = ArchitectureOf(model.config()).names.base_prefix;
  const std::vector<Parameter> parameters = model.Parameters();
  ParameterPlaces result;
  std::vector<std::optional<int64_t>> layers;  // from 0
  size_t end_of_layers = 0;                    // behind the last parameter of a layer
  for (const Parameter& parameter : parameters) {
    const bool in_head = !parameter.name.starts_with(prefix);
    layers.push_back(in_head ? std::nullopt : FirstNumber(parameter.name));
    if (!layers.back()) continue;
    result.num_layers = std::max(result.num_layers, *layers.back() + 1);
    end_of_layers = layers.size();
  }
  int64_t layer = 0;  // the last one that was met, from 1
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (layers[i]) layer = *layers[i] + 1;
    const bool in_head = !parameters[i].name.starts_with(prefix);
    const bool above = in_head || (layer > 0 && i >= end_of_layers);
    result.places.push_back({.depth = above ? result.num_layers + 1 : layer, .in_head = in_head});
  }
  return result;
}

}  // namespace lathe
