#include "lathe/models/weights/load_weights.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
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
constexpr size_t kMostWrappers = 4;  // one in another

// Returns the first tensor whose name starts with the prefix, or the end. Others follow it.
StoredArrays::const_iterator FirstWith(const StoredArrays& arrays, const std::string& prefix) {
  const auto first = arrays.lower_bound(prefix);
  return first != arrays.end() && first->first.starts_with(prefix) ? first : arrays.end();
}

// Adds the wrappers with which the name starts, such as "state_dict." and "state_dict.model.".
void AddWrappersOf(const std::string& name, std::set<std::string>& wrappers) {
  size_t end = 0;
  for (size_t depth = 0; depth < kMostWrappers; ++depth) {
    const auto* const next =
        std::find_if(std::begin(kWrappers), std::end(kWrappers), [&](std::string_view part) {
          return std::string_view(name).substr(end).starts_with(part);
        });
    if (next == std::end(kWrappers)) return;
    end += next->size();
    wrappers.insert(name.substr(0, end));
  }
}

// Turns names in the file that start with `wrapper` into names in the model.
class ModelNames {
 public:
  ModelNames(const StoredArrays& arrays, const std::string& wrapper, const CheckpointNames& names,
             const std::set<std::string>& parameters)
      : wrapper_(wrapper),
        names_(names),
        parameters_(parameters),
        is_bare_(FirstWith(arrays, wrapper + names.base_prefix) == arrays.end()) {}

  std::string Of(const std::string& file_name) const {
    std::string name = Renamed(file_name.substr(wrapper_.size()), names_);
    // A head's tensor keeps its name even if the encoder's names get the prefix.
    if (is_bare_ && parameters_.count(name) == 0 && !IsBuffer(name, names_) &&
        !IsOfPretraining(name, names_)) {
      name = names_.base_prefix + name;
    }
    return name;
  }
  // Returns how many names in the file become parameters of the model.
  int64_t CountParameters(const StoredArrays& arrays) const {
    int64_t count = 0;
    for (auto at = FirstWith(arrays, wrapper_);
         at != arrays.end() && at->first.starts_with(wrapper_); ++at) {
      count += parameters_.count(Of(at->first)) > 0;
    }
    return count;
  }

 private:
  const std::string& wrapper_;
  const CheckpointNames& names_;
  const std::set<std::string>& parameters_;
  bool is_bare_;
};

// Returns the wrapper without which most names are the model's: the shortest one, or "". Other
// tensors may lie beside it, such as those of a metric, a loss or another model.
std::string WrapperOf(const StoredArrays& arrays, const CheckpointNames& names,
                      const std::set<std::string>& parameters) {
  std::set<std::string> wrappers = {""};
  for (const auto& [name, array] : arrays) AddWrappersOf(name, wrappers);
  if (wrappers.size() == 1) return "";
  std::string best, rival;
  int64_t most = 0;
  // A wrapper comes before those that lie in it.
  for (const std::string& wrapper : wrappers) {
    const int64_t count = ModelNames(arrays, wrapper, names, parameters).CountParameters(arrays);
    if (count > most) {
      most = count;
      best = wrapper;
      rival.clear();
    } else if (count == most && !wrapper.starts_with(best)) {
      rival = wrapper;
    }
  }
  if (rival.empty()) return best;
  throw InvalidArgument(
      arrays.begin()->second.file + ": holds two models, \"" + best + "\" and \"" + rival + "\"",
      "save only one of them, with torch.save(model.state_dict(), FILE)");
}

// The name of each tensor in the file by its name in the model, which is a parameter's path.
struct FileNames {
  std::map<std::string, std::string> by_name;
  std::vector<std::string> beside;  // names in the file without the wrapper, of no parameter
};

// Returns what follows the outer part of the wrapper with which the name starts.
std::string WithoutOuterWrapper(const std::string& name, const std::string& wrapper) {
  size_t end = 0;
  for (size_t i = 0; i < std::min(name.size(), wrapper.size()) && name[i] == wrapper[i]; ++i) {
    if (name[i] == '.') end = i + 1;
  }
  return name.substr(end);
}

// A checkpoint may have names without the wrapper, such as those of a head beside a wrapped
// encoder. Such a name is a parameter's only if it equals the parameter's path and no other tensor
// has that.
FileNames FindFileNames(const StoredArrays& arrays, const std::string& wrapper,
                        const CheckpointNames& names, const std::set<std::string>& parameters) {
  const ModelNames model_names(arrays, wrapper, names, parameters);
  FileNames result;
  for (const auto& [file_name, array] : arrays) {
    if (!file_name.starts_with(wrapper)) continue;
    const std::string name = model_names.Of(file_name);
    const auto [at, is_new] = result.by_name.emplace(name, file_name);
    if (!is_new) {
      throw DataLoss(array.file + ": \"" + at->second + "\" and \"" + file_name +
                     "\" are both the parameter \"" + name + "\"");
    }
  }
  for (const auto& [file_name, array] : arrays) {
    if (file_name.starts_with(wrapper)) continue;
    const std::string name = Renamed(WithoutOuterWrapper(file_name, wrapper), names);
    const bool is_parameter =
        parameters.count(name) > 0 && result.by_name.emplace(name, file_name).second;
    if (!is_parameter) result.beside.push_back(file_name);
  }
  return result;
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

// Throws unless the tensor has a floating type. Quantized weights often have another shape, too,
// but their type says what they are.
void CheckIsFloating(const std::string& name, const StoredArray& array) {
  constexpr std::string_view kFloating[] = {"BF16", "F16", "F32", "F64"};
  if (std::find(std::begin(kFloating), std::end(kFloating), array.dtype) != std::end(kFloating)) {
    return;
  }
  throw InvalidArgument(
      array.file + ": tensor \"" + Printable(name) + "\" has dtype " + array.dtype +
          ", which can't be read as float32",
      "weights that were quantized can't be trained; save the model's weights as float32, float16 "
      "or bfloat16");
}

// A parameter that the file has.
struct FoundParameter {
  const Parameter* parameter;
  std::string file_name;
  StoredArray array;  // in the parameter's shape
};

// What a load does to the module's parameters.
struct LoadPlan {
  std::vector<FoundParameter> to_read;
  std::vector<const Parameter*> to_fill;  // with fresh values
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
  report.wrapper = WrapperOf(arrays, names, paths);
  FileNames found_names = FindFileNames(arrays, report.wrapper, names, paths);
  std::map<std::string, std::string>& file_names = found_names.by_name;
  for (const Parameter& parameter : parameters) {
    const auto found = file_names.find(parameter.name);
    if (found == file_names.end()) {
      const bool is_head = StartsWithAny(parameter.name, names.head_prefixes);
      (is_head ? report.fresh_head : report.missing).push_back(parameter.name);
      plan.to_fill.push_back(&parameter);
      continue;
    }
    StoredArray array = arrays.at(found->second);
    CheckIsFloating(found->second, array);
    if (array.fit != nullptr) array = array.fit(array, parameter.tensor.shape());
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
      plan.to_read.push_back({&parameter, found->second, std::move(array)});
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
  report.unexpected.insert(report.unexpected.end(), found_names.beside.begin(),
                           found_names.beside.end());
  return plan;
}

Error NothingLoaded(const std::string& dir, const StoredArrays& arrays,
                    const std::vector<Parameter>& parameters) {
  std::string message = dir + ": no tensor of the checkpoint belongs to this model";
  if (!arrays.empty() && !parameters.empty()) {
    message += ": it has names such as \"" + arrays.begin()->first + "\", the model such as \"" +
               parameters.front().name + "\"";
  }
  return InvalidArgument(
      message,
      "check that \"model_type\" in config.json is that of the checkpoint; if a training program "
      "put another word before the names, save the state_dict() of the model inside");
}

}  // namespace

std::string LoadReport::Summary() const {
  std::string out;
  if (!wrapper.empty()) {
    out = "the model's names in the checkpoint start with \"" + wrapper + "\", which is left out\n";
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
    throw NothingLoaded(dir, arrays, parameters);
  }

  ParameterArena::FindOrCreate(parameters);  // gives the parameters their memory
  for (const auto& [parameter, file_name, array] : plan.to_read) {
    Tensor tensor = parameter->tensor;
    ReadStoredArray(file_name, array, tensor);
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
