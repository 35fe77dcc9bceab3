// Loads and checks everything that a run needs before the first step: data, labels, tokenizer,
// model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/rows/source_rows.h"
#include "lathe/train/rows/trained_columns.h"
#include "lathe/train/support/training_arguments.h"

namespace lathe {

// One tokenised file.
struct TaskData {
  std::string path;
  std::shared_ptr<const TokenizedDataset> dataset;
};

struct Task {
  FinetuneArguments options;  // as given, but with folders in place of the names of models
  std::map<std::string, std::string> hub_commits;  // of the models from a Hub, by their names
  TextColumns text_columns;
  TrainedColumns columns;  // text_columns and the label, as later commands need them
  LabelSet labels = LabelSet::Regression();
  std::vector<std::string> label_names;  // as the model has them; LABEL_0 for regression
  std::shared_ptr<Tokenizer> tokenizer;
  // With several ranks, a digest of each file of the tokenizer, by name. Ranks without the
  // tokenizer have the digests, too.
  std::map<std::string, uint64_t> tokenizer_digests;
  std::shared_ptr<SequenceClassifier> model;
  int64_t max_length = 0;            // texts are cut to this many tokens
  TaskData train, validation, test;  // without a dataset if it isn't needed
  // Where the texts of the validation data are. Only the process that has read them knows it, such
  // as the main process.
  std::optional<RowSource> validation_rows;
  std::vector<std::string> notes;  // for people: what may differ from what they expect
  // For people, without a training: which columns are read, where no option says so. Only the
  // process that has read the data has them, such as the main process.
  std::vector<std::string> column_notes;
  // For people, in lines: which parameters have fresh values, and what the model's file has beyond
  // them; "" if neither. A training that goes on has all values from its checkpoint instead.
  std::string weights_note;
};

// Loads the task. On each machine one rank reads and tokenises while the others wait, and passes
// the data on to them. All ranks load the model. Only those that read data have the tokenizer.
//
// `open` are the columns that become those of the training of model_name_or_path, as that model's
// folder remembers them (trained_columns.h). A task with do_train must have none.
Task LoadTask(const FinetuneArguments& options, Accelerator& accelerator,
              const OpenColumns& open = OpenColumns::None());
// Prints column_notes to standard error, one line each, if this is the main process.
void PrintColumnNotes(const Task& task, const Accelerator& accelerator);

// Loads the tokenizer that the options name, such as Task::options.
std::shared_ptr<Tokenizer> LoadTokenizer(const FinetuneArguments& options);

}  // namespace lathe
