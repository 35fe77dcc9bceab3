#include "lathe/core/safetensors/safetensors_header.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lathe/core/json/json_nesting.h"

namespace lathe {
namespace {

using nlohmann::json;

// The order in which the reference declares the dtypes; its writer sorts by it.
constexpr std::array<SafetensorsDType, 22> kDTypes = {{
    {"BOOL", 8, DType::kBool},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, {}},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kI64},
    {"U64", 64, {}},
}};

// Parses JSON. A key that comes twice is an error; the library's own parser would keep the last.
json ParseStrictly(std::string_view text, const std::string& file) {
  std::vector<absl::flat_hash_set<std::string>> keys;
  const auto callback = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      if (!keys.back().insert(key).second) {
        throw BrokenSafetensors(file, "the header has \"" + key + "\" twice");
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), callback);
  } catch (const json::exception& e) {
    throw BrokenSafetensors(file, std::string("the header is not JSON: ") + WithoutTag(e.what()));
  }
}

// Returns a whole number that an int64_t holds; throws for other values.
int64_t GetCount(const json& value, const std::string& file, const std::string& name,
                 const char* what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw BrokenSafetensors(file, name,
                            std::string(what) + " must be whole numbers but has " + value.dump());
  }
  return value.get<int64_t>();
}

SafetensorsEntry ParseEntry(const json& value, const std::string& file, const std::string& name) {
  if (!value.is_object()) {
    throw BrokenSafetensors(file, name, "its description must be an object");
  }
  const auto member = [&](const char* key, bool (json::*is_type)() const noexcept) -> const json& {
    const auto found = value.find(key);
    if (found == value.end() || !((*found).*is_type)()) {
      throw BrokenSafetensors(file, name,
                              std::string("\"") + key + "\" is missing or of a wrong type");
    }
    return *found;
  };
  SafetensorsEntry entry;
  entry.file = file;
  entry.dtype = member("dtype", &json::is_string).get<std::string>();
  const SafetensorsDType* dtype = FindSafetensorsDType(entry.dtype);
  if (dtype == nullptr) {
    throw BrokenSafetensors(file, name, "unknown dtype \"" + entry.dtype + "\"");
  }
  int64_t bits = dtype->bits;
  for (const json& dim : member("shape", &json::is_array)) {
    entry.shape.push_back(GetCount(dim, file, name, "shape"));
    if (__builtin_mul_overflow(bits, entry.shape.back(), &bits)) {
      throw BrokenSafetensors(file, name, "shape " + ToString(entry.shape) + " is too large");
    }
  }
  if (bits % 8 != 0) {
    throw BrokenSafetensors(file, name, "does not fill whole bytes");
  }
  const json& offsets = member("data_offsets", &json::is_array);
  if (offsets.size() != 2) {
    throw BrokenSafetensors(file, name, "\"data_offsets\" must have 2 numbers");
  }
  entry.begin = GetCount(offsets[0], file, name, "data_offsets");
  entry.end = GetCount(offsets[1], file, name, "data_offsets");
  if (entry.end < entry.begin) {
    throw BrokenSafetensors(file, name,
                            "ends at " + std::to_string(entry.end) + ", before its start at " +
                                std::to_string(entry.begin));
  }
  if (entry.end - entry.begin != bits / 8) {
    throw BrokenSafetensors(file, name,
                            entry.dtype + " of shape " + ToString(entry.shape) + " needs " +
                                std::to_string(bits / 8) + " bytes but has " +
                                std::to_string(entry.end - entry.begin));
  }
  return entry;
}

void CheckMetadata(const json& metadata, const std::string& file) {
  if (!metadata.is_object()) {
    throw BrokenSafetensors(file, "\"__metadata__\" must be an object");
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      throw BrokenSafetensors(file,
                              "\"__metadata__\": the value of \"" + key + "\" must be a string");
    }
    // TensorFlow's and Flax's files hold transposed kernels under other names, so they would load
    // wrongly.
    if (key == "format" && (value == "tf" || value == "flax")) {
      throw InvalidArgument(
          file + ": holds the weights of a " + value.get<std::string>() + " model",
          "convert it: load it with Transformers and save it from PyTorch");
    }
  }
}

// The tensors must fill the buffer without holes, overlaps or bytes after the last one.
void CheckLayout(const std::map<std::string, SafetensorsEntry>& entries, int64_t buffer_size,
                 const std::string& file) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : entries) {
    if (entry.end > buffer_size) {
      throw BrokenSafetensors(file, name,
                              "ends at byte " + std::to_string(entry.end) +
                                  " but the file has only " + std::to_string(buffer_size) +
                                  " bytes of tensors");
    }
    order.emplace_back(&name, &entry);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t end = 0;
  const std::string* previous = nullptr;
  for (const auto& [name, entry] : order) {
    if (entry->begin != end) {
      const std::string after = previous ? "tensor \"" + *previous + "\"" : "the start";
      throw BrokenSafetensors(file, *name,
                              entry->begin < end
                                  ? "overlaps " + after
                                  : "there is a hole of " + std::to_string(entry->begin - end) +
                                        " bytes between " + after + " and it");
    }
    end = entry->end;
    previous = name;
  }
  if (end != buffer_size) {
    throw BrokenSafetensors(file,
                            std::to_string(buffer_size - end) + " bytes follow the last tensor");
  }
}

}  // namespace

const SafetensorsDType* FindSafetensorsDType(std::string_view name) {
  for (const SafetensorsDType& dtype : kDTypes) {
    if (name == dtype.name) {
      return &dtype;
    }
  }
  return nullptr;
}

int SafetensorsDTypeIndex(DType dtype) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype == dtype) {
      return static_cast<int>(i);
    }
  }
  throw InvalidArgument(std::string("safetensors can't hold ") + ToString(dtype));
}

const char* SafetensorsDTypeName(int index) { return kDTypes[index].name; }

Error BrokenSafetensors(const std::string& file, const std::string& what) {
  return BrokenWeights(file, what);
}

Error BrokenSafetensors(const std::string& file, const std::string& name, const std::string& what) {
  return BrokenSafetensors(file, "tensor \"" + name + "\": " + what);
}

std::map<std::string, SafetensorsEntry> ParseSafetensorsHeader(std::string_view text,
                                                               int64_t buffer_size,
                                                               const std::string& file) {
  if (text.empty() || text[0] != '{') {
    throw BrokenSafetensors(file, "the header must start with {");
  }
  CheckJsonNesting(text, file);
  const json header = ParseStrictly(text, file);
  std::map<std::string, SafetensorsEntry> result;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      CheckMetadata(value, file);
    } else {
      result.emplace(name, ParseEntry(value, file, name));
    }
  }
  CheckLayout(result, buffer_size, file);
  return result;
}

}  // namespace lathe
