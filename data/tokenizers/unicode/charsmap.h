// SentencePiece's precompiled character map, applied as the Rust library `tokenizers` does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Thread-safe once constructed.
class Charsmap {
 public:
  // `blob` is the `precompiled_charsmap` of a SentencePiece model. It holds the trie's size in
  // bytes, a double-array trie from a byte sequence to an offset, and NUL-terminated replacements.
  // Throws InvalidArgument if it is broken.
  explicit Charsmap(std::string_view blob);

  // Looks up a grapheme cluster of fewer than six bytes whole. Looks up longer clusters, and those
  // without a replacement, character by character. SentencePiece takes the longest prefix instead,
  // which differs on rare input only. But a pretrained tokenizer.json relies on this way.
  std::string Normalize(std::string_view text) const;

  // Throws InvalidArgument if the trie is empty, leads out of itself or of the replacements, or has
  // keys of more than 32 bytes. Normalize copes with that, but SentencePiece's library does not.
  void CheckTrie() const;

 private:
  // Returns the replacement of the shortest prefix of `chunk` that has one.
  std::optional<std::string_view> Lookup(std::string_view chunk) const;
  void AppendCluster(std::string_view cluster, std::string* out) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

// Returns the bytes of base64 text; throws InvalidArgument on anything else.
std::string DecodeBase64(std::string_view text);
std::string EncodeBase64(std::string_view bytes);

}  // namespace lathe
