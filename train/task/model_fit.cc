#include "lathe/train/task/model_fit.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/models/config/config.h"
#include "lathe/models/config/vocabulary_size.h"

namespace lathe {
namespace {

struct Limits {
  int64_t max_length, vocab_size;
  int64_t type_vocab_size;  // 0: the model has no token types and ignores them, as DeBERTa does
};

Limits LimitsOf(const SequenceClassifier& model, const Tokenizer& tokenizer) {
  return {.max_length = model.max_length(),
          .vocab_size = model.config().GetInt("vocab_size", tokenizer.vocab_size()),
          .type_vocab_size = model.config().GetInt("type_vocab_size", 2)};
}

// Says what to do about a tokenizer that doesn't fit the configuration. The hint names the options
// that chose the two; it is "" if both come from one folder.
std::string MismatchHint(const FinetuneArguments& options, const Tokenizer& tokenizer) {
  const std::string& model = options.model_name_or_path;
  const std::string size = std::to_string(tokenizer.vocab_size());
  if (options.config_overrides.find("vocab_size=") != std::string::npos) {
    return OptionName("config_overrides") + " sets vocab_size; leave it out or set it to " + size;
  }
  const std::string config = options.config_name.empty()
                                 ? OptionName("model_name_or_path") + " " + model
                                 : OptionName("config_name") + " " + options.config_name;
  const std::string resize =
      model.empty() ? ", or pass " + OptionName("config_overrides") + " vocab_size=" + size : "";
  if (!options.tokenizer_name.empty()) {
    return OptionName("tokenizer_name") + " " + options.tokenizer_name + " does not belong to " +
           config + "; name the folder of its own tokenizer" + resize;
  }
  if (options.config_name.empty() || model.empty()) return "";
  return config + " does not belong to " + OptionName("model_name_or_path") + " " + model +
         ", whose tokenizer is used; leave it out or pass " + OptionName("tokenizer_name");
}

}  // namespace

void CheckVocabulary(const Tokenizer& tokenizer, const PretrainedConfig& config,
                     const FinetuneArguments& options, std::vector<std::string>& notes) {
  const std::string hint = MismatchHint(options, tokenizer);
  const std::string note = hint.empty() ? CheckVocabularySize(tokenizer, config)
                                        : CheckVocabularySize(tokenizer, config, hint);
  if (!note.empty()) notes.push_back(note);
}

int64_t LongestText(const Tokenizer& tokenizer, const SequenceClassifier& model) {
  const int64_t limit = tokenizer.model_max_length();
  return limit > 0 ? std::min(limit, model.max_length()) : model.max_length();
}

bool FitsModel(const DatasetExtent& extent, const Tokenizer& tokenizer,
               const SequenceClassifier& model) {
  const auto [max_length, vocab_size, type_vocab_size] = LimitsOf(model, tokenizer);
  return extent.longest <= max_length && extent.largest_id < vocab_size &&
         (type_vocab_size <= 0 || extent.largest_type < type_vocab_size);
}

void CheckSequences(const TextTable& table, const TokenizedDataset& dataset,
                    const Tokenizer& tokenizer, const SequenceClassifier& model,
                    const FinetuneArguments& options) {
  const auto [limit, vocab_size, type_vocab_size] = LimitsOf(model, tokenizer);
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (dataset.length(i) > limit) {
      throw InvalidArgument(table.Where(i) + ": " + std::to_string(dataset.length(i)) +
                                " tokens, but the model's max_position_embeddings allows " +
                                std::to_string(limit),
                            "pass " + OptionName("max_seq_length") + " " + std::to_string(limit));
    }
    for (int64_t t = dataset.offsets[i]; t < dataset.offsets[i + 1]; ++t) {
      if (type_vocab_size > 0 && dataset.token_type_ids[t] >= type_vocab_size) {
        throw InvalidArgument(
            table.Where(i) +
                ": a second text needs two token types but the model's "
                "type_vocab_size is " +
                std::to_string(type_vocab_size),
            "name one column with " + OptionName("text_columns") + " or use another model");
      }
      if (const int32_t id = dataset.input_ids[t]; id < 0 || id >= vocab_size) {
        const std::string hint = MismatchHint(options, tokenizer);
        throw InvalidArgument(table.Where(i) + ": token \"" + tokenizer.IdToToken(id) +
                                  "\" has id " + std::to_string(id) +
                                  " but the model's vocab_size is " + std::to_string(vocab_size),
                              hint.empty() ? "use the tokenizer that belongs to the model" : hint);
      }
    }
  }
}

}  // namespace lathe
