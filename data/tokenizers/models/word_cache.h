// WordCache: remembers the ids of short words, one cache for each thread. Text repeats its words,
// so most of them are found here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace lathe {

// The functions are thread-safe. All caches of a thread share their memory, 1 MB. It is allocated
// at the thread's first word, and never grows.
class WordCache {
 public:
  WordCache();
  WordCache(const WordCache&) = delete;
  WordCache& operator=(const WordCache&) = delete;

  // Appends the ids of `word` to `ids`. If they are not remembered, calls `encode(word, ids)`,
  // which appends them and must always give the same.
  template <typename Encode>
  void Append(std::string_view word, std::vector<int32_t>* ids, Encode encode) const {
    if (word.size() > kMaxWordSize) {
      encode(word, ids);
      return;
    }
    Entry& entry = EntryOf(word);
    if (entry.owner == serial_ && entry.word_size == word.size() &&
        std::memcmp(entry.word, word.data(), word.size()) == 0) {
      ids->insert(ids->end(), entry.ids, entry.ids + entry.num_ids);
      return;
    }
    const size_t before = ids->size();
    encode(word, ids);
    const size_t num_ids = ids->size() - before;
    if (num_ids > kMaxIds) {
      return;
    }
    entry.owner = serial_;
    entry.word_size = static_cast<uint8_t>(word.size());
    entry.num_ids = static_cast<uint8_t>(num_ids);
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids->data() + before, num_ids * sizeof(int32_t));
  }

 private:
  static constexpr size_t kMaxWordSize = 26;
  static constexpr size_t kMaxIds = 8;
  struct alignas(64) Entry {
    uint32_t owner = 0;  // the cache's serial_; 0: the entry is empty
    uint8_t word_size = 0;
    uint8_t num_ids = 0;
    char word[kMaxWordSize] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 64);

  // The only entry that may hold `word`.
  Entry& EntryOf(std::string_view word) const;

  uint32_t serial_;
};

}  // namespace lathe
