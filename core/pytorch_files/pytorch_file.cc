#include "lathe/core/pytorch_files/pytorch_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/pytorch_files/crc32.h"
#include "lathe/core/pytorch_files/unpickler.h"
#include "lathe/core/pytorch_files/zip_archive.h"
#include "lathe/core/weight_files/shard_index.h"

namespace lathe {
namespace {

// Files before PyTorch 1.6 begin with a pickle of the number 0x1950a86a20f9469cfc6c: its protocol,
// from 4 on a frame, and this.
constexpr std::string_view kOldMagic("\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8P\x19.", 13);
// The same number by protocols 0 and 1.
constexpr std::string_view kMagicAsText = "L119547037146038801333356L\n.";
constexpr int64_t kOldVersion = 1001;

constexpr size_t kWorthThreads = 1 << 20;  // bytes

// Returns the tensors of a state dict. `bytes_of(name, storage)` returns the bytes of the storage
// in which the tensor of this name lies, or throws.
template <typename BytesOf>
StoredArrays ArraysOf(const std::vector<std::pair<std::string, const PickledTensor*>>& tensors,
                      const std::shared_ptr<const MappedFile>& memory, const std::string& file,
                      BytesOf&& bytes_of) {
  StoredArrays arrays;
  for (const auto& [name, tensor] : tensors) {
    const int64_t item = SizeOfElement(tensor->storage.dtype);
    const std::string_view bytes = bytes_of(name, tensor->storage);
    const auto available = static_cast<int64_t>(bytes.size()) / item;
    if (tensor->storage.offset > available ||
        tensor->storage.size > available - tensor->storage.offset) {
      throw BrokenWeights(file, "tensor \"" + name + "\": its storage of " +
                                    std::to_string(tensor->storage.size) + " elements has only " +
                                    std::to_string(bytes.size()) + " bytes in the file");
    }
    const char* const data = bytes.data() + (tensor->storage.offset + tensor->offset) * item;
    const bool is_new = arrays
                            .emplace(name, StoredArray{.dtype = tensor->storage.dtype,
                                                       .shape = tensor->shape,
                                                       .file = file,
                                                       .data = data,
                                                       .strides = tensor->strides,
                                                       .memory = memory})
                            .second;
    if (!is_new) throw BrokenWeights(file, "has tensor \"" + name + "\" twice");
  }
  return arrays;
}

Error BigEndian(const std::string& file) {
  return InvalidArgument(file + ": was written by a big-endian machine",
                         "save it again by PyTorch on this one");
}

// --- the zip form: FOLDER/data.pkl, and FOLDER/data/KEY for each storage ---

// Returns the name of the only member that ends with /data.pkl, without that ending.
std::string FolderOf(const std::map<std::string, ZipMember>& members, const std::string& file) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string folder;
  for (const auto& [name, member] : members) {
    if (!name.ends_with(kPickle)) continue;
    if (!folder.empty()) throw BrokenWeights(file, "has two members " + std::string(kPickle));
    folder = name.substr(0, name.size() - kPickle.size());
  }
  if (folder.empty()) {
    throw InvalidArgument(file + ": is a zip file but was not written by torch.save",
                          "it has no member data.pkl");
  }
  return folder;
}

using Members = std::map<std::string_view, const ZipMember*>;

// Compares the members with their CRC-32.
void CheckSums(const Members& members, const std::string& file) {
  const std::vector<std::pair<std::string_view, const ZipMember*>> all(members.begin(),
                                                                       members.end());
  size_t size = 0;
  for (const auto& [name, member] : all) size += member->bytes.size();
  std::vector<char> differs(all.size(), 0);
#pragma omp parallel for schedule(dynamic) if (size >= kWorthThreads)
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string_view bytes = all[i].second->bytes;
    differs[i] = Crc32(bytes) != all[i].second->crc32;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (differs[i] != 0) {
      throw BrokenWeights(file, "\"" + std::string(all[i].first) +
                                    "\" in it has another CRC-32 than the file says");
    }
  }
}

StoredArrays ReadZip(const std::shared_ptr<const MappedFile>& memory, const std::string& file) {
  const std::map<std::string, ZipMember> members = ReadZipArchive(memory->bytes(), file);
  const std::string folder = FolderOf(members, file), data = folder + "/data/";
  const ZipMember& pickle = members.at(folder + "/data.pkl");
  const bool has_sums = pickle.crc32 != 0;  // a file without sums has 0 in place of each
  // A training checkpoint has storages of the optimizer, too. They are not even read.
  Members others, used;
  for (const auto& [name, member] : members) {
    if (!name.starts_with(data)) others.emplace(name, &member);
  }
  if (has_sums) CheckSums(others, file);
  const auto order = members.find(folder + "/byteorder");
  if (order != members.end() && order->second.bytes != "little") {
    throw BigEndian(file);
  }
  Unpickler unpickler(pickle.bytes, file);
  const auto tensors = unpickler.TensorsOf(unpickler.Load());
  StoredArrays arrays =
      ArraysOf(tensors, memory, file, [&](const std::string& name, const PickledStorage& storage) {
        const auto found = members.find(data + storage.key);
        if (found == members.end()) {
          throw BrokenWeights(file, "tensor \"" + name + "\": the file lacks \"" + folder +
                                        "/data/" + storage.key + "\"");
        }
        const std::string_view bytes = found->second.bytes;
        if (static_cast<int64_t>(bytes.size()) != storage.size * SizeOfElement(storage.dtype)) {
          throw BrokenWeights(file, "tensor \"" + name + "\": its storage of " +
                                        std::to_string(storage.size) + " elements has " +
                                        std::to_string(bytes.size()) + " bytes");
        }
        used.emplace(found->first, &found->second);
        return bytes;
      });
  if (has_sums) CheckSums(used, file);
  return arrays;
}

// --- the form before PyTorch 1.6. It has four pickles: a number, a version, what the machine is
// like, and the state dict. Then come the list of storages and, for each, its number of elements
// and the elements.

bool IsOldForm(std::string_view bytes) {
  constexpr size_t kProtocolSize = 2, kFrameSize = 9;
  if (bytes.size() < kProtocolSize || bytes[0] != '\x80' || bytes[1] < 2 || bytes[1] > 5) {
    return false;
  }
  const bool has_frame = bytes.substr(kProtocolSize).starts_with('\x95');
  bytes.remove_prefix(kProtocolSize);
  if (has_frame) bytes.remove_prefix(std::min(kFrameSize, bytes.size()));
  return bytes.starts_with(kOldMagic);
}

// `machine` is a dict with "little_endian".
void CheckByteOrder(const PickledValue& machine, const std::string& file) {
  for (size_t i = 0; i + 1 < machine.items.size(); i += 2) {
    if (machine.items[i]->text == "little_endian" && machine.items[i + 1]->integer == 0) {
      throw BigEndian(file);
    }
  }
}

// Returns the storages' bytes by key. `sizes` holds the size of an element of each.
std::map<std::string_view, std::string_view> OldStorages(
    const PickledValue& keys, const std::map<std::string_view, int64_t>& sizes,
    std::string_view bytes, const std::string& file) {
  std::map<std::string_view, std::string_view> storages;
  for (const PickledValue* const key : keys.items) {
    const auto size = sizes.find(key->text);
    if (size == sizes.end()) throw BrokenWeights(file, "lists a storage that no tensor uses");
    int64_t count = 0;
    if (bytes.size() < sizeof count) throw BrokenWeights(file, "is cut off");
    std::memcpy(&count, bytes.data(), sizeof count);
    bytes.remove_prefix(sizeof count);
    if (count < 0 || count > static_cast<int64_t>(bytes.size()) / size->second) {
      throw BrokenWeights(file, "is cut off: a storage has " + std::to_string(count) +
                                    " elements but " + std::to_string(bytes.size()) +
                                    " bytes are left");
    }
    const auto taken = static_cast<size_t>(count * size->second);
    storages[key->text] = bytes.substr(0, taken);
    bytes.remove_prefix(taken);
  }
  if (!bytes.empty()) {
    throw BrokenWeights(file, std::to_string(bytes.size()) + " bytes follow the last storage");
  }
  return storages;
}

StoredArrays ReadOld(const std::shared_ptr<const MappedFile>& memory, const std::string& file) {
  Unpickler unpickler(memory->bytes(), file);
  unpickler.Load();  // the number
  const PickledValue& version = unpickler.Load();
  if (version.kind != PickledValue::Kind::kInteger || version.integer != kOldVersion) {
    throw InvalidArgument(file + ": has a version of torch.save's format that Lathe does not have",
                          "load it with torch.load and save it with torch.save");
  }
  CheckByteOrder(unpickler.Load(), file);
  const auto tensors = unpickler.TensorsOf(unpickler.Load());
  const PickledValue& keys = unpickler.Load();
  std::map<std::string_view, int64_t> sizes;
  for (const PickledStorage* const storage : unpickler.storages()) {
    const int64_t size = SizeOfElement(storage->dtype);
    if (sizes.emplace(storage->key, size).first->second != size) {
      throw BrokenWeights(file, "uses storage \"" + storage->key + "\" as two types");
    }
  }
  const auto storages =
      OldStorages(keys, sizes, memory->bytes().substr(unpickler.position()), file);
  return ArraysOf(tensors, memory, file,
                  [&](const std::string& name, const PickledStorage& storage) {
                    const auto found = storages.find(storage.key);
                    if (found == storages.end()) {
                      throw BrokenWeights(file, "tensor \"" + name + "\": its storage is missing");
                    }
                    return found->second;
                  });
}

}  // namespace

StoredArrays ReadPyTorchFile(const std::string& file) {
  const auto memory = std::make_shared<const MappedFile>(file);
  const std::string_view bytes = memory->bytes();
  if (IsZipArchive(bytes)) return ReadZip(memory, file);
  if (IsOldForm(bytes)) return ReadOld(memory, file);
  if (bytes.starts_with(kMagicAsText)) {
    throw InvalidArgument(
        file + ": was saved with pickle's protocol 0 or 1, and Lathe reads 2 to 5",
        "if you trust the file, load it in Python by torch.load(FILE, "
        "weights_only=False) and save its state dict by torch.save");
  }
  throw BrokenWeights(file, "was not written by torch.save, or is damaged");
}

StoredArrays ReadPyTorchShards(const std::string& index) {
  return ReadShards<StoredArray>(index, ".bin", ReadPyTorchFile);
}

}  // namespace lathe
