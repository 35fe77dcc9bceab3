// SentencePieceLibrary: wraps the SentencePiece library and hides its header. That header declares
// absl::string_view itself, so no file that includes Abseil can include it. This header includes
// neither. It reports errors as std::runtime_error: the text says what failed, but not where in the
// library's sources.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

// Thread-safe once constructed.
class SentencePieceLibrary {
 public:
  // `model` holds the bytes of a .model file.
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
