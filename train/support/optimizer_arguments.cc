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

namespace lathe {
namespace {

const std::vector<std::string>& SGDNames() {
  static const std::vector<std::string> names = {"momentum", "dampening", "nesterov"};
  return names;
}

// Returns the names and values, without spaces. Trainer drops all spaces, too.
std::vector<std::pair<std::string, std::string>> ReadPairs(const std::string& text) {
  std::string packed;
  for (const char c : text) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) packed += c;
  }
  std::vector<std::pair<std::string, std::string>> pairs;
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

Error UnknownOption(const std::string& name) {
  if (name == "weight_decay" || name == "lr") {
    const std::string own = name == "lr" ? "learning_rate" : name;
    return InvalidArgument("optim_args: " + name + " has no effect, as with Trainer",
                           "set " + own + " instead");
  }
  const auto nearest = NearestName(name, SGDNames());
  return InvalidArgument("optim_args: sgd has no option \"" + name + "\"",
                         nearest ? "did you mean " + *nearest + "?"
                                 : "its options are " + absl::StrJoin(SGDNames(), ", "));
}

}  // namespace

std::vector<std::string> OptimizerNames() {
  return {"adamw_torch", "adamw_torch_fused", "adamw_hf", "sgd"};
}

bool UsesSGD(const TrainingArguments& arguments) { return arguments.optim == "sgd"; }

SGDOptions SGDOptionsOf(const TrainingArguments& arguments) {
  SGDOptions options{.lr = arguments.learning_rate, .weight_decay = arguments.weight_decay};
  for (const auto& [name, value] : ReadPairs(arguments.optim_args)) {
    if (name == "momentum") {
      options.momentum = NumberOf(name, value);
    } else if (name == "dampening") {
      options.dampening = NumberOf(name, value);
    } else if (name == "nesterov") {
      options.nesterov = SwitchOf(name, value);
    } else {
      throw UnknownOption(name);
    }
  }
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw InvalidArgument("optim_args: nesterov needs a momentum and no dampening",
                          "write it as in momentum=0.9,nesterov=true");
  }
  return options;
}

void CheckOptimizer(const TrainingArguments& arguments) {
  const std::vector<std::string> names = OptimizerNames();
  if (std::ranges::find(names, arguments.optim) == names.end()) {
    throw InvalidArgument("optim must be one of " + absl::StrJoin(names, ", ") + " but is \"" +
                              arguments.optim + "\"",
                          "leave it out for AdamW");
  }
  if (UsesSGD(arguments)) {
    SGDOptionsOf(arguments);  // throws
  } else if (!ReadPairs(arguments.optim_args).empty()) {
    throw InvalidArgument("optim_args is for optim sgd, and the optimizer is AdamW",
                          "set adam_beta1, adam_beta2 and adam_epsilon instead");
  }
}

std::string DescribeOptimizer(const TrainingArguments& a) {
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  const std::string decay = " and weight_decay=" + number(a.weight_decay);
  if (!UsesSGD(a)) {
    return "AdamW with betas=(" + number(a.adam_beta1) + "," + number(a.adam_beta2) +
           "), epsilon=" + number(a.adam_epsilon) + decay;
  }
  const SGDOptions options = SGDOptionsOf(a);
  return "SGD with momentum=" + number(options.momentum) +
         ", dampening=" + number(options.dampening) +
         ", nesterov=" + (options.nesterov ? "true" : "false") + decay;
}

}  // namespace lathe
