#include "lathe/apps/schedule_kwargs.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "lathe/apps/flags.h"
#include "lathe/core/error.h"

namespace lathe {

ScheduleOptions ParseScheduleKwargs(const std::string& text) {
  ScheduleOptions options;
  if (text.empty()) return options;
  using Json = nlohmann::json;
  const auto into = [](auto& field) {
    return [&field](const Json& value) { value.get_to(field); };
  };
  const auto into_double = [](std::optional<double>& field) {
    return [&field](const Json& value) { field = value.get<double>(); };
  };
  const auto into_int = [](std::optional<int64_t>& field) {
    return [&field](const Json& value) { field = value.get<int64_t>(); };
  };
  const std::map<std::string, std::function<void(const Json&)>> setters = {
      {"num_cycles", into_double(options.num_cycles)},
      {"power", into(options.power)},
      {"lr_end", into(options.lr_end)},
      {"min_lr", into_double(options.min_lr)},
      {"min_lr_rate", into_double(options.min_lr_rate)},
      {"timescale", into_int(options.timescale)},
      {"num_decay_steps", into_int(options.num_decay_steps)},
      {"num_stable_steps", into_int(options.num_stable_steps)},
      {"warmup_type", into(options.warmup_type)},
      {"decay_type", into(options.decay_type)},
      {"min_lr_ratio", into(options.min_lr_ratio)},
      {"mode", into(options.mode)},
      {"factor", into(options.factor)},
      {"patience", into(options.patience)},
      {"threshold", into(options.threshold)},
      {"cooldown", into(options.cooldown)}};

  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw InvalidArgument("--lr_scheduler_kwargs must be a JSON object but is \"" + text + "\"");
  }
  for (const auto& [name, value] : json.items()) {
    const auto setter = setters.find(name);
    if (setter == setters.end()) {
      std::vector<std::string> names;
      for (const auto& known : setters) names.push_back(known.first);
      const auto nearest = NearestName(name, names);
      throw InvalidArgument("--lr_scheduler_kwargs has no option \"" + name + "\"",
                            nearest ? "did you mean " + *nearest + "?" : "");
    }
    try {
      setter->second(value);
    } catch (const Json::exception&) {
      throw InvalidArgument("--lr_scheduler_kwargs: \"" + name +
                            "\" has the wrong type: " + value.dump());
    }
  }
  return options;
}

}  // namespace lathe
