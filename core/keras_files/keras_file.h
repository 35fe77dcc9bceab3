// Files of weights that Keras wrote for TensorFlow's models of Transformers: tf_model.h5.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/weight_files/mapped_file.h"
#include "lathe/core/weight_files/stored_array.h"

namespace lathe {

// Returns the tensors of a file, with the names and the order of dimensions that PyTorch's model
// has. Their `fit` makes PyTorch's shape of a kernel or a bias that has dimensions more. HDF5's
// library reads the file in a confined child process, because it crashes on some damaged files.
// Throws BrokenWeights for a damaged file, InvalidArgument for a sound one with something that
// Lathe doesn't read, FailedPrecondition if the library is missing or the system can't confine a
// process.
StoredArrays ReadKerasFile(const std::string& file);

// Returns the tensors among the arrays that a confined child has found in the file `memory`, or has
// copied to `copied`. Checks all that the child says. ReadKerasFile calls it; the other caller is a
// fuzzer, which can't follow a child.
StoredArrays KerasTensors(const std::vector<Hdf5Array>& found,
                          const std::shared_ptr<const MappedFile>& memory,
                          const std::shared_ptr<const MappedFile>& copied, const std::string& file);

// Does the same as ReadKerasFile with the shards that an index lists, such as
// tf_model.h5.index.json.
StoredArrays ReadKerasShards(const std::string& index);

}  // namespace lathe
