// The state of any module: its parameters and constants by path, in memory or as a safetensors
// file. The file has the names and shapes of PyTorch's `state_dict` where the module has those of a
// PyTorch module, as the layers of nn/modules/ do.
//
//   SaveModule(model, "mlp.safetensors");
//   Classifier again(8);
//   LoadModule(again, "mlp.safetensors");    // throws unless the names are the same
#pragma once

#include <string>
#include <vector>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/nn/module.h"

namespace lathe {

struct LoadModuleOptions {
  // False: parameters that the state lacks keep their values, and tensors that the module lacks are
  // passed over.
  bool strict = true;
};

// The differences between a module and a state that was loaded with strict = false. Names are
// paths.
struct ModuleDifferences {
  std::vector<std::string> missing;     // parameters that the state lacks
  std::vector<std::string> unexpected;  // tensors that the module lacks
};

// Returns all parameters and constants as tensors, which share the module's memory and change with
// it. CopyState (core/checkpoint/state_dict.h) makes a copy. Throws if a parameter has no values
// yet, or if two have one name.
StateDict ModuleState(const Module& module);

// Sets the parameters and constants to the state's values, converted to their dtype and device. A
// parameter that has no values yet gets memory. Throws InvalidArgument before anything is changed:
// if a shape differs, if the names differ while options.strict is set, or if a parameter without
// values is missing.
ModuleDifferences LoadModuleState(Module& module, const StateDict& state,
                                  const LoadModuleOptions& options = {});

// Writes the state to a safetensors file, atomically.
void SaveModule(const Module& module, const std::string& file);

// Does what LoadModuleState does for the tensors of a safetensors file. Errors name the file.
// Throws as SafetensorsReader does for a file that is missing or damaged.
ModuleDifferences LoadModule(Module& module, const std::string& file,
                             const LoadModuleOptions& options = {});

}  // namespace lathe
