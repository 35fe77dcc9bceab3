#include "lathe/core/pytorch_files/torch_save_testing.h"

#include <cstring>

#include "lathe/core/pytorch_files/crc32.h"

namespace lathe::torch_save {
namespace {

template <typename T>
std::string Number(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string Integers(const Sizes& sizes) {
  std::vector<std::string> items;
  for (const int64_t size : sizes) items.push_back(Integer(size));
  return Tuple(items);
}

std::string Concatenate(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

// The fields that a member's own header and the directory have alike.
std::string CommonHeader(const std::string& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  return Concatenate({Number<uint16_t>(0), Number<uint16_t>(0), Number<uint16_t>(0),
                      Number<uint16_t>(0), Number<uint16_t>(0), Number(Crc32(bytes)), Number(size),
                      Number(size)});
}

}  // namespace

std::string Text(const std::string& text) {
  return "X" + Number(static_cast<uint32_t>(text.size())) + text;
}

std::string Integer(int64_t number) { return "J" + Number(static_cast<int32_t>(number)); }

std::string Function(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string Tuple(const std::vector<std::string>& items) { return "(" + Concatenate(items) + "t"; }

std::string Storage(const std::string& type, const std::string& key, int64_t size,
                    const std::string& tail) {
  return Tuple({Text("storage"), Function("torch", type), Text(key), Text("cpu"), Integer(size),
                tail}) +
         "Q";
}

std::string TensorOf(const std::string& storage, int64_t offset, const Sizes& size,
                     const Sizes& strides, const std::string& tail) {
  const std::string hooks = Function("collections", "OrderedDict") + ")R";
  return Function("torch._utils", "_rebuild_tensor_v2") +
         Tuple({storage, Integer(offset), Integers(size), Integers(strides), "\x89", hooks, tail}) +
         "R";
}

std::string Parameter(const std::string& tensor) {
  return Function("torch._utils", "_rebuild_parameter") +
         Tuple({tensor, "\x88", Function("collections", "OrderedDict") + ")R"}) + "R";
}

std::string Dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string pairs;
  for (const auto& [key, value] : items) pairs += Text(key) + value;
  return Function("collections", "OrderedDict") + ")R(" + pairs + "u";
}

std::string Pickle(const std::string& value) { return "\x80\x02" + value + "."; }

std::string Zip(const Members& members) {
  std::string zip, directory;
  for (const auto& [name, bytes] : members) {
    const auto local = static_cast<uint32_t>(zip.size());
    const auto name_size = static_cast<uint16_t>(name.size());
    const std::string common = CommonHeader(bytes);
    zip += "PK\x03\x04" + common + Number(name_size) + Number<uint16_t>(0) + name + bytes;
    directory += "PK\x01\x02" + Number<uint16_t>(0) + common + Number(name_size) +
                 std::string(12, '\0') + Number(local) + name;
  }
  const auto count = static_cast<uint16_t>(members.size());
  const std::string end = "PK\x05\x06" + Number<uint32_t>(0) + Number(count) + Number(count) +
                          Number(static_cast<uint32_t>(directory.size())) +
                          Number(static_cast<uint32_t>(zip.size())) + Number<uint16_t>(0);
  return zip + directory + end;
}

std::string ZipForm(const std::string& pickle, const Members& storages) {
  Members members = {{"model/data.pkl", pickle}, {"model/byteorder", "little"}};
  for (const auto& [key, bytes] : storages) members.emplace_back("model/data/" + key, bytes);
  return Zip(members);
}

std::string OldForm(const std::string& pickle, const Members& storages, const Sizes& sizes) {
  const std::string magic("\x8a\x0al\xfc\x9c\x46\xf9\x20j\xa8P\x19", 12);
  const std::string machine = "}(" + Text("little_endian") + "\x88" + "u";
  std::string keys, bytes;
  for (size_t i = 0; i < storages.size(); ++i) {
    keys += Text(storages[i].first);
    bytes += Number(sizes[i]) + storages[i].second;
  }
  return Pickle(magic) + Pickle(Integer(1001)) + Pickle(machine) + pickle +
         Pickle("](" + keys + "e") + bytes;
}

}  // namespace lathe::torch_save
