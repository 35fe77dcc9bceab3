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

// A message is a header and two texts, in the byte order of x86. Client and server are of one
// build; a sender of another magic number is not Lathe's.
inline constexpr uint32_t kMagic = 0x4c544831;  // "LTH1"

// kGet and kAwait have a list of keys as their value. The reply to kGet is a list of the values of
// the first keys, as many as fit. That to kAwait has an empty text in place of each value.
enum class Op : uint32_t { kHello = 1, kSet, kGet, kAwait, kAdd, kBye };
struct Request {
  uint32_t magic = kMagic;
  Op op;
  uint32_t key_size, value_size;
  int64_t number;  // milliseconds to wait; kAdd: the summand
};
enum class Status : uint32_t { kOk = 1, kOtherJob };
struct Reply {
  uint32_t magic = kMagic;
  Status status;
  int64_t number;
  uint32_t value_size, unused = 0;
};

// A list of texts is the size of each, 4 bytes, followed by its bytes. A text that is missing has
// the size kMissing.
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
