#include "lathe/train/support/optimizer_arguments.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/nearest_name.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Returns the options that optim_args can set for an optimizer; none for AdamW and Adafactor.
std::vector<std::string> OptionNames(const std::string& optim) {
  if (optim == "sgd") return {"momentum", "dampening", "nesterov"};
  if (optim == "rmsprop") return {"momentum", "alpha", "eps", "centered"};
  if (optim == "adagrad") return {"lr_decay", "eps"};
  if (optim == "lion") return {"beta1", "beta2"};
  return {};
}

std::string Title(const std::string& optim) {
  if (optim == "sgd") return "SGD";
  if (optim == "rmsprop") return "RMSprop";
  if (optim == "adagrad") return "Adagrad";
  if (optim == "lion") return "Lion";
  return optim == "adafactor" ? "Adafactor" : "AdamW";
}

// Returns the names and values, without spaces. Trainer drops all spaces, too.
Pairs ReadPairs(const std::string& text) {
  std::string packed;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) packed += c;
  }
  Pairs pairs;
  if (packed.empty()) return pairs;
  std::set<std::string> seen;
  const std::vector<std::string> parts = absl::StrSplit(packed, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> sides = absl::StrSplit(part, '=');
    if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
      throw InvalidArgument("optim_args must be a list of NAME=VALUE but is \"" + text + "\"",
                            "write it as in momentum=0.9,nesterov=true");
    }
    if (!seen.insert(sides[0]).second) {
      throw InvalidArgument("optim_args has " + sides[0] + " twice", "leave one of them out");
    }
    pairs.emplace_back(sides[0], sides[1]);
  }
  return pairs;
}

double NumberOf(const std::string& name, const std::string& value) {
  double number = 0;
  if (!absl::SimpleAtod(value, &number) || !std::isfinite(number) || number < 0) {
    throw InvalidArgument("optim_args: " + name + " must be a number from 0 but is \"" + value +
                          "\"");
  }
  return number;
}

bool SwitchOf(const std::string& name, const std::string& value) {
  const std::string word = absl::AsciiStrToLower(value);
  for (const char* yes : {"true", "1", "yes"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "0", "no"}) {
    if (word == no) return false;
  }
  throw InvalidArgument("optim_args: " + name + " must be true or false but is \"" + value + "\"");
}

Error UnknownOption(const std::string& optim, const std::string& name) {
  if (name == "weight_decay" || name == "lr") {
    const std::string own = name == "lr" ? "learning_rate" : name;
    return InvalidArgument("optim_args: " + name + " has no effect, as with Trainer",
                           "set " + own + " instead");
  }
  const std::vector<std::string> names = OptionNames(optim);
  const auto nearest = NearestName(name, names);
  return InvalidArgument(
      "optim_args: " + optim + " has no option \"" + name + "\"",
      nearest ? "did you mean " + *nearest + "?" : "its options are " + absl::StrJoin(names, ", "));
}

// Returns the names and values of optim_args, all of which the optimizer has.
Pairs PairsFor(const TrainingArguments& arguments) {
  Pairs pairs = ReadPairs(arguments.optim_args);
  const std::vector<std::string> names = OptionNames(arguments.optim);
  for (const auto& [name, value] : pairs) {
    if (std::ranges::find(names, name) == names.end()) throw UnknownOption(arguments.optim, name);
  }
  return pairs;
}

// Throws unless the number is below 1, as the decay of a mean must be.
double FractionOf(const std::string& name, const std::string& value) {
  const double number = NumberOf(name, value);
  if (number >= 1) {
    throw InvalidArgument("optim_args: " + name + " must be below 1 but is \"" + value + "\"");
  }
  return number;
}

std::string NumberText(double value) { return DumpJson(nlohmann::json(value)); }
std::string SwitchText(bool value) { return value ? "true" : "false"; }

}  // namespace

std::vector<std::string> OptimizerNames() {
  return {"adamw_torch", "adamw_torch_fused", "adamw_hf", "sgd", "adafactor",
          "lion",        "rmsprop",           "adagrad"};
}

bool UsesAdamW(const TrainingArguments& arguments) { return Title(arguments.optim) == "AdamW"; }

bool ShardsOptimizer(const TrainingArguments& arguments) {
  return arguments.shard_optimizer && arguments.optim != "adafactor";
}

SGDOptions SGDOptionsOf(const TrainingArguments& arguments) {
  SGDOptions options{.lr = arguments.learning_rate, .weight_decay = arguments.weight_decay};
  for (const auto& [name, value] : PairsFor(arguments)) {
    if (name == "momentum") {
      options.momentum = NumberOf(name, value);
    } else if (name == "dampening") {
      options.dampening = NumberOf(name, value);
    } else {
      options.nesterov = SwitchOf(name, value);
    }
  }
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw InvalidArgument("optim_args: nesterov needs a momentum and no dampening",
                          "write it as in momentum=0.9,nesterov=true");
  }
  return options;
}

RMSpropOptions RMSpropOptionsOf(const TrainingArguments& arguments) {
  RMSpropOptions options{.lr = arguments.learning_rate, .weight_decay = arguments.weight_decay};
  for (const auto& [name, value] : PairsFor(arguments)) {
    if (name == "momentum") {
      options.momentum = NumberOf(name, value);
    } else if (name == "alpha") {
      options.alpha = FractionOf(name, value);
    } else if (name == "eps") {
      options.eps = NumberOf(name, value);
    } else {
      options.centered = SwitchOf(name, value);
    }
  }
  return options;
}

AdagradOptions AdagradOptionsOf(const TrainingArguments& arguments) {
  AdagradOptions options{.lr = arguments.learning_rate, .weight_decay = arguments.weight_decay};
  for (const auto& [name, value] : PairsFor(arguments)) {
    (name == "eps" ? options.eps : options.lr_decay) = NumberOf(name, value);
  }
  return options;
}

LionOptions LionOptionsOf(const TrainingArguments& arguments) {
  LionOptions options{.lr = arguments.learning_rate, .weight_decay = arguments.weight_decay};
  for (const auto& [name, value] : PairsFor(arguments)) {
    (name == "beta1" ? options.beta1 : options.beta2) = FractionOf(name, value);
  }
  return options;
}

std::unique_ptr<Optimizer> MakeOptimizer(const TrainingArguments& a,
                                         std::vector<ParameterGroup> groups) {
  if (a.optim == "sgd") return std::make_unique<SGD>(std::move(groups), SGDOptionsOf(a));
  if (a.optim == "rmsprop") {
    return std::make_unique<RMSprop>(std::move(groups), RMSpropOptionsOf(a));
  }
  if (a.optim == "adagrad") {
    return std::make_unique<Adagrad>(std::move(groups), AdagradOptionsOf(a));
  }
  if (a.optim == "lion") return std::make_unique<Lion>(std::move(groups), LionOptionsOf(a));
  if (a.optim == "adafactor") {
    return std::make_unique<Adafactor>(
        std::move(groups),
        AdafactorOptions{
            .lr = a.learning_rate, .weight_decay = a.weight_decay, .transformers = true});
  }
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions{.lr = a.learning_rate,
                                                                 .beta1 = a.adam_beta1,
                                                                 .beta2 = a.adam_beta2,
                                                                 .eps = a.adam_epsilon,
                                                                 .weight_decay = a.weight_decay});
}

NamedSettings OptimizerOptionsOf(const TrainingArguments& a) {
  if (a.optim == "sgd") {
    const SGDOptions o = SGDOptionsOf(a);
    return {{"momentum", NumberText(o.momentum)},
            {"dampening", NumberText(o.dampening)},
            {"nesterov", SwitchText(o.nesterov)}};
  }
  if (a.optim == "rmsprop") {
    const RMSpropOptions o = RMSpropOptionsOf(a);
    return {{"momentum", NumberText(o.momentum)},
            {"alpha", NumberText(o.alpha)},
            {"eps", NumberText(o.eps)},
            {"centered", SwitchText(o.centered)}};
  }
  if (a.optim == "adagrad") {
    const AdagradOptions o = AdagradOptionsOf(a);
    return {{"lr_decay", NumberText(o.lr_decay)}, {"eps", NumberText(o.eps)}};
  }
  if (a.optim == "lion") {
    const LionOptions o = LionOptionsOf(a);
    return {{"beta1", NumberText(o.beta1)}, {"beta2", NumberText(o.beta2)}};
  }
  return {};
}

void CheckOptimizer(const TrainingArguments& arguments) {
  const std::vector<std::string> names = OptimizerNames();
  if (std::ranges::find(names, arguments.optim) == names.end()) {
    throw InvalidArgument("optim must be one of " + absl::StrJoin(names, ", ") + " but is \"" +
                              arguments.optim + "\"",
                          "leave it out for AdamW");
  }
  if (!OptionNames(arguments.optim).empty()) {
    OptimizerOptionsOf(arguments);  // throws
  } else if (!ReadPairs(arguments.optim_args).empty()) {
    throw InvalidArgument(
        "optim_args is for optim sgd, rmsprop, adagrad and lion, and the optimizer is " +
            Title(arguments.optim),
        UsesAdamW(arguments) ? "set adam_beta1, adam_beta2 and adam_epsilon instead"
                             : "leave it out");
  }
}

std::string DescribeOptimizer(const TrainingArguments& a) {
  const std::string decay = "weight_decay=" + NumberText(a.weight_decay);
  if (UsesAdamW(a)) {
    return "AdamW with betas=(" + NumberText(a.adam_beta1) + "," + NumberText(a.adam_beta2) +
           "), epsilon=" + NumberText(a.adam_epsilon) + " and " + decay;
  }
  std::string options;
  for (const auto& [name, value] : OptimizerOptionsOf(a)) {
    options += (options.empty() ? "" : ", ") + name + "=" + value;
  }
  return Title(a.optim) + " with " + options + (options.empty() ? "" : " and ") + decay;
}

}  // namespace lathe
