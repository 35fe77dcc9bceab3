// Files of weights that torch.save wrote, such as pytorch_model.bin: the zip form, and the form
// that PyTorch had before 1.6. They are mapped into memory, and no code in them is run.
#pragma once

#include <string>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

// Returns the tensors of the state dict in a file, or in a training checkpoint, where names get a
// prefix (see Unpickler::TensorsOf). Tensors may share elements and have any strides.
// Checks the members' CRC-32, unless PyTorch was told to write none. Throws BrokenWeights for a
// damaged file, InvalidArgument for one that isn't a state dict or needs code.
StoredArrays ReadPyTorchFile(const std::string& file);

// Does the same with the shards that an index lists, such as pytorch_model.bin.index.json.
StoredArrays ReadPyTorchShards(const std::string& index);

}  // namespace lathe
