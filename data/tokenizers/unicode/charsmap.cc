#include "lathe/data/tokenizers/unicode/charsmap.h"

#include <absl/status/status.h>
#include <absl/strings/escaping.h>
#include <unicode/brkiter.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/unicode/newer_characters.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

// These return the fields of a unit of the double array (Darts-clone's layout).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

// Break iterators keep state, so each thread has its own.
icu::BreakIterator& GraphemeIterator() {
  thread_local std::unique_ptr<icu::BreakIterator> iterator;
  if (iterator == nullptr) {
    UErrorCode status = U_ZERO_ERROR;
    iterator.reset(icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
    if (U_FAILURE(status)) {
      iterator.reset();
      throw Error(absl::StatusCode::kInternal,
                  std::string("[charsmap] ICU has no grapheme clusters: ") + u_errorName(status));
    }
  }
  return *iterator;
}

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  if (blob.empty()) {
    return;
  }
  uint32_t trie_bytes = 0;
  Check(blob.size() >= sizeof(trie_bytes), "charsmap", "the precompiled map is cut short");
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  Check(trie_bytes % sizeof(uint32_t) == 0 && trie_bytes <= blob.size(), "charsmap",
        "the precompiled map says that its trie has ", trie_bytes, " bytes, but ", blob.size(),
        " follow");
  trie_.resize(trie_bytes / sizeof(uint32_t));
  if (trie_bytes > 0) std::memcpy(trie_.data(), blob.data(), trie_bytes);
  replacements_ = blob.substr(trie_bytes);
}

void Charsmap::CheckTrie() const {
  constexpr int kMostBytes = 32;  // of a key, whose prefixes the library keeps in as many places
  Check(!trie_.empty(), "charsmap", "the precompiled map has an empty trie");
  std::vector<size_t> nodes = {0};  // those of one depth
  for (int depth = 0; !nodes.empty(); ++depth) {
    Check(depth <= kMostBytes, "charsmap", "the precompiled map has a key of more than ",
          kMostBytes, " bytes");
    std::vector<size_t> next;
    for (const size_t node : nodes) {
      const size_t first = node ^ Offset(trie_[node]);
      Check((first | 0xFF) < trie_.size(), "charsmap", "the precompiled map's trie is damaged");
      Check(!HasLeaf(trie_[node]) || Value(trie_[first]) < replacements_.size(), "charsmap",
            "the precompiled map has a replacement outside of its texts");
      for (uint32_t byte = 0; byte <= 0xFF; ++byte) {
        if (Label(trie_[first ^ byte]) == byte) next.push_back(first ^ byte);
      }
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    nodes = std::move(next);
  }
}

std::optional<std::string_view> Charsmap::Lookup(std::string_view chunk) const {
  if (trie_.empty()) {
    return std::nullopt;
  }
  size_t node = Offset(trie_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || Label(trie_[node]) != byte) {
      return std::nullopt;
    }
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (HasLeaf(unit)) {
      if (node >= trie_.size() || Value(trie_[node]) >= replacements_.size()) {
        return std::nullopt;
      }
      return std::string_view(replacements_.c_str() + Value(trie_[node]));
    }
  }
  return std::nullopt;
}

void Charsmap::AppendCluster(std::string_view cluster, std::string* out) const {
  if (cluster.size() < 6) {
    if (const auto replacement = Lookup(cluster)) {
      *out += *replacement;
      return;
    }
  }
  for (size_t pos = 0; pos < cluster.size();) {
    const std::string_view part = cluster.substr(pos, Utf8SequenceLength(cluster[pos]));
    *out += Lookup(part).value_or(part);
    pos += part.size();
  }
}

std::string Charsmap::Normalize(std::string_view text) const {
  // No text grows so much, but a damaged map could ask for more than all memory.
  const size_t most = (size_t{1} << 16) + 32 * text.size();
  const auto append = [&](std::string_view cluster, std::string* to) {
    AppendCluster(cluster, to);
    Check(to->size() <= most, "charsmap", "the precompiled map makes a text longer than ", most,
          " bytes");
  };
  std::string out;
  out.reserve(text.size());
  // In ASCII, CR LF is the only cluster of two characters.
  if (IsAscii(text) && text.find('\r') == std::string_view::npos) {
    for (size_t i = 0; i < text.size(); ++i) {
      append(text.substr(i, 1), &out);
    }
    return out;
  }
  const std::optional<std::string> older = WithOlderMarks(text);  // in as many bytes
  const std::string_view clusters = older ? std::string_view(*older) : text;
  UErrorCode status = U_ZERO_ERROR;
  UText utext = UTEXT_INITIALIZER;
  utext_openUTF8(&utext, clusters.data(), static_cast<int64_t>(clusters.size()), &status);
  icu::BreakIterator& graphemes = GraphemeIterator();
  graphemes.setText(&utext, status);
  if (U_FAILURE(status)) {
    utext_close(&utext);
    throw Error(absl::StatusCode::kInternal,
                std::string("[charsmap] ICU failed: ") + u_errorName(status));
  }
  int32_t begin = graphemes.first();
  for (int32_t end = graphemes.next(); end != icu::BreakIterator::DONE; end = graphemes.next()) {
    append(text.substr(begin, end - begin), &out);
    begin = end;
  }
  utext_close(&utext);
  return out;
}

std::string DecodeBase64(std::string_view text) {
  std::string bytes;
  Check(absl::Base64Unescape(absl::string_view(text.data(), text.size()), &bytes), "base64",
        "the text is not base64");
  return bytes;
}

std::string EncodeBase64(std::string_view bytes) {
  return absl::Base64Escape(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace lathe
