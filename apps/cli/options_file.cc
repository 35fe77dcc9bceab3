#include "lathe/apps/cli/options_file.h"

#include <set>

#include "lathe/apps/cli/yaml_file.h"
#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/core/text/written_json.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

bool IsYaml(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

Error Twice(const std::string& where, const std::string& name) {
  return InvalidArgument(where + "\"" + name + "\" appears twice", "leave one of them out");
}

std::vector<OptionInFile> ReadJson(const std::string& path, const std::string& hint) {
  const Json json = ParseWrittenJson(ReadFile(path), path, hint);
  if (!json.is_object()) throw InvalidArgument(path + ": must be a JSON object of options", hint);
  std::vector<OptionInFile> options;
  for (const auto& [name, value] : json.items()) options.push_back({name, path + ": ", value});
  return options;
}

// Turns values of YAML into those of JSON. Aliases make billions of values of a few lines, or a
// value that contains itself. So there is a limit to their number.
class YamlConverter {
 public:
  explicit YamlConverter(const std::string& where) : where_(where) {}

  Json Convert(const YAML::Node& node) {
    constexpr int kMostParts = 1000;  // each a call
    if (++parts_ > kMostParts) {
      throw InvalidArgument(where_ + "the value has more than " + std::to_string(kMostParts) +
                                " parts, or contains itself by an alias",
                            "write it without aliases");
    }
    if (node.IsScalar()) return ConvertScalar(node);
    if (node.IsSequence()) {
      Json list = Json::array();
      for (const YAML::Node& item : node) list.push_back(Convert(item));
      return list;
    }
    if (!node.IsMap()) return nullptr;
    Json object = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) throw InvalidArgument(where_ + "a key must be text");
      const std::string& name = entry.first.Scalar();
      if (object.contains(name)) throw Twice(where_, name);
      object[name] = Convert(entry.second);
    }
    return object;
  }

 private:
  // A word without quotes is a number, true, false or null if JSON takes it for one.
  static Json ConvertScalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    if (node.Tag() == "!") return text;  // in quotes
    double number = 0;
    bool truth = false;
    const Json value = ParseJsonOrDiscard(text);
    if (value.is_number() || value.is_boolean() || value.is_null()) return value;
    if (YAML::convert<bool>::decode(node, truth)) return truth;
    if (YAML::convert<double>::decode(node, number)) return number;
    return text;
  }

  std::string where_;
  int parts_ = 0;
};

std::vector<OptionInFile> ReadYaml(const std::string& path, const std::string& hint) {
  const YAML::Node root = ReadYamlFile(path, hint);
  if (!root.IsMap()) {
    throw InvalidArgument(path + ": must be a YAML map of options, such as `learning_rate: 3e-5`",
                          hint);
  }
  std::vector<OptionInFile> options;
  std::set<std::string> names;
  for (const auto& entry : root) {
    const std::string where = path + ":" + std::to_string(entry.first.Mark().line + 1) + ": ";
    if (!entry.first.IsScalar()) throw InvalidArgument(where + "a key must be text", hint);
    const std::string& name = entry.first.Scalar();
    if (!names.insert(name).second) throw Twice(where, name);
    const YAML::Node& value = entry.second;
    const bool is_plain = value.IsScalar() && value.Tag() != "!";
    options.push_back({name, where,
                       is_plain ? Json(value.Scalar()) : YamlConverter(where).Convert(value),
                       is_plain});
  }
  return options;
}

}  // namespace

bool IsOptionsFile(const std::string& argument) {
  return !argument.starts_with('-') && (argument.ends_with(".json") || IsYaml(argument));
}

std::vector<OptionInFile> ReadOptionsFile(const std::string& path, const std::string& hint) {
  try {
    return IsYaml(path) ? ReadYaml(path, hint) : ReadJson(path, hint);
  } catch (const Error& e) {
    throw e.hint().empty() ? e.WithHint(hint) : e;
  }
}

}  // namespace lathe
