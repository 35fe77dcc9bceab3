// A program that uses nothing of Lathe but its tokenizers. It writes a tokenizer's file, loads it,
// and fails unless a text gets the ids that it should.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "core/tensor.h"  // the program's own
#include "lathe/data/tokenizers/tokenizer.h"

constexpr const char* kTokenizer = R"({
  "added_tokens": [],
  "normalizer": {"type": "Lowercase"},
  "pre_tokenizer": {"type": "Whitespace"},
  "post_processor": null,
  "model": {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": {"[UNK]": 0, "[PAD]": 1, "good": 2, "film": 3, "##s": 4}
  }
})";

int main() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("embedding_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "tokenizer.json") << kTokenizer;
  const auto tokenizer = lathe::LoadTokenizer(folder.string());
  const std::vector<int32_t> ids = tokenizer->Encode("Good films").input_ids;
  std::filesystem::remove_all(folder);
  std::cout << "tokenize:";
  for (const int32_t id : ids) std::cout << " " << id;
  std::cout << std::endl;
  return ids == std::vector<int32_t>{2, 3, 4} ? 0 : 1;
}
