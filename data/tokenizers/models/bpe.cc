#include "lathe/data/tokenizers/models/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/models/byte_tokens.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

constexpr char32_t kNumFirstSymbols = 0x800;
// Words of more symbols are merged with a heap, shorter ones by looking at all pairs.
constexpr size_t kMaxShortWord = 64;

// Merges the symbols in place and returns how many are left.
size_t MergeShort(const MergeTable& merges, int32_t* symbols, size_t count) {
  uint32_t ranks[kMaxShortWord];  // of the pair that begins at each symbol
  int32_t merged[kMaxShortWord];
  const auto look_up = [&](size_t i) {
    const MergeTable::Merge& merge = merges.Find(symbols[i], symbols[i + 1]);
    ranks[i] = merge.rank;
    merged[i] = merge.id;
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    look_up(i);
  }
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == MergeTable::kNoRank) {
      break;
    }
    symbols[best] = merged[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    if (best > 0) {
      look_up(best - 1);
    }
    if (best + 1 < count) {
      look_up(best);
    }
  }
  return count;
}

// Does the same in O(n log n): a linked list of symbols, and a heap of possible merges.
size_t MergeLong(const MergeTable& merges, int32_t* symbols, size_t count) {
  constexpr uint32_t kNone = 0xFFFFFFFFu;
  struct Candidate {
    uint32_t rank, position;
    int32_t id;
    bool operator<(const Candidate& other) const {  // the largest is merged first
      return std::pair(rank, position) > std::pair(other.rank, other.position);
    }
  };
  std::vector<uint32_t> previous(count), next(count);
  std::priority_queue<Candidate> queue;
  const auto add = [&](uint32_t position) {
    if (next[position] == kNone) {
      return;
    }
    const MergeTable::Merge& merge = merges.Find(symbols[position], symbols[next[position]]);
    if (merge.rank != MergeTable::kNoRank) {
      queue.push({merge.rank, position, merge.id});
    }
  };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == count ? kNone : i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) {
    add(i);
  }
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const uint32_t at = top.position;
    if (symbols[at] == kGone || next[at] == kNone) {
      continue;
    }
    const uint32_t right = next[at];
    // The pair may have changed since it was put in.
    if (merges.Find(symbols[at], symbols[right]).id != top.id) {
      continue;
    }
    symbols[at] = top.id;
    symbols[right] = kGone;
    next[at] = next[right];
    if (next[at] != kNone) {
      previous[next[at]] = at;
    }
    if (previous[at] != kNone) {
      add(previous[at]);
    }
    add(at);
  }
  return static_cast<size_t>(std::remove(symbols, symbols + count, kGone) - symbols);
}

}  // namespace

MergeTable::MergeTable(size_t count) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * count, 2));
  table_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::Insert(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const Merge& found = Find(left, right);
  table_[static_cast<size_t>(&found - table_.data())] = {PairOf(left, right), rank, id};
}

Bpe::Bpe(std::vector<std::string> tokens, const Merges& merges, BpeOptions options)
    : vocabulary_(std::move(tokens)), options_(std::move(options)), merges_(merges.size()) {
  const size_t prefix_size = options_.continuing_subword_prefix.size();
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string &left = merges[rank].first, &right = merges[rank].second;
    const auto require = [&](const std::string& token) {
      const auto id = vocabulary_.Find(token);
      Check(id.has_value(), "bpe", "merge ", rank + 1, ", '", left, " ", right, "', needs '", token,
            "', which is not in the vocabulary");
      return *id;
    };
    Check(right.size() >= prefix_size, "bpe", "merge ", rank + 1, ", '", left, " ", right,
          "': its second part is shorter than the prefix '", options_.continuing_subword_prefix,
          "'");
    const int32_t left_id = require(left);
    const int32_t right_id = require(right);
    const int32_t merged_id = require(left + right.substr(prefix_size));
    merges_.Insert(left_id, right_id, static_cast<uint32_t>(rank), merged_id);
  }
  first_symbols_.assign(kNumFirstSymbols, -1);
  for (size_t id = 0; id < vocabulary_.tokens().size(); ++id) {
    const std::string& token = vocabulary_.tokens()[id];
    if (!token.empty() && token.size() <= 2 && Utf8SequenceLength(token[0]) == token.size()) {
      size_t pos = 0;
      first_symbols_[DecodeUtf8(token, &pos)] = *vocabulary_.Find(token);
    }
  }
  if (options_.byte_fallback) {
    byte_symbols_ = ByteTokenIds(vocabulary_);
  }
  if (options_.unk_token) {
    const auto id = vocabulary_.Find(*options_.unk_token);
    Check(id.has_value(), "bpe", "the vocabulary has no unknown token '", *options_.unk_token, "'");
    unk_id_ = *id;
  }
}

int32_t Bpe::SymbolOf(std::string_view character, bool is_first, bool is_last) const {
  const bool has_prefix = !is_first && !options_.continuing_subword_prefix.empty();
  const bool has_suffix = is_last && !options_.end_of_word_suffix.empty();
  if (!has_prefix && !has_suffix) {
    if (character.size() <= 2) {
      size_t pos = 0;
      return first_symbols_[DecodeUtf8(character, &pos)];
    }
    return vocabulary_.Find(character).value_or(-1);
  }
  std::string token = has_prefix ? options_.continuing_subword_prefix : "";
  token += character;
  token += has_suffix ? options_.end_of_word_suffix : "";
  return vocabulary_.Find(token).value_or(-1);
}

void Bpe::AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const {
  bool unknown_waits = false;
  const auto add_waiting = [&] {
    if (unknown_waits) {
      symbols->push_back(unk_id_);
    }
    unknown_waits = false;
  };
  for (size_t pos = 0; pos < word.size();) {
    const size_t size = Utf8SequenceLength(word[pos]);
    const std::string_view character = word.substr(pos, size);
    const bool is_first = pos == 0;
    pos += size;
    const bool is_last = pos == word.size();
    if (const int32_t id = SymbolOf(character, is_first, is_last); id >= 0) {
      add_waiting();
      symbols->push_back(id);
      continue;
    }
    if (options_.byte_fallback) {
      // `tokenizers` looks up the bytes of the prefix and the suffix, too. It puts these tokens
      // before an unknown token that is still to be added.
      std::string token = is_first ? "" : options_.continuing_subword_prefix;
      token += character;
      token += is_last ? options_.end_of_word_suffix : "";
      if (AppendByteTokens(byte_symbols_, token, symbols)) {
        continue;
      }
    }
    if (unk_id_ >= 0) {
      if (!options_.fuse_unk) {
        add_waiting();
      }
      unknown_waits = true;
    }
  }
  add_waiting();
}

void Bpe::EncodeUncached(std::string_view word, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.Find(word)) {
      ids->push_back(*id);
      return;
    }
  }
  const size_t before = ids->size();
  AppendSymbols(word, ids);
  const size_t count = ids->size() - before;
  const auto merge = count <= kMaxShortWord ? MergeShort : MergeLong;
  ids->resize(before + merge(merges_, ids->data() + before, count));
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) {
    return;
  }
  cache_.Append(word, ids, [this](std::string_view uncached, std::vector<int32_t>* to) {
    EncodeUncached(uncached, to);
  });
}

}  // namespace lathe
