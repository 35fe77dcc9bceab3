// Files of states (state_dict.h), in HDF5. A tensor NAME is the dataset /tensors/NAME, in chunks
// that each have a Fletcher-32 checksum. A part of a tensor is the dataset /tensors/NAME@BEGIN,
// with one dimension; its attribute "shape" holds the whole tensor's. The bytes of /values are
// JSON. If some of its numbers are not finite, the bytes of /non_finite tell where
// (core/checkpoint/non_finite.h).
//
//   WriteStateFile("optimizer.h5", optimizer.StateDict());
//   optimizer.LoadStateDict(ReadStateFile("optimizer.h5"));
//
// A file has no time stamps: the same state gives the same bytes.
#pragma once

#include <string>

#include "lathe/core/checkpoint/state_dict.h"

namespace lathe {

// Writes a new file. It doesn't sync. Throws FileError, such as `optimizer.h5: No space left on
// device`; a broken file may then remain. Throws InvalidArgument for a text that is not UTF-8, and
// for values that are nested so deeply that ReadStateFile would refuse them. A tensor's name may
// hold single slashes. Elements are float32 or int64.
void WriteStateFile(const std::string& path, const StateDict& state);

// Reads what WriteStateFile has written. Throws DataLoss for anything else, as far as HDF5 notices.
// HDF5 is not safe against damaged or malicious files. So compare the file's SHA-256 first, as
// OpenCheckpoint (checkpoint_folder.h) does.
StateDict ReadStateFile(const std::string& path);

}  // namespace lathe
