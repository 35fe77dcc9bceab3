#include "lathe/models/config/config_reader.h"

#include <absl/strings/str_cat.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "lathe/core/base/error.h"
#include "lathe/core/json/json_text.h"

namespace lathe {

const nlohmann::json& ConfigReader::Default(const std::string& key) const {
  const auto found = defaults_.find(key);
  Check(found != defaults_.end(), "config", "the family doesn't declare the key \"", key, "\"");
  return *found;
}

bool ConfigReader::Declares(const std::string& key) const { return defaults_.contains(key); }

bool ConfigReader::IsNull(const std::string& key) const {
  return Default(key).is_null() && !config_.has(key);
}

int64_t ConfigReader::Int(const std::string& key, int64_t low, int64_t high) const {
  Check(!IsNull(key), "config", "there is no value for the key \"", key, "\"");
  const nlohmann::json& default_value = Default(key);
  return config_.GetInt(key, default_value.is_null() ? 0 : default_value.get<int64_t>(), low, high);
}

double ConfigReader::Double(const std::string& key) const {
  const nlohmann::json& default_value = Default(key);
  const std::optional<double> value = config_.GetOptionalDouble(key);
  return value.has_value() ? *value : default_value.get<double>();
}

double ConfigReader::NotNegative(const std::string& key) const {
  const double value = Double(key);
  if (!(value >= 0)) {
    throw WrongConfig(path(), {key},
                      absl::StrCat("\"", key, "\" must not be negative but is ", value),
                      "correct the value");
  }
  return value;
}

double ConfigReader::Positive(const std::string& key) const {
  const double value = Double(key);
  if (!(value > 0)) {
    throw WrongConfig(path(), {key}, absl::StrCat("\"", key, "\" must be positive but is ", value),
                      "correct the value");
  }
  return value;
}

double ConfigReader::Probability(const std::string& key) const {
  const double p = Double(key);
  if (!(p >= 0 && p < 1)) {
    throw WrongConfig(path(), {key},
                      absl::StrCat("\"", key, "\" must be at least 0 and less than 1 but is ", p),
                      "correct the value");
  }
  return p;
}

bool ConfigReader::Bool(const std::string& key) const {
  return config_.GetBool(key, Default(key).get<bool>());
}

std::string ConfigReader::String(const std::string& key) const {
  return config_.GetString(key, Default(key).get<std::string>());
}

ActivationKind ConfigReader::Activation(const std::string& key) const {
  const std::string name = String(key);
  try {
    return ParseActivation(name);
  } catch (const Error& error) {
    throw WrongConfig(path(), {key}, absl::StrCat("\"", key, "\": ", error.message()),
                      error.hint());
  }
}

NamedSettings ConfigReader::Settings() const {
  NamedSettings settings;
  for (const auto& [key, unused] : defaults_.items()) {
    if (config_.has(key)) settings.emplace_back("config " + key, DumpJson(config_.json()[key]));
  }
  return settings;
}

}  // namespace lathe
