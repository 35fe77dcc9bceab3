// SentencePiece's precompiled character map, applied as the Rust library `tokenizers` applies it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Thread-safe once made.
class Charsmap {
 public:
  // `blob`: the `precompiled_charsmap` of a SentencePiece model: the trie's size in bytes, a
  // double-array trie from a sequence to an offset, NUL-terminated replacements. Throws
  // InvalidArgument if it is broken.
  explicit Charsmap(std::string_view blob);

  // Grapheme clusters below six bytes are looked up whole, the rest character by character. This
  // differs from SentencePiece's longest prefix on rare input only, but a pretrained tokenizer.json
  // counts on it.
  std::string Normalize(std::string_view text) const;

 private:
  // The replacement of the shortest prefix of `chunk` that has one.
  std::optional<std::string_view> Lookup(std::string_view chunk) const;
  void AppendCluster(std::string_view cluster, std::string* out) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

// Bytes of base64 text; throws InvalidArgument on anything else.
std::string DecodeBase64(std::string_view text);
std::string EncodeBase64(std::string_view bytes);

}  // namespace lathe
