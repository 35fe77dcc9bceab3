#include "lathe/data/tokenizers/models/word_cache.h"

#include <atomic>
#include <memory>

namespace lathe {
namespace {

constexpr int kLogNumEntries = 14;

uint64_t Load(const char* from, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, from, size);
  return value;
}

// Returns a hash of at most 32 bytes: a sum of products of its words, which may overlap.
uint64_t Hash(std::string_view word) {
  const char* const data = word.data();
  const size_t size = word.size();
  uint64_t a = 0, b = 0;
  if (size >= 8) {
    a = Load(data, 8);
    b = Load(data + size - 8, 8);
    if (size > 16) {
      a += Load(data + 8, 8) * 0xA0761D6478BD642Fu;
      b ^= Load(data + size - 16, 8) * 0xE7037ED1A0B428DBu;
    }
  } else if (size >= 4) {
    a = Load(data, 4);
    b = Load(data + size - 4, 4);
  } else if (size > 0) {
    a = static_cast<unsigned char>(data[0]) | Load(data + size / 2, 1) << 8;
    b = Load(data + size - 1, 1);
  }
  const auto product =
      static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15u) * ((b + size) ^ 0xD6E8FEB86659FD93u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

std::atomic<uint32_t> next_serial{1};

}  // namespace

WordCache::WordCache() : serial_(next_serial.fetch_add(1)) {}

WordCache::Entry& WordCache::EntryOf(std::string_view word) const {
  thread_local std::unique_ptr<Entry[]> entries;
  if (entries == nullptr) {
    entries = std::make_unique<Entry[]>(size_t{1} << kLogNumEntries);
  }
  const uint64_t hash = Hash(word) + serial_ * 0x9E3779B97F4A7C15u;
  return entries[hash * 0x9E3779B97F4A7C15u >> (64 - kLogNumEntries)];
}

}  // namespace lathe
