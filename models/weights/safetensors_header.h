// The header of a safetensors file, checked as the reference reader checks it. Internal to
// safetensors.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lathe/core/error.h"
#include "lathe/models/weights/safetensors.h"

namespace lathe {

struct SafetensorsDType {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // Lathe's, where it has one
};

// By its name in files; null if the format has none of this name.
const SafetensorsDType* FindSafetensorsDType(std::string_view name);

// The writer sorts by rank, the position in the reference's list of dtypes. Throws InvalidArgument
// for a dtype that the format doesn't have.
int SafetensorsRank(DType dtype);
const char* SafetensorsDTypeName(int rank);

// Errors for a damaged file, and for one tensor of it.
Error BrokenSafetensors(const std::string& file, const std::string& what);
Error BrokenSafetensors(const std::string& file, const std::string& name, const std::string& what);

// The tensors of `file` by name, from its header's text and the size in bytes of what follows it.
// Throws DataLoss for whatever the format forbids, InvalidArgument for another framework's weights.
std::map<std::string, SafetensorsEntry> ParseSafetensorsHeader(std::string_view text,
                                                               int64_t buffer_size,
                                                               const std::string& file);

}  // namespace lathe
