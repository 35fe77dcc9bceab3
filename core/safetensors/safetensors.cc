#include "lathe/core/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "lathe/core/base/file.h"
#include "lathe/core/base/json_nesting.h"
#include "lathe/core/safetensors/safetensors_header.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit
constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

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

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // the address may have any alignment
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

// Returns false if a value does not fit.
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

// Calls `body(T{})` with the C++ type of an integer dtype of the file; BOOL counts as one. Returns
// false for other dtypes.
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

// A shard's name is appended to the folder's, so it must not lead out of the folder.
void CheckShardName(const std::string& shard, const std::string& index) {
  const bool has_separator = shard.find_first_of("/\\") != std::string::npos;
  if (has_separator || !shard.ends_with(".safetensors")) {
    throw BrokenSafetensors(index,
                            "\"" + shard + "\" must be the name of a .safetensors file beside it");
  }
}

}  // namespace

struct SafetensorsReader::Impl {
  // The place of a file's tensors in memory. A file is mapped once, however many tensors it has.
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

  // Maps and checks one file. Returns its tensors without adding them to `entries`.
  std::map<std::string, SafetensorsEntry> Open(const std::string& file) {
    auto mapped = std::make_shared<MappedFile>(file);
    if (mapped->size() < 8) {
      throw BrokenSafetensors(file, "is too short for a safetensors file (" +
                                        std::to_string(mapped->size()) + " bytes)");
    }
    const uint64_t header_size = Load<uint64_t>(mapped->data());
    if (header_size > kMaxHeader) {
      throw BrokenSafetensors(file, "its header claims " + std::to_string(header_size) +
                                        " bytes, which is more than the format allows");
    }
    if (8 + header_size > mapped->size()) {
      throw BrokenSafetensors(file, "its header has " + std::to_string(header_size) +
                                        " bytes but the file has " +
                                        std::to_string(mapped->size()));
    }
    const std::string_view text(mapped->data() + 8, header_size);
    auto result =
        ParseSafetensorsHeader(text, static_cast<int64_t>(mapped->size() - 8 - header_size), file);
    files[file] = {std::move(mapped), 8 + header_size};
    return result;
  }

  void OpenShards(const std::string& index, const std::filesystem::path& dir) {
    json parsed;
    const std::string text = ReadFile(index);
    CheckJsonNesting(text, index);
    try {
      parsed = json::parse(text);
    } catch (const json::exception& e) {
      throw BrokenSafetensors(index, std::string("is not JSON: ") + WithoutTag(e.what()));
    }
    if (!parsed.is_object() || !parsed.contains("weight_map") ||
        !parsed["weight_map"].is_object()) {
      throw BrokenSafetensors(index, "\"weight_map\" must be an object");
    }
    std::map<std::string, std::string> shard_of;
    std::set<std::string> shards;
    for (const auto& [name, value] : parsed["weight_map"].items()) {
      if (!value.is_string()) {
        throw BrokenSafetensors(
            index, "\"weight_map\": the value of \"" + name + "\" must be a file name");
      }
      shard_of[name] = value.get<std::string>();
      CheckShardName(shard_of[name], index);
      shards.insert(shard_of[name]);
    }
    for (const std::string& shard : shards) {
      const std::string file = (dir / shard).string();
      if (!std::filesystem::exists(file)) {
        throw NotFound(file + ": the file is missing, though " + index + " lists it",
                       "download or copy all shards of the checkpoint");
      }
      for (auto& [name, entry] : Open(file)) {
        const auto listed = shard_of.find(name);
        if (listed != shard_of.end() && listed->second != shard) {
          continue;  // the index decides between copies
        }
        if (!entries.emplace(name, entry).second) {
          throw BrokenSafetensors(file, name, "is also in " + entries[name].file);
        }
      }
    }
    for (const auto& [name, shard] : shard_of) {
      if (entries.count(name) == 0) {
        throw BrokenSafetensors((dir / shard).string(), name,
                                "the file lacks it, though " + index + " lists it");
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
  if (!out.device().is_cpu()) {
    Tensor read = Tensor::Empty(out.shape(), out.dtype());
    Read(name, read);
    return out.CopyFrom(read);
  }
  const char* bytes = impl_->Bytes(entry);
  const int64_t n = out.numel();
  out.impl()->storage->BumpVersion();
  if (FindSafetensorsDType(entry.dtype)->dtype == out.dtype() && out.dtype() != DType::kBool) {
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
    throw InvalidArgument(
        where + "has dtype " + entry.dtype + ", which can't be read as " + ToString(out.dtype()),
        "save the model's weights as float32, float16 or bfloat16");
  }
  if (!fits) {
    throw InvalidArgument(where + "has values that " + ToString(out.dtype()) + " can't hold");
  }
}

Tensor SafetensorsReader::Read(const std::string& name) const {
  const SafetensorsEntry& entry = impl_->Find(name);
  const std::optional<DType> dtype = FindSafetensorsDType(entry.dtype)->dtype;
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
    int dtype_index;
    const std::string* name;
    const Tensor* tensor;
  };
  std::vector<Item> order;
  std::set<std::string> names = {"__metadata__"};  // reserved by the format
  for (const auto& [name, tensor] : tensors) {
    Check(tensor.allocated(), "WriteSafetensors", "tensor \"", name, "\" has no values");
    Check(names.insert(name).second, "WriteSafetensors", "the name \"", name, "\" is taken");
    order.push_back({SafetensorsDTypeIndex(tensor.dtype()), &name, &tensor});
  }
  // Wide types come first, so that every tensor is aligned as its type needs.
  std::sort(order.begin(), order.end(), [](const Item& a, const Item& b) {
    return a.dtype_index != b.dtype_index ? a.dtype_index > b.dtype_index : *a.name < *b.name;
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
    header += "," + quoted + R"(:{"dtype":")" + SafetensorsDTypeName(item.dtype_index) +
              R"(","shape":)" + dims.dump() + R"(,"data_offsets":[)" + std::to_string(offset) +
              "," + std::to_string(end) + "]}";
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
        const Tensor on_host = item.tensor->To(Device{});
        writer.Write(on_host.raw_data(), static_cast<size_t>(on_host.bytes()));
      }
    }
    writer.Close();
  });
}

}  // namespace lathe
