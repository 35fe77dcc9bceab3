#include "lathe/train/task/load_data.h"

#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/task/data_files.h"
#include "lathe/train/task/labels.h"
#include "lathe/train/task/model_fit.h"
#include "lathe/train/task/read_table.h"
#include "lathe/train/task/sequence_length.h"

namespace lathe {
namespace {

void CheckColumns(const Task& task, const std::string& path, const FinetuneArguments& options) {
  const TextColumns& columns = task.text_columns;
  CheckMaxSeqLength(*task.tokenizer, !columns.second.empty(), options.max_seq_length);
  for (const std::string& name : {columns.first, columns.second}) {
    if (name == options.label_column && (options.do_train || options.do_eval)) {
      throw InvalidArgument(path + ": column \"" + name + "\" is the label and cannot be a text",
                            "name other columns with --text_columns or --label_column");
    }
  }
}

}  // namespace

DataLoading::DataLoading(Task& task, const PretrainedConfig& config,
                         const FinetuneArguments& options, std::function<void()> load_tokenizer)
    : task_(task),
      config_(config),
      options_(options),
      load_tokenizer_(std::move(load_tokenizer)),
      train_{.split = TrainingSplit(options), .data = &task.train},
      validation_{.split = ValidationSplit(options), .data = &task.validation},
      test_{.split = TestSplit(options), .data = &task.test} {}

DataLoading::Part& DataLoading::First() {
  return train_.split.wanted ? train_ : validation_.split.wanted ? validation_ : test_;
}

// Looks for the part's rows in the cache. If there can't be a cache, the rows are for memory.
void DataLoading::OpenCache(Part& part, const KnownAboutRows& known) {
  load_tokenizer_();
  try {
    part.cache = std::make_unique<CachedDataset>(part.folder, part.split, config_, options_,
                                                 *task_.tokenizer, task_.max_length, known);
  } catch (const Error& e) {  // such as a library that is not installed
    task_.notes.push_back(NoteOnRowsInMemory(part.split, e.message()));
    part.folder.clear();
    return;
  }
  part.cache->Prepare(config_);
}

LabelSet DataLoading::DecideTheLabels() {
  if (First().cache != nullptr) return First().cache->labels();
  DistinctLabels distinct(options_.label_column);
  if (!train_.tables.empty()) {
    for (const TextTable& table : train_.tables) distinct.Add(table);
    return DecideLabels(&distinct, nullptr, config_, options_);
  }
  if (validation_.tables.empty() || !validation_.tables[0].has(options_.label_column))
    return DecideLabels(nullptr, nullptr, config_, options_);
  for (const TextTable& table : validation_.tables) {
    if (table.rows() > 0) distinct.Add(table);
  }
  return DecideLabels(nullptr, &distinct, config_, options_);
}

void DataLoading::Read() {
  if (!First().split.wanted) throw UsageError("no file of data is named", "pass --train_file FILE");
  for (Part* part : Parts()) part->folder = DatasetCacheFolder(part->split, options_);
  Part& first = First();
  if (!first.folder.empty()) {
    KnownAboutRows known;
    if (&first == &test_) known.labels = DecideLabels(nullptr, nullptr, config_, options_);
    OpenCache(first, known);
  }
  for (Part* part : Parts()) {
    if (!part->folder.empty()) continue;
    part->tables = ReadTables(part->split, options_);
    // The labels are those of the whole training data, as in run_glue, so their rows are cut only
    // afterwards.
    if (part != &train_) CutRows(part->tables, part->split.max_rows);
  }
  task_.labels = DecideTheLabels();
  CutRows(train_.tables, train_.split.max_rows);
}

// Tokenizes the rows in memory of a part. Lets go of the texts file by file.
TokenizedDataset DataLoading::TokenizeTables(Part& part) {
  TokenizedDataset all;
  for (TextTable& table : part.tables) {
    if (table.rows() == 0) continue;
    TokenizedDataset dataset =
        lathe::Tokenize(table, task_.text_columns, task_.labels, *task_.tokenizer,
                        {.max_length = task_.max_length,
                         .label_column = part.split.labelled ? options_.label_column : "",
                         .require_labels = part.split.labelled,
                         .num_threads = static_cast<int>(options_.num_threads)});
    CheckSequences(table, dataset, *task_.tokenizer, *task_.model, options_);
    if (all.size() == 0) {
      all = std::move(dataset);
    } else {
      all.Append(dataset);
    }
    table = {};
  }
  part.tables.clear();
  return all;
}

// Turns the rows of a part into a dataset, and lets go of the texts.
void DataLoading::TokenizePart(Part& part) {
  if (!part.split.wanted) return;
  if (!part.folder.empty() && part.cache == nullptr)
    OpenCache(part, {.labels = task_.labels, .columns = task_.text_columns});
  std::optional<TokenizedDataset> dataset;
  if (part.cache != nullptr) {
    dataset = part.cache->Load(*task_.model);
    task_.notes.insert(task_.notes.end(), part.cache->notes().begin(), part.cache->notes().end());
  }
  if (!dataset) {
    if (part.tables.empty()) {
      part.tables = ReadTables(part.split, options_);
      CutRows(part.tables, part.split.max_rows);
    }
    dataset = TokenizeTables(part);
  }
  *part.data = {NameOfFiles(part.split.files),
                std::make_shared<const TokenizedDataset>(std::move(*dataset))};
}

void DataLoading::Tokenize() {
  const Part& first = First();
  task_.text_columns =
      first.cache != nullptr ? first.cache->columns() : ChooseColumns(first.tables, options_);
  CheckColumns(task_, NameOfFiles(first.split.files), options_);
  for (Part* part : Parts()) TokenizePart(*part);
}

}  // namespace lathe
