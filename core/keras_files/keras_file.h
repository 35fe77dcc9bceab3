// Files of weights that Keras wrote for TensorFlow's models of Transformers: tf_model.h5.
#pragma once

#include <string>

#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

// Returns the tensors of a file, with the names and the order of dimensions that PyTorch's model
// has. Their `fit` makes PyTorch's shape of a kernel or a bias that has dimensions more. HDF5's
// library reads the file in a confined child process, because it crashes on some damaged files.
// Throws BrokenWeights for a damaged file, FailedPrecondition if the library is missing or the
// system can't confine a process.
StoredArrays ReadKerasFile(const std::string& file);

// Does the same with the shards that an index lists, such as tf_model.h5.index.json.
StoredArrays ReadKerasShards(const std::string& index);

}  // namespace lathe
