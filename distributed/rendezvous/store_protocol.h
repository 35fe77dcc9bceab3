// The messages between the store's server and its clients.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/distributed/rendezvous/store.h"

namespace lathe::store_protocol {

// A message is a header, a key and a value, in the byte order of x86. Client and server are of one
// build; a sender of another magic number is not Lathe's.
inline constexpr uint32_t kMagic = 0x4c544831;  // "LTH1"

// kOk and kOtherJob are replies, which have no key; all others are requests. kGet and kAwait have a
// list of keys as their value. The reply to kGet is a list of the values of the first keys, as many
// as fit. That to kAwait has an empty text in place of each value.
enum class Kind : uint32_t { kOk = 1, kOtherJob, kHello, kSet, kGet, kAwait, kAdd, kBye };
struct Header {
  uint32_t magic = kMagic;
  Kind kind;
  uint32_t key_size, value_size;
  int64_t number;  // milliseconds to wait; kAdd: the summand, and in its reply the sum
};

inline void AppendMessage(std::string& messages, Kind kind, std::string_view key,
                          std::string_view value, int64_t number = 0) {
  const Header header = {.kind = kind,
                         .key_size = static_cast<uint32_t>(key.size()),
                         .value_size = static_cast<uint32_t>(value.size()),
                         .number = number};
  messages.append(reinterpret_cast<const char*>(&header), sizeof header).append(key).append(value);
}

// A list of texts is the size of each, 4 bytes, followed by its bytes; kMissing if it is missing.
inline constexpr uint32_t kMissing = UINT32_MAX;
inline constexpr size_t kSizeBytes = sizeof(uint32_t);

inline void AppendText(std::string& list, const std::optional<std::string_view>& text) {
  const uint32_t size = text ? static_cast<uint32_t>(text->size()) : kMissing;
  list.append(reinterpret_cast<const char*>(&size), sizeof size).append(text.value_or(""));
}

// Returns nullopt if the bytes are no list.
inline std::optional<std::vector<std::optional<std::string>>> ParseList(std::string_view bytes) {
  std::vector<std::optional<std::string>> texts;
  while (!bytes.empty()) {
    uint32_t size = 0;
    if (bytes.size() < kSizeBytes) return std::nullopt;
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(kSizeBytes);
    if (size == kMissing) {
      texts.emplace_back();
      continue;
    }
    if (size > bytes.size()) return std::nullopt;
    texts.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return texts;
}

// The longest value of a reply: a list that holds one value of the longest size.
inline constexpr size_t kLongestReply = Store::kLongestValue + kSizeBytes;

}  // namespace lathe::store_protocol
