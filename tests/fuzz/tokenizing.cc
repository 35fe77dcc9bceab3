#include "lathe/tests/fuzz/tokenizing.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "lathe/data/tokenizers/load_tokenizer.h"
#include "lathe/tests/fuzz/fuzzer.h"

namespace lathe::fuzz {

void MakeAndUseTokenizer(std::map<std::string, std::string> files, const std::string& model_type) {
  UseTokenizer(*TokenizerFromContents("tokenizer", std::move(files), model_type));
}

void UseTokenizer(const Tokenizer& tokenizer) {
  // White space, accents, marks, a character of four bytes, and a word that WordPiece takes for
  // unknown because of its length.
  static const std::string kTexts[] = {"a", "Hello, world's  [MASK] 9,",
                                       "\t\n caf\xC3\xA9 e\xCC\x81 \xE6\x97\xA5 \xF0\x9F\x98\x80",
                                       std::string(200, 'a')};
  constexpr int64_t kLongest = 16;
  const auto encode = [&] {
    for (const std::string& text : kTexts) tokenizer.Encode(text);
    tokenizer.Encode(kTexts[1], kTexts[2], kLongest);
  };
  const auto look_up = [&] {
    const int64_t last = std::min<int64_t>(tokenizer.vocab_size(), 8);
    for (int32_t id = 0; id < last; ++id) tokenizer.TokenToId(tokenizer.IdToToken(id));
  };
  CallAll({encode, look_up});
}

}  // namespace lathe::fuzz
