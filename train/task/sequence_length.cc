#include "lathe/train/task/sequence_length.h"

#include <string>

#include "lathe/core/base/error.h"
#include "lathe/train/support/run_errors.h"

namespace lathe {

void CheckMaxSeqLength(const Tokenizer& tokenizer, bool pairs, int64_t max_seq_length) {
  const int64_t special = tokenizer.NumSpecialTokens(pairs);
  const int64_t least = special + (pairs ? 2 : 1);
  if (max_seq_length == 0 || max_seq_length >= least) return;
  throw UsageError(OptionName("max_seq_length") + " must be at least " + std::to_string(least) +
                   ", for " + std::to_string(special) + " special tokens and " +
                   (pairs ? "one of each text" : "one of the text") + ", but is " +
                   std::to_string(max_seq_length));
}

}  // namespace lathe
