// What a tokenizer.json may hold, and the errors about what it may not.
#include <gtest/gtest.h>

#include <string>

#include "lathe/core/base/error.h"
#include "lathe/data/tokenizers/load_tokenizer.h"

namespace lathe {
namespace {

using namespace std::string_literals;

// `tokenizers` takes a model without unk_id, and refuses texts that need one.
TEST(TokenizerJsonTest, UnigramWithoutUnknownToken) {
  for (const char* unk_id : {"", R"("unk_id": null, )"}) {
    const auto tokenizer = TokenizerFromContents(
        "dir",
        {{"tokenizer.json", R"({"model": {"type": "Unigram", )"s + unk_id +
                                R"("vocab": [["a", -1], ["b", -2], ["ab", -2.5], ["é", -3]]}})"}},
        "");
    EXPECT_EQ(tokenizer->Encode("abéb").input_ids, (std::vector<int32_t>{2, 3, 1}));
    try {
      tokenizer->Encode("a", "b爱");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "dir/tokenizer.json: the Unigram model has no piece for '爱' and no unk_id");
      EXPECT_NE(error.hint(), "");
    }
  }
}

}  // namespace
}  // namespace lathe
