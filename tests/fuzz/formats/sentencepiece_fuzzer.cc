// A SentencePiece model: as ALBERT's tokenizer with the library, and converted to a tokenizer.json.
#include <memory>
#include <string>

#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/tokenizing.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  const std::string path = ScratchFile("spiece.model", input);
  CallAll({[&] {
             MakeAndUseTokenizer({{"spiece.model", std::string(input)}}, "albert");
           },
           [&] { UseTokenizer(*AlbertTokenizerFromSentencePiece(path, true, false, 0)); }});
}
