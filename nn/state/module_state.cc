#include "lathe/nn/state/module_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "lathe/core/safetensors/safetensors.h"
#include "lathe/nn/arena.h"

namespace lathe {
namespace {

// What is to be loaded: shapes by name, and how a tensor's values are read.
struct Source {
  std::string where;  // "[load_module] FILE: " or "[load_module_state] "
  std::map<std::string, Shape> shapes;
  std::function<void(const std::string& name, Tensor& to)> read;
};

// Returns "1 parameter: a" or "12 parameters: a, b, c, ...".
std::string Listed(const std::vector<std::string>& names, const std::string& one,
                   const std::string& many) {
  constexpr size_t kMost = 5;
  std::string text = std::to_string(names.size()) + " " + (names.size() == 1 ? one : many) + ": ";
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kMost ? text + ", ..." : text;
}

void CheckNames(const std::vector<Parameter>& parameters) {
  std::set<std::string> names;
  for (const Parameter& p : parameters) {
    Check(names.insert(p.name).second, "module_state", "two parameters are named ", p.name);
  }
}

ModuleDifferences Load(Module& module, const Source& source, const LoadModuleOptions& options) {
  std::vector<Parameter> parameters = module.Parameters();
  CheckNames(parameters);
  ModuleDifferences differences;
  std::vector<std::string> without_values, misshapen;
  std::set<std::string> known;
  for (const Parameter& p : parameters) {
    known.insert(p.name);
    const auto found = source.shapes.find(p.name);
    if (found == source.shapes.end()) {
      differences.missing.push_back(p.name);
      if (!p.tensor.allocated()) without_values.push_back(p.name);
    } else if (found->second != p.tensor.shape()) {
      misshapen.push_back(p.name + " has " + ToString(found->second) + " but the module " +
                          ToString(p.tensor.shape()));
    }
  }
  for (const auto& [name, shape] : source.shapes) {
    if (!known.contains(name)) differences.unexpected.push_back(name);
  }
  if (!misshapen.empty()) {
    throw InvalidArgument(source.where + "has " +
                          Listed(misshapen, "tensor of another shape", "tensors of other shapes"));
  }
  if (options.strict && !(differences.missing.empty() && differences.unexpected.empty())) {
    std::string text = source.where;
    if (!differences.missing.empty()) {
      text += "lacks " + Listed(differences.missing, "parameter", "parameters");
    }
    if (!differences.unexpected.empty()) {
      text += (differences.missing.empty() ? "has " : "; has ") +
              Listed(differences.unexpected, "tensor", "tensors") + ", which the module lacks";
    }
    throw InvalidArgument(text, "set strict to false to load what fits");
  }
  if (!without_values.empty()) {
    throw InvalidArgument(source.where + "lacks " +
                              Listed(without_values, "parameter", "parameters") +
                              ", without values so far",
                          "call Initialize first");
  }
  if (parameters.empty()) return differences;
  ParameterArena::FindOrCreate(parameters);  // gives memory to those that have none
  for (Parameter& p : parameters) {
    if (source.shapes.contains(p.name)) source.read(p.name, p.tensor);
  }
  return differences;
}

}  // namespace

StateDict ModuleState(const Module& module) {
  const std::vector<Parameter> parameters = module.Parameters();
  CheckNames(parameters);
  StateDict state;
  for (const Parameter& p : parameters) {
    if (!p.tensor.allocated()) {
      throw InvalidArgument("[module_state] parameter " + p.name + " has no values yet",
                            "initialise or load the module first");
    }
    state.Add(p.name, p.tensor.Detach());
  }
  return state;
}

ModuleDifferences LoadModuleState(Module& module, const StateDict& state,
                                  const LoadModuleOptions& options) {
  Source source;
  source.where = "[load_module_state] the state ";
  std::map<std::string, const StateTensor*> tensors;
  for (const StateTensor& tensor : state.tensors) {
    Check(tensor.is_whole(), "load_module_state", tensor.name, " is only a part of a tensor");
    Check(tensors.emplace(tensor.name, &tensor).second, "load_module_state",
          "the state has two tensors named ", tensor.name);
    source.shapes[tensor.name] = tensor.shape;
  }
  source.read = [&](const std::string& name, Tensor& to) {
    to.CopyFrom(tensors.at(name)->values.Reshape(to.shape()));
  };
  return Load(module, source, options);
}

void SaveModule(const Module& module, const std::string& file) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const StateTensor& tensor : ModuleState(module).tensors) {
    tensors.emplace_back(tensor.name, tensor.values.To(Device{}));
  }
  WriteSafetensors(file, tensors);
}

ModuleDifferences LoadModule(Module& module, const std::string& file,
                             const LoadModuleOptions& options) {
  const SafetensorsReader reader(file);
  Source source;
  source.where = "[load_module] " + file + " ";
  for (const auto& [name, entry] : reader.entries()) source.shapes[name] = entry.shape;
  source.read = [&](const std::string& name, Tensor& to) {
    Tensor values = Tensor::Empty(to.shape(), to.dtype());
    reader.Read(name, values);
    to.CopyFrom(values);
  };
  return Load(module, source, options);
}

}  // namespace lathe
