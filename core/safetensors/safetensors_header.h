// The header of a safetensors file, checked as the reference reader checks it. Internal to
// safetensors.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lathe/core/base/error.h"
#include "lathe/core/safetensors/safetensors.h"

namespace lathe {

struct SafetensorsDType {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // Lathe's dtype, if it has one
};

// Returns the dtype with this name in files, or null if the format has none.
const SafetensorsDType* FindSafetensorsDType(std::string_view name);

// Returns the dtype's index in the reference's list of dtypes, by which the writer sorts. Throws
// InvalidArgument for a dtype that the format doesn't have.
int SafetensorsDTypeIndex(DType dtype);
// Returns the name in files of the dtype with this index.
const char* SafetensorsDTypeName(int index);

// Return the errors for a damaged file, and for one tensor of it.
Error BrokenSafetensors(const std::string& file, const std::string& what);
Error BrokenSafetensors(const std::string& file, const std::string& name, const std::string& what);

// Returns the tensors of `file` by name. `text` is its header, and buffer_size the size in bytes of
// what follows. Throws DataLoss for everything that the format forbids, InvalidArgument for another
// framework's weights.
std::map<std::string, SafetensorsEntry> ParseSafetensorsHeader(std::string_view text,
                                                               int64_t buffer_size,
                                                               const std::string& file);

}  // namespace lathe
