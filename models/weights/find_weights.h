// Finds the weights in a model's folder, in whichever format they are.
#pragma once

#include <string>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

// Returns the tensors of the first of these files that the folder has:
//   model.safetensors, model.safetensors.index.json,
//   pytorch_model.bin, pytorch_model.bin.index.json,
//   tf_model.h5, tf_model.h5.index.json.
// An index lists files that each hold a part of the tensors. Throws NotFound if there is none, and
// says what the folder holds. Throws InvalidArgument if Git LFS has not fetched the file; else as
// the format's reader does.
StoredArrays FindWeights(const std::string& dir);

}  // namespace lathe
