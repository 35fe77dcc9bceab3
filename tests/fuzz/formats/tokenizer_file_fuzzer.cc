// One file of a tokenizer, LATHE_FUZZ_FILE, beside sound other ones. LATHE_FUZZ_MODEL_TYPE is the
// model_type of the folder's config.json.
#include <map>
#include <string>

#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/tokenizing.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  static const std::map<std::string, std::string> kOthers = {
#if defined(LATHE_FUZZ_BESIDE_VOCAB_TXT)
    {"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nhello\nworld\n##s\n,\n"},
#elif defined(LATHE_FUZZ_BESIDE_MERGES)
    {"merges.txt", "#version: 0.2\nh e\nl l\n"},
#elif defined(LATHE_FUZZ_BESIDE_VOCAB_JSON)
    {"vocab.json",
     R"({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "h": 4, "e": 5, "l": 6, "he": 7, "ll": 8,
           "hell": 9, "<mask>": 10})"},
#endif
  };
  std::map<std::string, std::string> files = kOthers;
  files[LATHE_FUZZ_FILE] = input;
  MakeAndUseTokenizer(files, LATHE_FUZZ_MODEL_TYPE);
}
