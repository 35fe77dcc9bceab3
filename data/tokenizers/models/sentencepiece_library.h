// The SentencePiece library behind a wall: its header declares absl::string_view itself, which no
// file that includes Abseil can bear. So this one includes neither, and reports errors as
// std::runtime_error, whose text says what failed but not where in the library's sources.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Thread-safe once made.
class SentencePieceLibrary {
 public:
  // `model`: the bytes of a .model file.
  explicit SentencePieceLibrary(const std::string& model);
  ~SentencePieceLibrary();

  std::vector<std::string> Encode(std::string_view text) const;
  int NumPieces() const;
  std::string IdToPiece(int id) const;
  int PieceToId(const std::string& piece) const;
  bool IsUnknown(int id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lathe
