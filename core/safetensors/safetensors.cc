#include "lathe/core/safetensors/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "lathe/core/base/file.h"
#include "lathe/core/safetensors/safetensors_header.h"
#include "lathe/core/weight_files/mapped_file.h"
#include "lathe/core/weight_files/shard_index.h"

namespace lathe {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit
constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // the address may have any alignment
  return value;
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

  StoredArray ArrayOf(const SafetensorsEntry& entry) const {
    const Located& located = files.at(entry.file);
    return {.dtype = entry.dtype,
            .shape = entry.shape,
            .file = entry.file,
            .data = located.mapped->data() + located.buffer + entry.begin,
            .memory = located.mapped};
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
    throw NotFound(dir + ": has neither " + kFileName + " nor " + kIndexName,
                   "name a folder that save_pretrained wrote");
  }
  SafetensorsReader reader;
  reader.impl_->entries = ReadShards<SafetensorsEntry>(
      (path / kIndexName).string(), ".safetensors",
      [&](const std::string& file) { return reader.impl_->Open(file); });
  return reader;
}

const std::map<std::string, SafetensorsEntry>& SafetensorsReader::entries() const {
  return impl_->entries;
}

StoredArrays SafetensorsReader::arrays() const {
  StoredArrays arrays;
  for (const auto& [name, entry] : entries()) arrays.emplace(name, impl_->ArrayOf(entry));
  return arrays;
}

void SafetensorsReader::Read(const std::string& name, Tensor& out) const {
  ReadStoredArray(name, impl_->ArrayOf(impl_->Find(name)), out);
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
