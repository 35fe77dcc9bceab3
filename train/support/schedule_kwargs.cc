#include "lathe/train/support/schedule_kwargs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/core/base/nearest_name.h"
#include "lathe/core/json/json_nesting.h"
#include "lathe/core/json/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

// The keyword arguments of Transformers' get_*_schedule* functions, without those that are options
// of finetune.
const Names& NamesOf(const std::string& schedule) {
  static const std::map<std::string, Names> names = {
      {"cosine", {"num_cycles"}},
      {"cosine_with_restarts", {"num_cycles"}},
      {"polynomial", {"lr_end", "power"}},
      {"inverse_sqrt", {"timescale"}},
      {"reduce_lr_on_plateau", {"mode", "factor", "patience", "threshold", "cooldown", "min_lr"}},
      {"cosine_with_min_lr", {"num_cycles", "min_lr", "min_lr_rate"}},
      {"warmup_stable_decay",
       {"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio",
        "num_cycles"}}};
  static const Names none;
  const auto found = names.find(schedule);
  return found == names.end() ? none : found->second;
}

template <typename T>
bool Set(const Json& value, T& field) {
  const bool fits = std::is_same_v<T, std::string> ? value.is_string()
                    : std::is_integral_v<T>        ? value.is_number_integer()
                                                   : value.is_number();
  if (fits) field = value.get<T>();
  return fits;
}

template <typename T>
bool Set(const Json& value, std::optional<T>& field) {
  return Set(value, field.emplace());
}

// Returns a function that sets `field` if a value has its type, and tells whether it has.
template <typename T>
auto Into(T& field) {
  return [&field](const Json& value) { return Set(value, field); };
}

void CheckName(const std::string& schedule, const std::string& name) {
  const Names& names = NamesOf(schedule);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  const auto nearest = NearestName(name, names);
  throw InvalidArgument("lr_scheduler_kwargs: " + schedule + " has no option \"" + name + "\"",
                        nearest ? "did you mean " + *nearest + "?"
                        : names.empty()
                            ? "leave lr_scheduler_kwargs out; " + schedule + " has no options"
                            : "its options are " + known);
}

}  // namespace

ScheduleOptions ParseScheduleKwargs(const std::string& schedule, const std::string& text) {
  ScheduleOptions options;
  if (text.empty()) return options;
  const std::map<std::string, std::function<bool(const Json&)>> setters = {
      {"num_cycles", Into(options.num_cycles)},
      {"power", Into(options.power)},
      {"lr_end", Into(options.lr_end)},
      {"min_lr", Into(options.min_lr)},
      {"min_lr_rate", Into(options.min_lr_rate)},
      {"timescale", Into(options.timescale)},
      {"num_decay_steps", Into(options.num_decay_steps)},
      {"num_stable_steps", Into(options.num_stable_steps)},
      {"warmup_type", Into(options.warmup_type)},
      {"decay_type", Into(options.decay_type)},
      {"min_lr_ratio", Into(options.min_lr_ratio)},
      {"mode", Into(options.mode)},
      {"factor", Into(options.factor)},
      {"patience", Into(options.patience)},
      {"threshold", Into(options.threshold)},
      {"cooldown", Into(options.cooldown)}};

  CheckJsonNesting(text, "lr_scheduler_kwargs");
  Json json;
  std::string problem;  // why parsing failed, e.g. a number that doesn't fit
  try {
    json = ParseJson(text);
  } catch (const Json::exception& e) {
    problem = ": " + WithoutTag(e.what());
  }
  if (!json.is_object()) {
    throw InvalidArgument("lr_scheduler_kwargs must be a JSON object but is \"" + text + "\"" +
                          problem);
  }
  for (const auto& [name, value] : json.items()) {
    CheckName(schedule, name);
    if (!setters.at(name)(value)) {
      throw InvalidArgument("lr_scheduler_kwargs: \"" + name +
                            "\" has the wrong type: " + DumpJson(value));
    }
  }
  return options;
}

bool HasWarmup(const std::string& schedule) {
  return schedule != "constant" && schedule != "reduce_lr_on_plateau";
}

int64_t NumWarmupSteps(const TrainingArguments& arguments, int64_t max_steps) {
  if (!HasWarmup(arguments.lr_scheduler_type)) return 0;
  if (arguments.warmup_steps > 0) return arguments.warmup_steps;
  return static_cast<int64_t>(std::ceil(static_cast<double>(max_steps) * arguments.warmup_ratio));
}

int64_t StepsOf(double value, int64_t max_steps) {
  const double steps = value < 1 ? std::ceil(value * static_cast<double>(max_steps)) : value;
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

}  // namespace lathe
