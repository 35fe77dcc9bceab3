// A SentencePiece .model file: read by the library for encoding, and taken apart for a
// tokenizer.json.
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
// if `bytes` is no such message.
SentencePieceModelInfo ParseSentencePieceModel(const std::string& bytes, const std::string& path);

// How the ids of a model family differ from SentencePiece's own.
struct SentencePieceIds {
  std::vector<std::string> first_tokens;  // come before the model's pieces
  int32_t offset = 0;                     // added to a piece's own id
  int32_t unk_id = 0;                     // what SentencePiece's unknown becomes
  bool split_digit_comma = false;         // ALBERT: `9,` as a piece is cut before the comma
};

// Encodes with the SentencePiece library; the whole text is one word. Throws DataLoss if the
// library can't load `bytes`.
std::unique_ptr<SubwordModel> MakeSentencePieceModel(const std::string& bytes,
                                                     const std::string& path, SentencePieceIds ids);

}  // namespace lathe
