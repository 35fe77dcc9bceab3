#include "lathe/models/safetensors.h"

#include <absl/container/flat_hash_set.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "lathe/core/file.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit
constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

struct FormatDType {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // Lathe's, where it has one
};

// The reference's order of declaration, which its writer sorts by.
constexpr std::array<FormatDType, 22> kDTypes = {{
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

const FormatDType* FindDType(std::string_view name) {
  for (const FormatDType& dtype : kDTypes) {
    if (name == dtype.name) {
      return &dtype;
    }
  }
  return nullptr;
}

// Position in kDTypes: the rank that the writer sorts by.
int RankOf(DType dtype) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype == dtype) {
      return static_cast<int>(i);
    }
  }
  throw InvalidArgument(std::string("safetensors can't hold ") + ToString(dtype));
}

Error Broken(const std::string& file, const std::string& what) {
  return DataLoss(file + ": " + what,
                  "the file is damaged or incomplete; download or save it again");
}

Error BrokenTensor(const std::string& file, const std::string& name, const std::string& what) {
  return Broken(file, "tensor \"" + name + "\": " + what);
}

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      throw FileError(path, errno);
    }
    struct stat info;
    int error_number = fstat(fd, &info) != 0 ? errno : 0;
    if (error_number == 0 && !S_ISREG(info.st_mode)) {
      error_number = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    }
    if (error_number == 0 && info.st_size > 0) {
      size_ = static_cast<uint64_t>(info.st_size);
      void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (mapped == MAP_FAILED) {
        error_number = errno;
      } else {
        data_ = static_cast<const char*>(mapped);
      }
    }
    close(fd);
    if (error_number != 0) {
      throw FileError(path, error_number);
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) {
      munmap(const_cast<char*>(data_), size_);
    }
  }
  const char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

// JSON in which a key that comes twice is an error; the library's own parser would keep the last.
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
        throw Broken(file, "the header has \"" + key + "\" twice");
      }
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), callback);
  } catch (const json::exception& e) {
    throw Broken(file, std::string("the header is not JSON: ") + e.what());
  }
}

// A whole number that an int64_t holds.
int64_t GetCount(const json& value, const std::string& file, const std::string& name,
                 const char* what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw BrokenTensor(file, name,
                       std::string(what) + " must be whole numbers but has " + value.dump());
  }
  return value.get<int64_t>();
}

SafetensorsEntry ParseEntry(const json& value, const std::string& file, const std::string& name) {
  if (!value.is_object()) {
    throw BrokenTensor(file, name, "its description must be an object");
  }
  const auto member = [&](const char* key, bool (json::*is_type)() const noexcept) -> const json& {
    const auto found = value.find(key);
    if (found == value.end() || !((*found).*is_type)()) {
      throw BrokenTensor(file, name, std::string("\"") + key + "\" is missing or of a wrong type");
    }
    return *found;
  };
  SafetensorsEntry entry;
  entry.file = file;
  entry.dtype = member("dtype", &json::is_string).get<std::string>();
  const FormatDType* dtype = FindDType(entry.dtype);
  if (dtype == nullptr) {
    throw BrokenTensor(file, name, "unknown dtype \"" + entry.dtype + "\"");
  }
  int64_t bits = dtype->bits;
  for (const json& dim : member("shape", &json::is_array)) {
    entry.shape.push_back(GetCount(dim, file, name, "shape"));
    if (__builtin_mul_overflow(bits, entry.shape.back(), &bits)) {
      throw BrokenTensor(file, name, "shape " + ToString(entry.shape) + " is too large");
    }
  }
  if (bits % 8 != 0) {
    throw BrokenTensor(file, name, "does not fill whole bytes");
  }
  const json& offsets = member("data_offsets", &json::is_array);
  if (offsets.size() != 2) {
    throw BrokenTensor(file, name, "\"data_offsets\" must have 2 numbers");
  }
  entry.begin = GetCount(offsets[0], file, name, "data_offsets");
  entry.end = GetCount(offsets[1], file, name, "data_offsets");
  if (entry.end < entry.begin) {
    throw BrokenTensor(file, name,
                       "ends at " + std::to_string(entry.end) + ", before its start at " +
                           std::to_string(entry.begin));
  }
  if (entry.end - entry.begin != bits / 8) {
    throw BrokenTensor(file, name,
                       entry.dtype + " of shape " + ToString(entry.shape) + " needs " +
                           std::to_string(bits / 8) + " bytes but has " +
                           std::to_string(entry.end - entry.begin));
  }
  return entry;
}

void CheckMetadata(const json& metadata, const std::string& file) {
  if (!metadata.is_object()) {
    throw Broken(file, "\"__metadata__\" must be an object");
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      throw Broken(file, "\"__metadata__\": the value of \"" + key + "\" must be a string");
    }
    // TensorFlow's and Flax' files hold transposed kernels under other names; they would load
    // wrongly.
    if (key == "format" && (value == "tf" || value == "flax")) {
      throw InvalidArgument(
          file + ": holds the weights of a " + value.get<std::string>() + " model",
          "convert it: load it with Transformers and save it from PyTorch");
    }
  }
}

// The tensors must fill the buffer without holes, overlaps or bytes after the last.
void CheckLayout(const std::map<std::string, SafetensorsEntry>& entries, int64_t buffer_size,
                 const std::string& file) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> order;
  for (const auto& [name, entry] : entries) {
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
      throw BrokenTensor(file, *name,
                         entry->begin < end
                             ? "overlaps " + after
                             : "there is a hole of " + std::to_string(entry->begin - end) +
                                   " bytes between " + after + " and it");
    }
    if (entry->end > buffer_size) {
      throw BrokenTensor(file, *name,
                         "ends at byte " + std::to_string(entry->end) + " but the file has only " +
                             std::to_string(buffer_size) + " bytes of tensors");
    }
    end = entry->end;
    previous = name;
  }
  if (end != buffer_size) {
    throw Broken(file, std::to_string(buffer_size - end) + " bytes follow the last tensor");
  }
}

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // the mapping may leave any alignment
  return value;
}

template <typename From, typename To>
void ConvertFloats(const char* in, To* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const From value = Load<From>(in + i * static_cast<int64_t>(sizeof(From)));
    if constexpr (std::is_same_v<From, double> && !std::is_same_v<To, double>) {
      out[i] = static_cast<To>(static_cast<float>(value));
    } else if constexpr (std::is_arithmetic_v<From>) {
      out[i] = static_cast<To>(value);
    } else {
      out[i] = static_cast<To>(static_cast<float>(value));
    }
  }
}

// False if a value does not fit.
template <typename From, typename To>
bool ConvertIntegers(const char* in, To* out, int64_t n) {
  bool fits = true;
  for (int64_t i = 0; i < n; ++i) {
    const From value = Load<From>(in + i * static_cast<int64_t>(sizeof(From)));
    if constexpr (std::is_same_v<To, bool>) {
      fits &= value == 0 || value == 1;
      out[i] = value != 0;
    } else {
      fits &= std::in_range<To>(value);
      out[i] = static_cast<To>(value);
    }
  }
  return fits;
}

// Calls `body(T{})` with the C++ type of an integer dtype of the file; false if it is none.
template <typename Body>
bool DispatchInteger(std::string_view dtype, Body&& body) {
  if (dtype == "BOOL" || dtype == "U8") return body(uint8_t{}), true;
  if (dtype == "I8") return body(int8_t{}), true;
  if (dtype == "I16") return body(int16_t{}), true;
  if (dtype == "U16") return body(uint16_t{}), true;
  if (dtype == "I32") return body(int32_t{}), true;
  if (dtype == "U32") return body(uint32_t{}), true;
  if (dtype == "I64") return body(int64_t{}), true;
  if (dtype == "U64") return body(uint64_t{}), true;
  return false;
}

template <typename Body>
bool DispatchFloating(std::string_view dtype, Body&& body) {
  if (dtype == "F32") return body(float{}), true;
  if (dtype == "BF16") return body(BFloat16{}), true;
  if (dtype == "F16") return body(Float16{}), true;
  if (dtype == "F64") return body(double{}), true;
  return false;
}

// A shard's name is joined to the folder's, so it must not lead out of it.
void CheckShardName(const std::string& shard, const std::string& index) {
  const bool has_separator = shard.find_first_of("/\\") != std::string::npos;
  if (has_separator || !shard.ends_with(".safetensors")) {
    throw DataLoss(index + ": \"" + shard + "\" must be the name of a .safetensors file beside it");
  }
}

}  // namespace

struct SafetensorsReader::Impl {
  // What Read needs beside the entry; a file is mapped once however many tensors it has.
  struct Located {
    std::shared_ptr<MappedFile> mapped;
    uint64_t buffer = 0;  // where the tensors' bytes start
  };
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, Located> files;

  const SafetensorsEntry& Find(const std::string& name) const {
    const auto found = entries.find(name);
    if (found == entries.end()) {
      const std::string where = files.size() == 1 ? files.begin()->first : "the checkpoint";
      throw NotFound(where + ": has no tensor \"" + name + "\"");
    }
    return found->second;
  }

  const char* Bytes(const SafetensorsEntry& entry) const {
    const Located& located = files.at(entry.file);
    return located.mapped->data() + located.buffer + entry.begin;
  }

  // Maps and checks one file; its tensors are returned, not added.
  std::map<std::string, SafetensorsEntry> Open(const std::string& file) {
    auto mapped = std::make_shared<MappedFile>(file);
    if (mapped->size() < 8) {
      throw Broken(file, "is too short for a safetensors file (" + std::to_string(mapped->size()) +
                             " bytes)");
    }
    const uint64_t header_size = Load<uint64_t>(mapped->data());
    if (header_size > kMaxHeader) {
      throw Broken(file, "its header claims " + std::to_string(header_size) +
                             " bytes, more than the format allows; not a safetensors file?");
    }
    if (8 + header_size > mapped->size()) {
      throw Broken(file, "its header has " + std::to_string(header_size) + " bytes but the file " +
                             std::to_string(mapped->size()));
    }
    const std::string_view text(mapped->data() + 8, header_size);
    if (text.empty() || text[0] != '{') {
      throw Broken(file, "the header must start with {");
    }
    const json header = ParseStrictly(text, file);
    std::map<std::string, SafetensorsEntry> result;
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        CheckMetadata(value, file);
      } else {
        result.emplace(name, ParseEntry(value, file, name));
      }
    }
    CheckLayout(result, static_cast<int64_t>(mapped->size() - 8 - header_size), file);
    files[file] = {std::move(mapped), 8 + header_size};
    return result;
  }

  void OpenShards(const std::string& index, const std::filesystem::path& dir) {
    json parsed;
    try {
      parsed = json::parse(ReadFile(index));
    } catch (const json::exception& e) {
      throw Broken(index, std::string("is not JSON: ") + e.what());
    }
    if (!parsed.is_object() || !parsed.contains("weight_map") ||
        !parsed["weight_map"].is_object()) {
      throw Broken(index, "\"weight_map\" must be an object");
    }
    std::map<std::string, std::string> shard_of;
    std::set<std::string> shards;
    for (const auto& [name, value] : parsed["weight_map"].items()) {
      if (!value.is_string()) {
        throw Broken(index, "\"weight_map\": the value of \"" + name + "\" must be a file name");
      }
      shard_of[name] = value.get<std::string>();
      CheckShardName(shard_of[name], index);
      shards.insert(shard_of[name]);
    }
    for (const std::string& shard : shards) {
      const std::string file = (dir / shard).string();
      if (!std::filesystem::exists(file)) {
        throw NotFound(file + ": missing, though " + index + " lists it",
                       "download or copy all shards of the checkpoint");
      }
      for (auto& [name, entry] : Open(file)) {
        const auto listed = shard_of.find(name);
        if (listed != shard_of.end() && listed->second != shard) {
          continue;  // the index decides between copies
        }
        if (!entries.emplace(name, entry).second) {
          throw BrokenTensor(file, name, "is also in " + entries[name].file);
        }
      }
    }
    for (const auto& [name, shard] : shard_of) {
      if (entries.count(name) == 0) {
        throw BrokenTensor((dir / shard).string(), name, "missing, though " + index + " lists it");
      }
    }
  }
};

SafetensorsReader::SafetensorsReader() : impl_(std::make_unique<Impl>()) {}
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader::~SafetensorsReader() = default;

SafetensorsReader::SafetensorsReader(const std::string& file) : SafetensorsReader() {
  impl_->entries = impl_->Open(file);
}

SafetensorsReader SafetensorsReader::FromDirectory(const std::string& dir) {
  const std::filesystem::path path(dir);
  if (std::filesystem::exists(path / kFileName)) {
    return SafetensorsReader((path / kFileName).string());
  }
  if (!std::filesystem::exists(path / kIndexName)) {
    const bool has_pickle = std::filesystem::exists(path / "pytorch_model.bin");
    throw NotFound(dir + ": has neither " + kFileName + " nor " + kIndexName,
                   has_pickle
                       ? "pytorch_model.bin is not read; load it with Transformers and save it "
                         "with save_pretrained"
                       : "name a folder that save_pretrained wrote");
  }
  SafetensorsReader reader;
  reader.impl_->OpenShards((path / kIndexName).string(), path);
  return reader;
}

const std::map<std::string, SafetensorsEntry>& SafetensorsReader::entries() const {
  return impl_->entries;
}

void SafetensorsReader::Read(const std::string& name, Tensor& out) const {
  const SafetensorsEntry& entry = impl_->Find(name);
  const std::string where = entry.file + ": tensor \"" + name + "\" ";
  if (entry.shape != out.shape()) {
    throw InvalidArgument(where + "has shape " + ToString(entry.shape) + " but " +
                          ToString(out.shape()) + " is wanted");
  }
  const char* bytes = impl_->Bytes(entry);
  const int64_t n = out.numel();
  if (FindDType(entry.dtype)->dtype == out.dtype() && out.dtype() != DType::kBool) {
    if (n > 0) {
      std::memcpy(out.raw_data(), bytes, static_cast<size_t>(out.bytes()));
    }
    return;
  }
  bool fits = true;
  const bool converted = DispatchAll(out.dtype(), [&](auto to) {
    using To = decltype(to);
    if constexpr (std::is_integral_v<To>) {
      return DispatchInteger(entry.dtype, [&](auto from) {
        fits = ConvertIntegers<decltype(from), To>(bytes, out.data<To>(), n);
      });
    } else {
      return DispatchFloating(entry.dtype, [&](auto from) {
        ConvertFloats<decltype(from), To>(bytes, out.data<To>(), n);
      });
    }
  });
  if (!converted) {
    throw InvalidArgument(where + "has dtype " + entry.dtype + ", which can't be read as " +
                          ToString(out.dtype()));
  }
  if (!fits) {
    throw InvalidArgument(where + "has values that " + ToString(out.dtype()) + " can't hold");
  }
}

Tensor SafetensorsReader::Read(const std::string& name) const {
  const SafetensorsEntry& entry = impl_->Find(name);
  const std::optional<DType> dtype = FindDType(entry.dtype)->dtype;
  if (!dtype) {
    throw InvalidArgument(entry.file + ": tensor \"" + name + "\" has dtype " + entry.dtype +
                          ", which Lathe does not have");
  }
  Tensor out = Tensor::Empty(entry.shape, *dtype);
  Read(name, out);
  return out;
}

void WriteSafetensors(const std::string& file,
                      const std::vector<std::pair<std::string, Tensor>>& tensors) {
  struct Item {
    int rank;
    const std::string* name;
    const Tensor* tensor;
  };
  std::vector<Item> order;
  std::set<std::string> names = {"__metadata__"};  // taken by the format
  for (const auto& [name, tensor] : tensors) {
    Check(tensor.allocated(), "WriteSafetensors", "tensor \"", name, "\" has no values");
    Check(names.insert(name).second, "WriteSafetensors", "the name \"", name, "\" is taken");
    order.push_back({RankOf(tensor.dtype()), &name, &tensor});
  }
  // Wide types first, so that every tensor is aligned as its type needs.
  std::sort(order.begin(), order.end(), [](const Item& a, const Item& b) {
    return a.rank != b.rank ? a.rank > b.rank : *a.name < *b.name;
  });

  std::string header = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const Item& item : order) {
    const Shape& shape = item.tensor->shape();
    const int64_t end = offset + item.tensor->bytes();
    json dims = json::array();
    for (int64_t dim : shape) {
      dims.push_back(dim);
    }
    std::string quoted;
    try {
      quoted = json(*item.name).dump();
    } catch (const json::exception&) {
      throw InvalidArgument("[WriteSafetensors] a tensor's name is not UTF-8");
    }
    header += "," + quoted + R"(:{"dtype":")" + kDTypes[item.rank].name + R"(","shape":)" +
              dims.dump() + R"(,"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(end) + "]}";
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  WriteFileAtomically(file, [&](const std::string& temporary) {
    FileWriter writer(temporary, file);
    const uint64_t header_size = header.size();
    writer.Write(&header_size, sizeof(header_size));
    writer.Write(header.data(), header.size());
    for (const Item& item : order) {
      if (item.tensor->bytes() > 0) {
        writer.Write(item.tensor->raw_data(), static_cast<size_t>(item.tensor->bytes()));
      }
    }
    writer.Close();
  });
}

}  // namespace lathe
