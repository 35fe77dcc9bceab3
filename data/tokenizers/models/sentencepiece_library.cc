#include "lathe/data/tokenizers/models/sentencepiece_library.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <new>
#include <stdexcept>

namespace lathe {

struct SentencePieceLibrary::Impl {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

void ThrowUnlessOk(const sentencepiece::util::Status& status, const char* what) {
  if (!status.ok()) {
    throw std::runtime_error(what);
  }
}

}  // namespace

// The library reports some damage by an exception of its own: a piece that begins with NUL, for
// one.
SentencePieceLibrary::SentencePieceLibrary(const std::string& model) try
    : impl_(std::make_unique<Impl>()) {
  ThrowUnlessOk(impl_->processor.LoadFromSerializedProto(model), "not a SentencePiece model");
} catch (const std::bad_alloc&) {
  throw;
} catch (const std::exception&) {
  throw std::runtime_error("not a SentencePiece model");
}

SentencePieceLibrary::~SentencePieceLibrary() = default;

std::vector<std::string> SentencePieceLibrary::Encode(std::string_view text) const {
  std::vector<std::string> pieces;
  ThrowUnlessOk(impl_->processor.Encode(text, &pieces), "SentencePiece could not encode a text");
  return pieces;
}

int SentencePieceLibrary::NumPieces() const { return impl_->processor.GetPieceSize(); }

std::string SentencePieceLibrary::IdToPiece(int id) const { return impl_->processor.IdToPiece(id); }

int SentencePieceLibrary::PieceToId(const std::string& piece) const {
  return impl_->processor.PieceToId(piece);
}

bool SentencePieceLibrary::IsUnknown(int id) const { return impl_->processor.IsUnknown(id); }

}  // namespace lathe
