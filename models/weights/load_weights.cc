#include "lathe/models/weights/load_weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "lathe/core/base/file.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/core/text/terminal_text.h"
#include "lathe/core/weight_files/stored_array.h"
#include "lathe/models/weights/find_weights.h"
#include "lathe/nn/arena.h"

namespace lathe {
namespace {

// Returns a tensor's present name, if `name` is an old one.
std::string Renamed(std::string name, const CheckpointNames& names) {
  for (const auto& [old_ending, ending] : names.renamed_endings) {
    if (name.ends_with(old_ending)) {
      name.replace(name.size() - old_ending.size(), old_ending.size(), ending);
    }
  }
  return name;
}

bool StartsWithAny(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

// Returns true for tensors that a model computes itself.
bool IsBuffer(const std::string& name, const CheckpointNames& names) {
  return std::any_of(names.buffers.begin(), names.buffers.end(), [&](const std::string& buffer) {
    return name == buffer || name.ends_with("." + buffer);
  });
}

// Returns true for tensors that pre-training needed and the model may not have.
bool IsOfPretraining(const std::string& name, const CheckpointNames& names) {
  return StartsWithAny(name, names.pretraining_heads) ||
         name.starts_with(names.base_prefix + "pooler.");
}

// What training programs put before a model's names: dicts round the state dict (unpickler.h),
// DataParallel, torch.compile, and Lightning's modules, which mostly call their model so.
constexpr std::string_view kWrappers[] = {"state_dict.", "model_state_dict.", "module.",
                                          "_orig_mod.", "model."};

bool AnyStartsWith(const StoredArrays& arrays, const std::string& prefix) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

// Returns the wrappers with which all names start, one after the other. A family's own base prefix
// is one only if the base prefix follows it.
std::string WrapperOf(const StoredArrays& arrays, const CheckpointNames& names) {
  std::string wrapper;
  const auto is_next = [&](std::string_view part) {
    const std::string longer = wrapper + std::string(part);
    const bool all = std::all_of(arrays.begin(), arrays.end(), [&](const auto& entry) {
      return entry.first.starts_with(longer);
    });
    return all && (part != names.base_prefix || AnyStartsWith(arrays, longer + names.base_prefix));
  };
  while (!arrays.empty()) {
    const auto* const next = std::find_if(std::begin(kWrappers), std::end(kWrappers), is_next);
    if (next == std::end(kWrappers)) break;
    wrapper += *next;
  }
  return wrapper;
}

// Maps each tensor's name in the model, a parameter's path, to its name in the file, which starts
// with `wrapper`.
std::map<std::string, std::string> FileNames(const StoredArrays& arrays, const std::string& wrapper,
                                             const CheckpointNames& names,
                                             const std::set<std::string>& parameters) {
  const bool bare = !AnyStartsWith(arrays, wrapper + names.base_prefix);
  std::map<std::string, std::string> file_names;
  for (const auto& [file_name, array] : arrays) {
    std::string name = Renamed(file_name.substr(wrapper.size()), names);
    // A head's tensor keeps its name even if the encoder's names get the prefix.
    if (bare && parameters.count(name) == 0 && !IsBuffer(name, names) &&
        !IsOfPretraining(name, names)) {
      name = names.base_prefix + name;
    }
    const auto [at, is_new] = file_names.emplace(name, file_name);
    if (!is_new) {
      throw DataLoss(array.file + ": \"" + at->second + "\" and \"" + file_name +
                     "\" are both the parameter \"" + name + "\"");
    }
  }
  return file_names;
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

// What a load does to the module's parameters.
struct LoadPlan {
  std::vector<std::pair<const Parameter*, std::string>> to_read;  // with the name in the file
  std::vector<const Parameter*> to_fill;                          // with fresh values
  LoadReport report;
};

// Compares the file with the parameters. Throws if the file doesn't fit.
LoadPlan PlanLoad(const StoredArrays& arrays, const std::vector<Parameter>& parameters,
                  const CheckpointNames& names, bool ignore_mismatched_sizes) {
  std::set<std::string> paths;
  for (const Parameter& parameter : parameters) {
    paths.insert(parameter.name);
  }
  LoadPlan plan;
  LoadReport& report = plan.report;
  report.wrapper = WrapperOf(arrays, names);
  std::map<std::string, std::string> file_names = FileNames(arrays, report.wrapper, names, paths);
  for (const Parameter& parameter : parameters) {
    const auto found = file_names.find(parameter.name);
    if (found == file_names.end()) {
      const bool is_head = StartsWithAny(parameter.name, names.head_prefixes);
      (is_head ? report.fresh_head : report.missing).push_back(parameter.name);
      plan.to_fill.push_back(&parameter);
      continue;
    }
    const StoredArray& array = arrays.at(found->second);
    if (array.shape != parameter.tensor.shape()) {
      const std::string what = parameter.name + ": file has " + ToString(array.shape) + ", model " +
                               ToString(parameter.tensor.shape());
      if (!ignore_mismatched_sizes) {
        throw InvalidArgument(array.file + ": " + what,
                              "the weights belong to another configuration or number of labels; "
                              "with ignore_mismatched_sizes this parameter gets fresh values")
            .WithDetail(MismatchedSize{parameter.name});
      }
      report.mismatched.push_back(what);
      plan.to_fill.push_back(&parameter);
    } else {
      report.loaded.push_back(parameter.name);
      plan.to_read.emplace_back(&parameter, found->second);
    }
    file_names.erase(found);
  }
  for (const auto& [name, file_name] : file_names) {
    if (paths.count(name) > 0) continue;
    (IsBuffer(name, names)          ? report.unused_buffers
     : IsOfPretraining(name, names) ? report.unused_pretraining
                                    : report.unexpected)
        .push_back(name);
  }
  return plan;
}

}  // namespace

std::string LoadReport::Summary() const {
  std::string out;
  if (!wrapper.empty()) {
    out = "all names in the checkpoint start with \"" + wrapper + "\", which is left out\n";
  }
  AppendList(out, "parameters of the new head that get fresh values", fresh_head);
  AppendList(out, "parameters that the checkpoint lacks and that get fresh values", missing);
  AppendList(out, "parameters of another shape in the checkpoint that get fresh values",
             mismatched);
  AppendList(out, "tensors of the checkpoint that the model does not have", unexpected);
  AppendList(out, "tensors of pre-training heads in the checkpoint that are not used",
             unused_pretraining);
  return TerminalText(out);
}

LoadReport LoadWeights(Module& module, const std::string& dir, const CheckpointNames& names,
                       const LoadWeightsOptions& options) {
  const StoredArrays arrays = FindWeights(dir);
  const std::vector<Parameter> parameters = module.Parameters();
  // Everything is checked before the model is touched, so that an error leaves it as it was.
  LoadPlan plan = PlanLoad(arrays, parameters, names, options.ignore_mismatched_sizes);
  if (plan.report.loaded.empty()) {
    throw InvalidArgument(dir + ": no tensor of the checkpoint belongs to this model",
                          "check that \"model_type\" in config.json is that of the checkpoint");
  }

  ParameterArena::FindOrCreate(parameters);  // gives the parameters their memory
  for (const auto& [parameter, file_name] : plan.to_read) {
    Tensor tensor = parameter->tensor;
    ReadStoredArray(file_name, arrays.at(file_name), tensor);
  }
  for (const Parameter* parameter : plan.to_fill) {
    Tensor tensor = parameter->tensor;
    Fill(tensor, parameter->init, options.seed, parameter->name);
  }
  return std::move(plan.report);
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
