// config.json: the keys that a model reads, and all others kept as they are.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lathe {

// The file as JSON, with typed access and defaults that belong to the model's class. Unknown keys
// survive a round trip.
class PretrainedConfig {
 public:
  PretrainedConfig() : json_(nlohmann::json::object()) {}
  // Throws for a file that is missing, not JSON, or not an object: `dir/config.json:line: what`.
  static PretrainedConfig FromPretrained(const std::string& dir);
  // Of the file's text; `path` serves for messages.
  static PretrainedConfig FromText(const std::string& text, const std::string& path);
  static PretrainedConfig FromJson(nlohmann::json json, std::string path = "config");

  std::string model_type() const;  // throws if absent
  // Value of a key, or the default where it is absent or null. Throws `path: "key" must be ...` for
  // a wrong type or a value outside [low, high].
  int64_t GetInt(const std::string& key, int64_t default_value, int64_t low = INT64_MIN,
                 int64_t high = INT64_MAX) const;
  double GetDouble(const std::string& key, double default_value) const;
  std::optional<double> GetOptionalDouble(const std::string& key) const;
  std::string GetString(const std::string& key, const std::string& default_value) const;
  bool GetBool(const std::string& key, bool default_value) const;
  bool has(const std::string& key) const;

  // Number of labels: size of id2label, else num_labels, else 2.
  int64_t num_labels() const;
  // id2label in order of id; LABEL_i where absent.
  std::vector<std::string> label_names() const;
  void SetLabels(const std::vector<std::string>& names);  // id2label, label2id
  void SetNumLabels(int64_t n);  // LABEL_0 ...; keeps names if the number is right
  // "single_label_classification", "multi_label_classification", "regression" or "" (not decided
  // yet).
  std::string problem_type() const { return GetString("problem_type", ""); }

  // "a=b,c=d", as run_glue's --config_overrides: the key must exist in the config or be known to
  // the model; the value takes the type of what is there. Throws with the nearest known key.
  void Override(const std::string& overrides, const std::vector<std::string>& known_keys = {});

  nlohmann::json& json() { return json_; }
  const nlohmann::json& json() const { return json_; }
  const std::string& path() const { return path_; }
  // As Transformers writes it: sorted keys, 2-space indent, final newline.
  std::string ToString() const;
  void SavePretrained(const std::string& dir) const;

 private:
  nlohmann::json json_;
  std::string path_ = "config";
};

}  // namespace lathe
