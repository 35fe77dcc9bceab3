// Reads a SentencePiece .model file: with the library for encoding, and field by field for
// conversion to a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lathe/data/tokenizers/models/subword_model.h"

namespace lathe {

struct SentencePieceModelInfo {
  enum class PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;
  std::string precompiled_charsmap;
  bool is_unigram = true;
};

// Reads the few fields of the ModelProto message that conversion needs. Throws DataLoss `path: ...`
// if `bytes` is not such a message.
SentencePieceModelInfo ParseSentencePieceModel(const std::string& bytes, const std::string& path);

// The differences between the ids of a model family and SentencePiece's own.
struct SentencePieceIdMapping {
  std::vector<std::string> first_tokens;  // the family's first tokens, before the model's pieces
  int32_t offset = 0;                     // added to a piece's own id
  int32_t unk_id = 0;                     // the id of a piece that SentencePiece doesn't know
  bool split_digit_comma = false;         // ALBERT: splits a piece such as `9,` before its comma
};

// Makes a model that encodes with the SentencePiece library and takes the whole text as one word.
// Throws DataLoss if the library can't load `bytes`.
std::unique_ptr<SubwordModel> MakeSentencePieceModel(const std::string& bytes,
                                                     const std::string& path,
                                                     SentencePieceIdMapping ids);

}  // namespace lathe
