#include "lathe/core/trackers/event_file.h"

#include <absl/strings/str_format.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "lathe/core/trackers/crc32c.h"

namespace lathe {
namespace {

template <typename Number>
std::string LittleEndian(Number number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>((number >> (8 * i)) & 0xFF);
  return bytes;
}

// Builds a message of Protocol Buffers, field by field. See the page "Encoding" of their
// documentation.
class Message {
 public:
  Message& Varint(int field, uint64_t value) {
    Key(field, 0);
    Base128(value);
    return *this;
  }
  Message& Double(int field, double value) {
    Key(field, 1);
    bytes_ += LittleEndian(std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& Float(int field, float value) {
    Key(field, 5);
    bytes_ += LittleEndian(std::bit_cast<uint32_t>(value));
    return *this;
  }
  // A text, or a message that is a part of this one.
  Message& Bytes(int field, std::string_view bytes) {
    Key(field, 2);
    Base128(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  Message& Bytes(int field, const Message& part) { return Bytes(field, part.bytes()); }
  const std::string& bytes() const { return bytes_; }

 private:
  void Key(int field, int wire_type) { Base128(static_cast<uint64_t>(field << 3 | wire_type)); }
  void Base128(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

constexpr int kFloatType = 1, kStringType = 7;  // of DataType

// A tensor of one element: its type, its shape [1] and, by `add`, the element.
Message OneElement(int type) {
  const Message dimension = Message().Varint(1, 1);
  return Message().Varint(1, static_cast<uint64_t>(type)).Bytes(2, Message().Bytes(2, dimension));
}

// The metadata by which one of TensorBoard's plugins knows its values.
Message PluginMetadata(std::string_view plugin, const Message& content) {
  Message data;
  data.Bytes(1, plugin);
  if (!content.bytes().empty()) data.Bytes(2, content);
  return Message().Bytes(1, data);
}

// A value of the plugin for hyperparameters. What it says lies in its metadata. Its tensor is a
// stand-in of one zero, as that of TensorBoard's own writers is.
std::string HparamsValue(std::string_view tag, int field, const Message& part) {
  const Message stand_in = OneElement(kFloatType).Bytes(5, LittleEndian(uint32_t{0}));
  return Message()
      .Bytes(1, tag)
      .Bytes(8, stand_in)
      .Bytes(9, PluginMetadata("hparams", Message().Bytes(field, part)))
      .bytes();
}

// A google.protobuf.Value.
Message ValueOf(const nlohmann::json& value) {
  if (value.is_boolean()) return Message().Varint(4, value.get<bool>() ? 1 : 0);
  if (value.is_number()) return Message().Double(2, value.get<double>());
  return Message().Bytes(3, value.get_ref<const std::string&>());
}

}  // namespace

std::string EventFileName(int64_t seconds, const std::string& host, int64_t process,
                          int64_t number) {
  return absl::StrFormat("events.out.tfevents.%010d.%s.%d.%d", seconds, host, process, number);
}

std::string EventRecord(std::string_view event) {
  std::string record = LittleEndian(uint64_t{event.size()});
  record += LittleEndian(MaskedCrc32c(record));
  record += event;
  record += LittleEndian(MaskedCrc32c(event));
  return record;
}

std::string VersionEvent(double wall_time) {
  return Message().Double(1, wall_time).Bytes(3, "brain.Event:2").bytes();
}

std::string SummaryEvent(double wall_time, int64_t step, const std::vector<std::string>& values) {
  Message summary;
  for (const std::string& value : values) summary.Bytes(1, value);
  Message event;
  event.Double(1, wall_time);
  if (step != 0) event.Varint(2, static_cast<uint64_t>(step));
  return event.Bytes(5, summary).bytes();
}

std::string ScalarValue(std::string_view tag, double value) {
  return Message().Bytes(1, tag).Float(2, static_cast<float>(value)).bytes();
}

std::string TextValue(std::string_view tag, std::string_view text) {
  return Message()
      .Bytes(1, std::string(tag) + "/text_summary")
      .Bytes(8, OneElement(kStringType).Bytes(8, text))
      .Bytes(9, PluginMetadata("text", {}))
      .bytes();
}

std::string HyperparametersValue(const nlohmann::json& hyperparameters, double start_time) {
  Message info;
  for (const auto& [name, value] : hyperparameters.items()) {
    if (!value.is_boolean() && !value.is_number() && !value.is_string()) continue;
    info.Bytes(1, Message().Bytes(1, name).Bytes(2, ValueOf(value)));
  }
  info.Double(5, start_time);
  return HparamsValue("_hparams_/session_start_info", 3, info);
}

std::string HyperparametersEndValue(double end_time) {
  constexpr uint64_t kSuccess = 1;
  return HparamsValue("_hparams_/session_end_info", 4,
                      Message().Varint(1, kSuccess).Double(2, end_time));
}

}  // namespace lathe
