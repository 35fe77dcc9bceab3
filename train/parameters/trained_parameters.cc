#include "lathe/train/parameters/trained_parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <regex>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/models/parameter_places.h"
#include "lathe/train/support/progress.h"
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

// A part of a model, and how many of its numbers are frozen.
struct Part {
  std::string name;
  int64_t layer = 0;  // from 1; 0: it is no layer
  int64_t all = 0, frozen = 0;
  bool is_whole() const { return frozen == all; }  // nothing in it is trained
};

// Returns the embeddings, the layers, what lies between them and the head, and the head.
std::vector<Part> PartsOf(const SequenceClassifier& model) {
  const ParameterPlaces all = PlacesOfParameters(model);
  std::vector<Part> parts = {{.name = "the embeddings"}};
  for (int64_t layer = 1; layer <= all.num_layers; ++layer)
    parts.push_back({.name = "layer " + std::to_string(layer), .layer = layer});
  parts.push_back({.name = "the rest below the head"});
  parts.push_back({.name = "the head"});
  const std::vector<Parameter> parameters = model.Parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterPlace& place = all.places[i];
    Part& part = place.in_head ? parts.back() : parts[static_cast<size_t>(place.depth)];
    part.all += parameters[i].tensor.numel();
    if (!parameters[i].tensor.requires_grad()) part.frozen += parameters[i].tensor.numel();
  }
  return parts;
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

std::string DescribeFrozen(const SequenceClassifier& model) {
  std::vector<Part> parts = PartsOf(model);
  int64_t all = 0, frozen = 0;
  for (const Part& part : parts) {
    all += part.all;
    frozen += part.frozen;
  }
  std::string text = FormatCount(frozen) + " of " + FormatCount(all) + " parameters";
  const char* before = ": ";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].frozen == 0) continue;
    size_t last = i;  // of layers that are frozen alike
    while (parts[i].layer > 0 && last + 1 < parts.size() && parts[last + 1].layer > 0 &&
           parts[last + 1].frozen > 0 && parts[last + 1].is_whole() == parts[i].is_whole())
      ++last;
    text += before + std::string(parts[i].is_whole() ? "" : "parts of ") +
            (last == i ? parts[i].name
                       : "layers " + std::to_string(parts[i].layer) + " to " +
                             std::to_string(parts[last].layer));
    before = ", ";
    i = last;
  }
  return text + "; " + FormatCount(all - frozen) + " are trained";
}

std::vector<std::string> IdleRates(const SequenceClassifier& model, const TrainingArguments& a) {
  std::vector<std::string> lines;
  const std::vector<Part> parts = PartsOf(model);
  const auto trains = [](const Part& part) { return !part.is_whole(); };
  // The rate decays from the top of the model down to the embeddings.
  if (a.layerwise_lr_decay != 1 && std::none_of(parts.begin(), parts.end() - 2, trains)) {
    lines.push_back(OptionName("layerwise_lr_decay") + " has no effect, since " +
                    OptionName("freeze_layers") + " leaves no layer to train");
  }
  if (a.head_learning_rate > 0 && !trains(parts.back())) {
    lines.push_back(OptionName("head_learning_rate") + " has no effect, since " +
                    OptionName("freeze_layers") + " freezes the head");
  }
  return lines;
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

void ScaleRates(Optimizer& optimizer, const SequenceClassifier& model,
                const TrainingArguments& before) {
  const std::vector<ParameterGroup> groups = TrainedGroups(model, before);
  if (std::ssize(groups) != optimizer.num_groups()) return;
  for (int i = 0; i < optimizer.num_groups(); ++i) {
    const double own = groups[static_cast<size_t>(i)].lr;
    const double then = own < 0 ? before.learning_rate : own, now = optimizer.initial_lr(i);
    if (then > 0 && then != now) optimizer.SetLr(i, optimizer.lr(i) * (now / then));
  }
}

}  // namespace lathe
