// Everything that a run needs, loaded and checked before the first step: data, labels, tokenizer,
// model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// One file, tokenised.
struct TaskData {
  std::string path;
  std::shared_ptr<const TokenizedDataset> dataset;
};

struct Task {
  TextColumns text_columns;
  LabelSet labels = LabelSet::Regression();
  std::vector<std::string> label_names;  // as the model has them; LABEL_0 for regression
  std::shared_ptr<Tokenizer> tokenizer;
  // With several processes: of the tokenizer's files, by name, wherever the tokenizer is.
  std::map<std::string, uint64_t> tokenizer_digests;
  std::shared_ptr<SequenceClassifier> model;
  int64_t max_length = 0;            // texts are cut to so many tokens
  TaskData train, validation, test;  // without a dataset if not asked for
  std::vector<std::string> notes;    // for people: what differs from what they may expect
};

// On each machine one process reads and tokenises, while the others wait, and they get the data
// from it; all load the model. The tokenizer is there where the data was read.
Task LoadTask(const FinetuneArguments& options, Accelerator& accelerator);

// The one that the options name.
std::shared_ptr<Tokenizer> LoadTokenizer(const FinetuneArguments& options);

// A model's readable problem type for a kind of labels, as config.json has it.
std::string ProblemType(LabelKind kind);

// What the labels of these files mean, in the order of the model's outputs. `train` and
// `validation` may be null. With training data its labels count (in the config's order if they are
// the same names), else the config's. Throws if there are more labels than --num_labels.
LabelSet DecideLabels(const TextTable* train, const TextTable* validation,
                      const PretrainedConfig& config, const FinetuneArguments& options);

}  // namespace lathe
