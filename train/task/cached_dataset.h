// CachedDataset: a split of the data, tokenized, in a folder, so that the next start tokenizes
// nothing and the data may exceed memory.
//
// The file's name is a digest of all that its contents follow from. These are the data files'
// contents, the tokenizer's files and options, what the labels mean, and the program. A file is
// made once, by one process, from blocks of rows (make_once.h, dataset_file.h). Nobody takes a part
// of one for the whole.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/models/pretrained.h"
#include "lathe/train/rows/data_split.h"
#include "lathe/train/rows/text_marks.h"
#include "lathe/train/rows/validation_rule.h"
#include "lathe/train/support/training_arguments.h"
#include "lathe/train/task/labels.h"

namespace lathe {

// Splits whose files have fewer bytes are tokenized in about a second. They are only kept in a
// folder that --dataset_cache names.
inline constexpr int64_t kSmallestCachedFile = int64_t{16} << 20;

// Returns the folder for the data of this split; "" if they are to be kept in memory.
std::string DatasetCacheFolder(const DataSplit& split, const FinetuneArguments& options);

// What a run knows about the rows of a split before it looks at them.
struct KnownAboutRows {
  std::optional<LabelSet> labels = {};  // what the labels mean; nullopt: the file decides
  // The labels of the validation data, if the training data decide what labels mean.
  std::optional<DistinctLabels> validation_labels = {};
  std::optional<TextColumns> columns = {};  // which columns are texts; nullopt: the file decides
  // Which training rows validate, if the split's files are divided; nullopt: the file decides.
  std::optional<ValidationRule> rule = {};
};

class CachedDataset {
 public:
  // Computes the file's name, for which it reads the data files once. Keeps references to `options`
  // and `tokenizer`. `max_length` may be 0, which stands for as many tokens as the model takes.
  CachedDataset(const std::string& folder, const DataSplit& split, const PretrainedConfig& config,
                const FinetuneArguments& options, const Tokenizer& tokenizer, int64_t max_length,
                const KnownAboutRows& known = {});

  // Finds out what isn't known yet, without a row in memory. If there is no file for the data, this
  // parses the data files. Throws the errors that are found in it.
  void Prepare(const PretrainedConfig& config);
  const LabelSet& labels() const { return *known_.labels; }       // valid after Prepare
  const TextColumns& columns() const { return *known_.columns; }  // valid after Prepare

  // Valid after Prepare, if the files are divided.
  const std::optional<ValidationRule>& rule() const { return known_.rule; }

  // Returns the dataset, whose rows lie in the file. Makes the file if there is none, or if the
  // model cannot take its rows, which is an error that names the row. Returns nullopt if the file
  // can't be written or read.
  std::optional<TokenizedDataset> Load(const SequenceClassifier& model);

  const std::vector<std::string>& notes() const { return notes_; }  // for people
  const TextMarks& marks() const { return marks_; }                 // of the rows; valid after Load

 private:
  // Opens the file. Returns false if there is none that is whole.
  bool Open();
  void Scan(const PretrainedConfig& config);
  // Adds a note about the open file, and one about rows that aren't in it.
  void AddNote(const std::string& note);
  void Make(const std::string& draft, const SequenceClassifier& model);

  const FinetuneArguments& options_;
  const Tokenizer& tokenizer_;
  DataSplit split_;
  int64_t max_length_;
  KnownAboutRows known_;
  // The size and time of each data file, as it was at first.
  std::vector<std::pair<int64_t, int64_t>> file_states_;
  std::string key_;   // JSON
  std::string path_;  // of the file
  std::vector<std::string> notes_;
  TextMarks marks_;
  std::optional<TokenizedDataset> dataset_;
  bool damaged_ = false;
  std::exception_ptr data_error_;  // in a data file, while the cache's is made
};

// Returns the note for people about a split that isn't in the cache, and why.
std::string NoteOnRowsInMemory(const DataSplit& split, const std::string& why);

}  // namespace lathe
