#include "lathe/train/trained_parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <regex>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/models/parameter_places.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {
namespace {

bool IsNumber(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

using Matches = std::function<bool(const std::string& name, const ParameterPlace& place)>;

// Returns the function that tells which parameters `wish` names.
Matches MatcherOf(const std::string& wish, int64_t num_layers) {
  if (wish == "embeddings") return [](auto&, auto& place) { return place.depth == 0; };
  if (wish == "encoder") return [](auto&, auto& place) { return !place.in_head; };
  if (IsNumber(wish)) {
    const int64_t layers = wish.size() < 10 ? std::stoll(wish) : INT64_MAX;
    if (layers > num_layers) {
      throw UsageError("freeze_layers is " + wish + " but the model has " +
                           std::to_string(num_layers) + (num_layers == 1 ? " layer" : " layers") +
                           " with parameters of their own",
                       "pass encoder to freeze all that lies below the head");
    }
    return [layers](auto&, auto& place) { return place.depth <= layers; };
  }
  if (const auto number = ParseNumber(wish); number && std::isfinite(*number)) {
    throw UsageError("freeze_layers must be a whole number of layers from 0 but is " + wish,
                     "or pass embeddings, encoder or a regular expression for names of parameters");
  }
  try {
    return [regex = std::regex(wish)](const std::string& name, auto&) {
      return std::regex_search(name, regex);
    };
  } catch (const std::regex_error& e) {
    throw UsageError("freeze_layers: \"" + wish + "\" is no regular expression: " + e.what(),
                     "pass a number of layers, embeddings, encoder or an ECMAScript expression");
  }
}

}  // namespace

void FreezeParameters(const SequenceClassifier& model, const TrainingArguments& arguments) {
  const std::string& wish = arguments.freeze_layers;
  if (wish.empty()) return;
  const ParameterPlaces all = PlacesOfParameters(model);
  const Matches matches = MatcherOf(wish, all.num_layers);
  const std::vector<Parameter> parameters = model.Parameters();
  std::vector<Tensor> frozen;
  int64_t trained = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].tensor.requires_grad()) continue;
    if (matches(parameters[i].name, all.places[i])) {
      frozen.push_back(parameters[i].tensor);
    } else {
      ++trained;
    }
  }
  if (frozen.empty() || trained == 0) {
    throw UsageError("freeze_layers \"" + wish + "\" freezes " +
                         (frozen.empty() ? "no parameter" : "all parameters"),
                     "names of parameters are like " + parameters.front().name + " and " +
                         parameters.back().name);
  }
  for (Tensor& tensor : frozen) tensor.SetRequiresGrad(false);
}

std::vector<ParameterGroup> TrainedGroups(const SequenceClassifier& model,
                                          const TrainingArguments& a) {
  const bool one_rate = a.layerwise_lr_decay == 1 && a.head_learning_rate == 0;
  if (one_rate && a.freeze_layers.empty()) return DecayGroups(model.Parameters(), a.weight_decay);
  const ParameterPlaces all = PlacesOfParameters(model);
  const std::vector<Parameter> parameters = model.Parameters();
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (!a.freeze_layers.empty() && !parameter.tensor.requires_grad()) continue;
    const ParameterPlace& place = all.places[i];
    const auto above = static_cast<double>(all.num_layers + 1 - place.depth);
    const double rate = place.in_head && a.head_learning_rate > 0
                            ? a.head_learning_rate
                            : a.learning_rate * std::pow(a.layerwise_lr_decay, above);
    const double decay = parameter.decays ? a.weight_decay : 0;
    const auto same = std::ranges::find_if(groups, [&](const ParameterGroup& group) {
      return group.lr == rate && group.parameters.front().decays == parameter.decays;
    });
    if (same != groups.end()) {
      same->parameters.push_back(parameter);
    } else {
      groups.push_back({.parameters = {parameter}, .lr = rate, .weight_decay = decay});
    }
  }
  std::ranges::stable_partition(
      groups, [&](const ParameterGroup& group) { return group.lr == a.learning_rate; });
  return groups;
}

}  // namespace lathe
