#include "lathe/models/config/rope_parameters.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lathe/core/json/json_text.h"
#include "lathe/core/ops/rotary/rotary_embedding.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

// Returns the value of a key, or null if the object lacks it.
const Json& At(const Json& object, const std::string& key) {
  static const auto* const null = new Json();
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}

Error Wrong(const PretrainedConfig& config, const std::string& key, const std::string& what,
            const std::string& hint = "correct the value") {
  return WrongConfig(config.path(), {key}, absl::StrCat("\"", key, "\"", what), hint);
}

// Begins what is wrong with the entry `name` of the object `key`, or with `key` itself if the name
// is "".
std::string Entry(const std::string& name) { return name.empty() ? "" : ": \"" + name + "\""; }

// Returns the positive number `value` of an entry.
double Positive(const PretrainedConfig& config, const std::string& key, const Json& value,
                const std::string& name) {
  if (value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>())) {
    return value.get<double>();
  }
  throw Wrong(config, key, Entry(name) + " must be a positive number but is " + DumpJson(value));
}

// Returns the factor by which the positions of a "linear" rope_type are closer together.
double ReadFactor(const PretrainedConfig& config, const std::string& key, const Json& value) {
  constexpr double kMost = 1e6;  // so that no frequency becomes 0
  if (value.is_number() && value.get<double>() >= 1 && value.get<double>() <= kMost) {
    return value.get<double>();
  }
  throw Wrong(config, key,
              Entry("factor") + " must be a number from 1 to 1e+06 but is " + DumpJson(value));
}

// Throws unless all columns of a head turn. Transformers reads partial_rotary_factor for "linear"
// alone, and then the other columns have no place in a head of these families.
void CheckAllColumnsTurn(const PretrainedConfig& config, const std::string& key, const Json& value,
                         const std::string& name) {
  if (value.is_null() || (value.is_number() && value.get<double>() == 1)) return;
  throw Wrong(config, key, Entry(name) + " must be 1 but is " + DumpJson(value),
              "use a model that turns all columns of its heads");
}

// Returns the object of a key, or an empty one if the configuration lacks it.
Json ObjectOf(const PretrainedConfig& config, const std::string& key) {
  const Json& value = At(config.json(), key);
  if (value.is_null()) return Json::object();
  if (!value.is_object()) {
    throw Wrong(config, key, " must be an object but is " + DumpJson(value));
  }
  return value;
}

constexpr char kScaling[] = "rope_scaling";

// The parameters of one kind of layers, and the key from which they come.
struct Parameters {
  std::string key = "rope_parameters";
  Json values = Json::object();
};

Parameters ParametersOf(const PretrainedConfig& config, const std::string& layer_type) {
  Parameters found;
  found.values = ObjectOf(config, found.key);
  if (!layer_type.empty() && found.values.contains(layer_type)) {
    Json of_type = found.values[layer_type];
    if (!of_type.is_object() && !of_type.is_null()) {
      throw Wrong(config, found.key,
                  Entry(layer_type) + " must be an object but is " + DumpJson(of_type));
    }
    found.values = of_type.is_null() ? Json::object() : of_type;
  }
  for (const auto& [name, value] : found.values.items()) {
    if (!layer_type.empty() || !value.is_object()) continue;
    throw Wrong(config, found.key,
                Entry(name) + " is for one kind of layers, and this family has no kinds",
                "give one \"rope_theta\" for all layers");
  }
  const Json scaling = ObjectOf(config, kScaling);
  if (scaling.empty()) return found;
  found.key = kScaling;
  if (layer_type.empty()) {
    found.values = scaling;
    return found;
  }
  // Transformers 5 gives kinds of layers the rope_type "default" before it reads these, so that it
  // never looks at the older name. What the file means can't be known then.
  const Json& type = At(scaling, "type");
  if (At(scaling, "rope_type").is_null() && !type.is_null() && type != "default") {
    throw Wrong(
        config, kScaling, absl::StrCat(" has the type ", DumpJson(type), " but no \"rope_type\""),
        absl::StrCat(
            "write \"rope_type\": ", DumpJson(type),
            " if it is meant; Transformers 5 ignores \"type\" here, so remove it otherwise"));
  }
  found.values.update(scaling);
  return found;
}

}  // namespace

std::vector<float> ReadRotaryFrequencies(const PretrainedConfig& config, int64_t head_dim,
                                         const RopeKeys& keys) {
  const Parameters parameters = ParametersOf(config, keys.layer_type);
  const Json& own_theta = At(parameters.values, "rope_theta");
  const Json& older_theta = At(config.json(), keys.theta);
  double theta = keys.default_theta;
  if (!own_theta.is_null()) {
    theta = Positive(config, parameters.key, own_theta, "rope_theta");
  } else if (!older_theta.is_null()) {
    theta = Positive(config, keys.theta, older_theta, "");
  }
  constexpr const char* kPartial = "partial_rotary_factor";
  CheckAllColumnsTurn(config, parameters.key, At(parameters.values, kPartial), kPartial);
  CheckAllColumnsTurn(config, kPartial, At(config.json(), kPartial), "");
  std::vector<float> frequencies = RotaryFrequencies(head_dim, theta);
  const Json& given = At(parameters.values, "rope_type");
  const Json& type = given.is_null() ? At(parameters.values, "type") : given;  // its older name
  if (type.is_null() || type == "default") return frequencies;
  if (type != "linear") {
    throw Wrong(config, parameters.key,
                absl::StrCat(": rope_type ", DumpJson(type),
                             " is not supported; supported: default, linear"),
                "use a model with one of these");
  }
  const double factor = ReadFactor(config, parameters.key, At(parameters.values, "factor"));
  for (float& frequency : frequencies) frequency /= static_cast<float>(factor);
  return frequencies;
}

}  // namespace lathe
