// Whether the tokenizer and the data fit the model. Hints of errors name options.
#pragma once

#include <string>
#include <vector>

#include "lathe/data/datasets/dataset_file.h"
#include "lathe/data/tokenizers/tokenizer.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// Throws as CheckVocabularySize does, or adds its note.
void CheckVocabulary(const Tokenizer& tokenizer, const PretrainedConfig& config,
                     const FinetuneArguments& options, std::vector<std::string>& notes);

// Returns how many tokens a text may have at most.
int64_t LongestText(const Tokenizer& tokenizer, const SequenceClassifier& model);

// Throws, with file and line, if the model can't take a row's number of tokens, their types or ids.
// `table` holds the text of the rows, which must be in memory.
void CheckSequences(const TextTable& table, const TokenizedDataset& dataset,
                    const Tokenizer& tokenizer, const SequenceClassifier& model,
                    const FinetuneArguments& options);

// Returns true if CheckSequences would find nothing in the rows.
bool FitsModel(const DatasetExtent& extent, const Tokenizer& tokenizer,
               const SequenceClassifier& model);

}  // namespace lathe
