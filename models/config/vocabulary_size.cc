#include "lathe/models/config/vocabulary_size.h"

#include <absl/strings/str_cat.h>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

bool IsPadded(int64_t num_tokens, int64_t vocab_size) {
  for (const int64_t multiple : {8, 16, 32, 64, 128}) {
    if (vocab_size == (num_tokens + multiple - 1) / multiple * multiple) return true;
  }
  return false;
}

// A list of lines may be cut off unnoticed. JSON and SentencePiece models can't be.
bool IsListOfLines(const std::string& file) { return file.ends_with(".txt"); }

}  // namespace

std::string CheckVocabularySize(const Tokenizer& tokenizer, const PretrainedConfig& config,
                                const std::string& hint) {
  const int64_t num_tokens = tokenizer.vocab_size();
  const int64_t vocab_size = config.GetInt("vocab_size", num_tokens, 1);
  if (num_tokens >= vocab_size) return "";
  const std::string& file = tokenizer.vocab_file();
  const std::string what =
      absl::StrCat(file, file.empty() ? "" : ": ", "the tokenizer has ", num_tokens,
                   " tokens but vocab_size is ", vocab_size, " in ", config.path());
  const bool is_near = (vocab_size - num_tokens) * 100 < vocab_size;
  if (!is_near || (IsListOfLines(file) && !IsPadded(num_tokens, vocab_size)))
    throw InvalidArgument(what, hint);
  return what + "; Lathe takes the surplus rows for padding";
}

}  // namespace lathe
