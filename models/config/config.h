// A model's config.json: the keys that the model reads, and all others kept as they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "lathe/core/base/error.h"

namespace lathe {

// The detail (Error::detail) of an error in the values of a configuration.
struct WrongConfigValues {
  std::vector<std::string> keys;  // whose values are to blame
  std::string what;               // the message without the configuration's path
};
// Returns the error `path: what`, with that detail.
Error WrongConfig(const std::string& path, std::vector<std::string> keys, const std::string& what,
                  std::string hint,
                  std::source_location location = std::source_location::current());

// The file as JSON, with typed access. The defaults belong to the model's class. Unknown keys
// survive a round trip.
class PretrainedConfig {
 public:
  PretrainedConfig();
  PretrainedConfig(const PretrainedConfig& other);
  PretrainedConfig& operator=(const PretrainedConfig& other);
  ~PretrainedConfig();
  // Throws if the file is missing, not JSON, or not an object. For text that is not JSON the
  // message is `dir/config.json:line: what`.
  static PretrainedConfig FromPretrained(const std::string& dir);
  // Parses the text of a file; messages name `path`.
  static PretrainedConfig FromText(const std::string& text, const std::string& path);
  static PretrainedConfig FromJson(nlohmann::json json, std::string path = "config");

  std::string model_type() const;  // throws if absent
  // Return the value of a key, or the default if it is absent or null. Throw `path: "key" must be
  // ...` for a wrong type or a value outside [low, high].
  int64_t GetInt(const std::string& key, int64_t default_value, int64_t low = INT64_MIN,
                 int64_t high = INT64_MAX) const;
  double GetDouble(const std::string& key, double default_value) const;
  std::optional<double> GetOptionalDouble(const std::string& key) const;
  std::string GetString(const std::string& key, const std::string& default_value) const;
  bool GetBool(const std::string& key, bool default_value) const;
  bool has(const std::string& key) const;

  // Returns the number of labels: the size of id2label, else num_labels, else 2.
  int64_t num_labels() const;
  // Returns the name that Transformers gives to label `id` if it has no other: LABEL_0, LABEL_1,
  // ...
  static std::string DefaultLabelName(int64_t id) { return "LABEL_" + std::to_string(id); }
  // Returns the names of id2label in the order of their ids; DefaultLabelName for an absent one.
  std::vector<std::string> label_names() const;
  void SetLabels(const std::vector<std::string>& names);  // sets id2label and label2id
  void SetNumLabels(int64_t n);  // default names; keeps the old ones if there are n
  // Returns "single_label_classification", "multi_label_classification", "regression", or "" if it
  // is not decided yet.
  std::string problem_type() const { return GetString("problem_type", ""); }

  // Applies "a=b,c=d", in the form of run_glue's --config_overrides. Each key must exist in the
  // config or be known to the model. The value takes the type of the old one. If a key is unknown,
  // the error names the nearest known key.
  void Override(const std::string& overrides, const std::vector<std::string>& known_keys = {});

  nlohmann::json& json() { return *json_; }
  const nlohmann::json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  // The text that Transformers would write: sorted keys, 2-space indent, final newline.
  std::string ToString() const;
  void SavePretrained(const std::string& dir) const;

 private:
  std::unique_ptr<nlohmann::json> json_;  // never null
  std::string path_ = "config";
};

}  // namespace lathe
