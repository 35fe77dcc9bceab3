#include "lathe/models/architecture.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <map>
#include <string_view>
#include <utility>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

// The map is a function's static, because families register themselves before main(), in no fixed
// order.
std::map<std::string, Architecture>& Registry() {
  static auto* registry = new std::map<std::string, Architecture>;
  return *registry;
}

}  // namespace

void RegisterArchitecture(Architecture architecture) {
  const std::string model_type = architecture.model_type;
  const auto check = [&](bool ok, const auto&... what) {
    Check(ok, "architecture", "model_type \"", model_type, "\" ", what...);
  };
  check(!model_type.empty(), "is empty");
  check(!architecture.class_name.empty(), "has no class_name");
  check(architecture.make != nullptr, "has no make");
  check(architecture.config_defaults.is_object(), "has config_defaults that are no JSON object");
  for (const std::string& key : architecture.dropout_keys) {
    check(architecture.config_defaults.contains(key), "has the dropout key \"", key,
          "\" but no default for it");
  }
  check(!architecture.tokenizer.has_value() || architecture.tokenizer_model_type.empty(),
        "has a tokenizer of its own and that of another model_type");
  check(!Registry().contains(model_type), "is registered twice");
  if (architecture.tokenizer.has_value()) {
    architecture.tokenizer->model_type = model_type;
    RegisterTokenizerFamily(*architecture.tokenizer);
  }
  Registry().emplace(model_type, std::move(architecture));
}

const Architecture* FindArchitecture(const std::string& model_type) {
  const auto found = Registry().find(model_type);
  return found == Registry().end() ? nullptr : &found->second;
}

std::string ModelTypeOf(const PretrainedConfig& config) {
  const std::string model_type = config.GetString("model_type", "");
  const auto classes = config.json().find("architectures");
  if (!model_type.empty() || classes == config.json().end() || !classes->is_array() ||
      classes->empty() || !classes->front().is_string()) {
    return model_type;
  }
  std::string_view model_class = classes->front().get_ref<const std::string&>();
  for (const std::string_view library : {"TF", "Flax"}) {  // TensorFlow's and Flax' classes
    if (!model_class.starts_with(library)) continue;
    model_class.remove_prefix(library.size());
    break;
  }
  constexpr std::string_view kTask = "ForSequenceClassification";
  for (const auto& [type, architecture] : Registry()) {
    std::string_view family = architecture.class_name;
    if (!family.ends_with(kTask)) continue;
    family.remove_suffix(kTask.size());
    if (!model_class.starts_with(family)) continue;
    const std::string_view task = model_class.substr(family.size());
    if (task == "Model" || task == "LMHeadModel" || task.starts_with("For")) return type;
  }
  return "";
}

const Architecture& ArchitectureOf(const PretrainedConfig& config) {
  std::string model_type = ModelTypeOf(config);
  if (model_type.empty()) model_type = config.model_type();  // throws
  const Architecture* const found = FindArchitecture(model_type);
  if (found == nullptr) {
    throw WrongConfig(
        config.path(), {"model_type"},
        absl::StrCat("model_type \"", model_type, "\" is not one that Lathe has"),
        absl::StrCat("known model types: ", absl::StrJoin(SupportedModelTypes(), ", ")));
  }
  return *found;
}

std::vector<std::string> SupportedModelTypes() {
  std::vector<std::string> model_types;
  for (const auto& [model_type, architecture] : Registry()) model_types.push_back(model_type);
  return model_types;
}

}  // namespace lathe
