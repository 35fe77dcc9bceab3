#include "lathe/data/tokenizers/models/unigram.h"

#include <algorithm>
#include <limits>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/models/byte_tokens.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

// An unknown character's score is this much below that of the worst piece.
constexpr double kUnknownPenalty = 10.0;

Error NoPieceFor(std::string_view character) {
  return InvalidArgument(
      "the Unigram model has no piece for '" + std::string(character) + "' and no unk_id",
      "set unk_id to the id of an unknown token, or take the character out");
}

PieceTrie TrieOf(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> pieces;
  for (const std::string& token : vocabulary.tokens()) {
    pieces.emplace_back(token, static_cast<int32_t>(pieces.size()));
  }
  return PieceTrie(std::move(pieces));
}

}  // namespace

Unigram::Unigram(std::vector<std::pair<std::string, double>> pieces, std::optional<int32_t> unk_id,
                 bool byte_fallback)
    : unk_id_(unk_id.value_or(-1)) {
  Check(!unk_id || (*unk_id >= 0 && *unk_id < std::ssize(pieces)), "unigram", "unk_id is ", unk_id_,
        ", but the vocabulary has ", pieces.size(), " pieces");
  std::vector<std::string> tokens;
  double min_score = std::numeric_limits<double>::infinity();
  for (auto& [token, score] : pieces) {
    tokens.push_back(std::move(token));
    scores_.push_back(score);
    min_score = std::min(min_score, score);
  }
  unk_score_ = min_score - kUnknownPenalty;
  vocabulary_ = Vocabulary(std::move(tokens));
  trie_ = TrieOf(vocabulary_);
  if (byte_fallback) {
    byte_ids_ = ByteTokenIds(vocabulary_);
  }
}

// It is long because finding the best pieces and walking back along them share the table `best`.
void Unigram::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  // The best segmentation up to each byte offset.
  struct Best {
    double score = 0;
    int64_t begin = -1;  // where its last piece begins; -1: not reached
    int32_t id = 0;
  };
  static thread_local std::vector<Best> best;
  best.assign(word.size() + 1, Best{});
  const auto improves = [&](size_t end, double score) {
    return best[end].begin < 0 || score > best[end].score;
  };
  const auto relax = [&](size_t begin, size_t end, double score, int32_t id) {
    if (improves(end, score)) {
      best[end] = {score, static_cast<int64_t>(begin), id};
    }
  };
  for (size_t begin = 0; begin < word.size();) {
    const double score = best[begin].score;
    const size_t character = Utf8SequenceLength(word[begin]);
    bool has_single = false;
    uint32_t node = PieceTrie::kRoot;
    for (size_t end = begin; end < word.size();) {
      node = trie_.Child(node, static_cast<uint8_t>(word[end++]));
      if (node == PieceTrie::kRoot) {
        break;
      }
      if (const int32_t id = trie_.id(node); id >= 0) {
        relax(begin, end, score + scores_[id], id);
        has_single = has_single || end - begin == character;
      }
    }
    if (!has_single) {
      // `tokenizers` fails here, too, even if a longer piece would cover the character later.
      if (unk_id_ < 0 && improves(begin + character, score + unk_score_)) {
        throw NoPieceFor(word.substr(begin, character));
      }
      relax(begin, begin + character, score + unk_score_, unk_id_);
    }
    begin += character;
  }

  const size_t first = ids->size();
  for (size_t end = word.size(); end > 0;) {
    size_t begin = static_cast<size_t>(best[end].begin);
    int32_t id = best[end].id;
    if (id == unk_id_) {
      while (begin > 0 && best[begin].id == unk_id_) {
        begin = static_cast<size_t>(best[begin].begin);
      }
      // Fused unknowns are looked up once more: together they may be a piece.
      const std::string_view unknown = word.substr(begin, end - begin);
      id = vocabulary_.Find(unknown).value_or(unk_id_);
      if (id == unk_id_ && !byte_ids_.empty() && AppendByteTokens(byte_ids_, unknown, ids)) {
        // The ids are reversed at the end.
        std::reverse(ids->end() - std::ssize(unknown), ids->end());
        end = begin;
        continue;
      }
    }
    ids->push_back(id);
    end = begin;
  }
  std::reverse(ids->begin() + static_cast<int64_t>(first), ids->end());
  constexpr size_t kMostKept = 1 << 16;
  if (best.capacity() > kMostKept) best = std::vector<Best>();
}

}  // namespace lathe
