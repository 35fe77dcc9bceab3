#include "lathe/data/tokenizers/models/sentencepiece_model.h"

#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/models/sentencepiece_library.h"
#include "lathe/data/utf8.h"

namespace lathe {
namespace {

constexpr const char* kDamagedHint =
    "the file is damaged or of another kind; take it from the model's source again";

// Reads a protocol buffer's fields one after another.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint64_t number = 0;
    uint64_t integer = 0;    // varint and fixed32
    std::string_view bytes;  // length-delimited
  };
  // Returns the next field, or nullopt at the end and after an error.
  std::optional<Field> Next() {
    if (bytes_.empty() || !ok_) {
      return std::nullopt;
    }
    const uint64_t tag = Varint();
    Field field{tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0:
        field.integer = Varint();
        break;
      case 1:
        Take(8);
        break;
      case 2:
        field.bytes = Take(Varint());
        break;
      case 5: {
        const std::string_view four = Take(4);
        uint32_t value = 0;
        if (ok_) std::memcpy(&value, four.data(), sizeof(value));
        field.integer = value;
        break;
      }
      default:
        ok_ = false;
    }
    return ok_ ? std::optional(field) : std::nullopt;
  }
  bool ok() const { return ok_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) {
        break;
      }
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    ok_ = false;
    return 0;
  }
  std::string_view Take(uint64_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

class SentencePieceModel : public SubwordModel {
 public:
  SentencePieceModel(const std::string& bytes, SentencePieceIdMapping ids)
      : library_(bytes), ids_(std::move(ids)) {
    std::vector<std::string> tokens = ids_.first_tokens;
    tokens.resize(library_.NumPieces() + ids_.offset);
    for (size_t i = ids_.first_tokens.size(); i < tokens.size(); ++i) {
      tokens[i] = library_.IdToPiece(static_cast<int>(i) - ids_.offset);
    }
    vocabulary_ = Vocabulary(std::move(tokens));
  }

  void Encode(std::string_view word, std::vector<int32_t>* ids) const override try {
    for (const std::string& piece : library_.Encode(word)) {
      const size_t n = piece.size();
      if (ids_.split_digit_comma && n > 1 && piece[n - 1] == ',' && piece[n - 2] >= '0' &&
          piece[n - 2] <= '9') {
        EncodeBeforeComma(piece, ids);
        Append(",", ids);
      } else {
        Append(piece, ids);
      }
    }
  } catch (const std::runtime_error& error) {
    throw DataLoss(error.what(), kDamagedHint);
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  static constexpr std::string_view kSpace = "▁";

  void Append(const std::string& piece, std::vector<int32_t>* ids) const {
    const int id = library_.PieceToId(piece);
    ids->push_back(library_.IsUnknown(id) ? ids_.unk_id : id + ids_.offset);
  }

  void EncodeBeforeComma(const std::string& piece, std::vector<int32_t>* ids) const {
    std::string number = piece.substr(0, piece.size() - 1);
    const bool starts_word = number.starts_with(kSpace);
    for (size_t pos; (pos = number.find(kSpace)) != std::string::npos;) {
      number.erase(pos, kSpace.size());
    }
    std::vector<std::string> parts = library_.Encode(number);
    for (size_t i = 0; i < parts.size(); ++i) {
      // The library starts a new word here, but the text does not.
      if (i == 0 && !starts_word && parts[0].starts_with(kSpace)) {
        parts[0].erase(0, kSpace.size());
      }
      if (!parts[i].empty()) {
        Append(parts[i], ids);
      }
    }
  }

  SentencePieceLibrary library_;
  SentencePieceIdMapping ids_;
  Vocabulary vocabulary_;
};

}  // namespace

SentencePieceModelInfo ParseSentencePieceModel(const std::string& bytes, const std::string& path) {
  SentencePieceModelInfo info;
  bool ok = true;
  const auto for_fields = [&ok](std::string_view message, auto&& on_field) {
    WireReader reader(message);
    while (const auto field = reader.Next()) {
      on_field(*field);
    }
    ok = ok && reader.ok();
  };
  for_fields(bytes, [&](const WireReader::Field& field) {
    if (field.number == 1) {
      SentencePieceModelInfo::Piece piece;
      for_fields(field.bytes, [&](const WireReader::Field& part) {
        if (part.number == 1) {
          piece.text = part.bytes;
        } else if (part.number == 2) {
          const auto bits = static_cast<uint32_t>(part.integer);
          std::memcpy(&piece.score, &bits, sizeof(bits));
        } else if (part.number == 3) {
          piece.type = static_cast<SentencePieceModelInfo::PieceType>(part.integer);
        }
      });
      info.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      for_fields(field.bytes, [&](const WireReader::Field& part) {
        if (part.number == 3) {
          info.is_unigram = part.integer == 1;
        }
      });
    } else if (field.number == 3) {
      for_fields(field.bytes, [&](const WireReader::Field& part) {
        // An empty one leaves the one before it, as the library does with a field of another type.
        if (part.number == 2 && !part.bytes.empty()) {
          info.precompiled_charsmap = part.bytes;
        }
      });
    }
  });
  if (!ok || info.pieces.empty()) {
    throw DataLoss(path + ": not a SentencePiece model", kDamagedHint);
  }
  for (size_t id = 0; id < info.pieces.size(); ++id) {
    if (ValidateUtf8(info.pieces[id].text) != std::string_view::npos) {
      throw DataLoss(path + ": piece " + std::to_string(id) + " is not valid UTF-8", kDamagedHint);
    }
  }
  return info;
}

std::unique_ptr<SubwordModel> MakeSentencePieceModel(const std::string& bytes,
                                                     const std::string& path,
                                                     SentencePieceIdMapping ids) {
  try {
    return std::make_unique<SentencePieceModel>(bytes, std::move(ids));
  } catch (const std::runtime_error& error) {
    throw DataLoss(path + ": " + error.what(), kDamagedHint);
  }
}

}  // namespace lathe
