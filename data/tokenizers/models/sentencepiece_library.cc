#include "lathe/data/tokenizers/models/sentencepiece_library.h"

#include <sentencepiece_processor.h>

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

SentencePieceLibrary::SentencePieceLibrary(const std::string& model)
    : impl_(std::make_unique<Impl>()) {
  ThrowUnlessOk(impl_->processor.LoadFromSerializedProto(model), "not a SentencePiece model");
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
