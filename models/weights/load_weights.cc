#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lathe/core/file.h"
#include "lathe/models/pretrained.h"
#include "lathe/models/weights/safetensors.h"
#include "lathe/nn/arena.h"

namespace lathe {
namespace {

// Replaces TensorFlow's names of a norm's parameters, which old checkpoints still have.
std::string Renamed(std::string name) {
  const auto replace_suffix = [&](std::string_view suffix, std::string_view by) {
    if (name.ends_with(suffix)) {
      name.replace(name.size() - suffix.size(), suffix.size(), by);
    }
  };
  replace_suffix("LayerNorm.gamma", "LayerNorm.weight");
  replace_suffix("LayerNorm.beta", "LayerNorm.bias");
  return name;
}

// True for tensors that the user needn't hear about: those of pre-training heads, and buffers that
// can be computed.
bool IsExpectedExtra(const std::string& name, const std::string& base_prefix) {
  static constexpr std::string_view kHeads[] = {
      "cls.predictions.",
      "cls.seq_relationship.",
      "lm_head.",
      "vocab_transform.",
      "vocab_layer_norm.",
      "vocab_projector.",
      "mask_predictions.",
      "discriminator_predictions.",
      "generator_predictions.",
      "generator_lm_head.",
      "predictions.",
      "sop_classifier.",
      "lm_predictions.",
      "decoder.",
  };
  static constexpr std::string_view kBuffers[] = {"position_ids", "token_type_ids",
                                                  "rotary_emb.inv_freq"};
  std::string_view rest = name;
  if (std::any_of(std::begin(kHeads), std::end(kHeads),
                  [&](std::string_view head) { return rest.starts_with(head); }) ||
      std::any_of(std::begin(kBuffers), std::end(kBuffers), [&](std::string_view buffer) {
        return rest == buffer || rest.ends_with("." + std::string(buffer));
      })) {
    return true;
  }
  // The file may have a pooler that the model doesn't use.
  return rest.starts_with(base_prefix) && rest.substr(base_prefix.size()).starts_with("pooler.");
}

bool StartsWithAny(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

// Maps each tensor's name in the model, a parameter's path, to its name in the file.
std::map<std::string, std::string> ModelNames(const SafetensorsReader& reader,
                                              const std::string& base_prefix,
                                              const std::set<std::string>& parameters) {
  const bool bare =
      std::none_of(reader.entries().begin(), reader.entries().end(),
                   [&](const auto& entry) { return entry.first.starts_with(base_prefix); });
  std::map<std::string, std::string> names;
  for (const auto& [file_name, entry] : reader.entries()) {
    std::string name = Renamed(file_name);
    // A head's tensor keeps its name even if the encoder's names get the prefix.
    if (bare && parameters.count(name) == 0 && !IsExpectedExtra(name, base_prefix)) {
      name = base_prefix + name;
    }
    const auto [at, is_new] = names.emplace(name, file_name);
    if (!is_new) {
      throw DataLoss(entry.file + ": \"" + at->second + "\" and \"" + file_name +
                     "\" are both the parameter \"" + name + "\"");
    }
  }
  return names;
}

void AppendList(std::string& out, const std::string& what, const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  if (names.empty()) {
    return;
  }
  out += what + " (" + std::to_string(names.size()) + "): ";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    out += (i > 0 ? ", " : "") + names[i];
  }
  out += names.size() > kShown ? ", ...\n" : "\n";
}

}  // namespace

std::string LoadReport::Summary() const {
  std::string out;
  AppendList(out, "new head, fresh values", fresh_head);
  AppendList(out, "not in the checkpoint, fresh values", missing);
  AppendList(out, "other shape in the checkpoint, fresh values", mismatched);
  AppendList(out, "in the checkpoint but not in the model", unexpected);
  return out;
}

LoadReport LoadWeights(Module& module, const std::string& dir, const std::string& base_prefix,
                       const LoadOptions& options) {
  const SafetensorsReader reader = SafetensorsReader::FromDirectory(dir);
  const std::vector<Parameter> parameters = module.Parameters();
  std::set<std::string> paths;
  for (const Parameter& parameter : parameters) {
    paths.insert(parameter.name);
  }
  std::map<std::string, std::string> names = ModelNames(reader, base_prefix, paths);

  // Everything is checked before the model is touched, so that an error leaves it as it was.
  LoadReport report;
  std::vector<std::pair<const Parameter*, std::string>> to_read;
  std::vector<const Parameter*> to_fill;
  for (const Parameter& parameter : parameters) {
    const auto found = names.find(parameter.name);
    if (found == names.end()) {
      const bool is_head = StartsWithAny(parameter.name, options.head_prefixes);
      (is_head ? report.fresh_head : report.missing).push_back(parameter.name);
      to_fill.push_back(&parameter);
      continue;
    }
    const SafetensorsEntry& entry = reader.entries().at(found->second);
    if (entry.shape != parameter.tensor.shape()) {
      const std::string what = parameter.name + ": file has " + ToString(entry.shape) + ", model " +
                               ToString(parameter.tensor.shape());
      if (!options.ignore_mismatched_sizes) {
        throw InvalidArgument(entry.file + ": " + what,
                              "the weights belong to another configuration or number of labels; "
                              "with ignore_mismatched_sizes this parameter starts fresh");
      }
      report.mismatched.push_back(what);
      to_fill.push_back(&parameter);
    } else {
      report.loaded.push_back(parameter.name);
      to_read.emplace_back(&parameter, found->second);
    }
    names.erase(found);
  }
  for (const auto& [name, file_name] : names) {
    if (paths.count(name) == 0) {
      (IsExpectedExtra(name, base_prefix) ? report.unused_pretraining : report.unexpected)
          .push_back(name);
    }
  }
  if (report.loaded.empty()) {
    throw InvalidArgument(dir + ": no tensor of the checkpoint belongs to this model",
                          "check that \"model_type\" in config.json is the checkpoint's");
  }

  ParameterArena::Of(parameters);  // gives the parameters their memory
  for (const auto& [parameter, file_name] : to_read) {
    Tensor tensor = parameter->tensor;
    reader.Read(file_name, tensor);
  }
  for (const Parameter* parameter : to_fill) {
    Tensor tensor = parameter->tensor;
    Fill(tensor, parameter->init, options.seed, parameter->name);
  }
  return report;
}

void SaveWeights(const Module& module, const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    throw FileError(dir, error.value());
  }
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const Parameter& parameter : module.Parameters()) {
    tensors.emplace_back(parameter.name, parameter.tensor);
  }
  WriteSafetensors((std::filesystem::path(dir) / "model.safetensors").string(), tensors);
}

}  // namespace lathe
