// ConfigReader: reads the keys that a family declares from a config.json, with the family's
// defaults.
//
//   const nlohmann::json defaults = {{"hidden_size", 768}, {"hidden_dropout_prob", 0.1}};
//   const ConfigReader reader(config, defaults);
//   const int64_t hidden_size = reader.Int("hidden_size", 1, 32768);
//   const double p = reader.Probability("hidden_dropout_prob");
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lathe/core/ops/activation.h"
#include "lathe/models/config/config.h"
#include "lathe/nn/module.h"

namespace lathe {

class ConfigReader {
 public:
  // `defaults` is a JSON object from each key to its default. Both arguments must outlive the
  // reader.
  ConfigReader(const PretrainedConfig& config, const nlohmann::json& defaults)
      : config_(config), defaults_(defaults) {}

  // Returns true if the family declares the key.
  bool Declares(const std::string& key) const;
  // Returns true if neither the configuration nor the family's default has a value.
  bool IsNull(const std::string& key) const;
  // Returns the configuration's path, for messages.
  const std::string& path() const { return config_.path(); }

  // Return the value of a key, or the family's default if it is absent or null. Throw `path: "key"
  // must be ...` for a wrong type, or a value outside [low, high], below 0, not above 0 or outside
  // [0, 1). Throw for a key that the family doesn't declare.
  int64_t Int(const std::string& key, int64_t low = INT64_MIN, int64_t high = INT64_MAX) const;
  double NotNegative(const std::string& key) const;
  double Positive(const std::string& key) const;
  double Probability(const std::string& key) const;
  bool Bool(const std::string& key) const;
  std::string String(const std::string& key) const;
  ActivationKind Activation(const std::string& key) const;

  // Returns the declared keys that the config has, as "config KEY", with their values as they are
  // there. Module::OwnSettings wants them in this form.
  NamedSettings Settings() const;

 private:
  const nlohmann::json& Default(const std::string& key) const;
  double Double(const std::string& key) const;

  const PretrainedConfig& config_;
  const nlohmann::json& defaults_;
};

}  // namespace lathe
