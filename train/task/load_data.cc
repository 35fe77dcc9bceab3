#include "lathe/train/task/load_data.h"

#include <algorithm>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/train/rows/column_numbers.h"
#include "lathe/train/rows/data_files.h"
#include "lathe/train/rows/read_table.h"
#include "lathe/train/rows/text_columns.h"
#include "lathe/train/support/run_errors.h"
#include "lathe/train/task/labels.h"
#include "lathe/train/task/model_fit.h"
#include "lathe/train/task/sequence_length.h"

namespace lathe {
namespace {

void CheckColumns(const Task& task, const std::string& path, const FinetuneArguments& options) {
  const TextColumns& columns = task.text_columns;
  CheckMaxSeqLength(*task.tokenizer, !columns.second.empty(), options.max_seq_length);
  std::vector<std::string> names = {columns.first, columns.second};
  if (!options.text_column_names.empty()) names = options.text_column_names;
  const std::string texts =
      OptionName(options.text_column_names.empty() ? "text_columns" : "text_column_names");
  for (const std::string& name : names) {
    if (name == options.label_column && (options.do_train || options.do_eval)) {
      throw InvalidArgument(
          path + ": column \"" + name + "\" is the label and cannot be a text",
          "name other columns with " + texts + " or " + OptionName("label_column"));
    }
    if (!name.empty() && name == options.sample_weight_column) {
      throw InvalidArgument(
          path + ": column \"" + name + "\" is the sample weight and cannot be a text",
          "name other columns with " + texts + " or " + OptionName("sample_weight_column"));
    }
  }
}

}  // namespace

DataLoading::DataLoading(Task& task, const PretrainedConfig& config,
                         const FinetuneArguments& options, const OpenColumns& open,
                         std::function<void()> load_tokenizer)
    : task_(task),
      config_(config),
      given_(options),
      options_(options),
      open_(open),
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

void DataLoading::CollectValidationLabels() {
  const DataSplit& split = validation_.split;
  if (validation_labels_ || !train_.split.wanted || !split.wanted) return;
  if (split.rows != DataSplit::Rows::kAll) return;
  validation_labels_.emplace(options_.label_column);
  int64_t num_rows = 0;
  const auto add = [&](TextTable& rows) {
    if (split.max_rows && !split.drops_duplicates) CutRows(rows, *split.max_rows - num_rows);
    num_rows += rows.rows();
    if (rows.rows() > 0 && rows.has(options_.label_column)) validation_labels_->Add(rows);
  };
  if (!validation_.folder.empty())
    return ForEachBlock(split, options_, [&](TextTable& rows, size_t) { add(rows); });
  validation_.tables = ReadTables(split, options_);
  for (TextTable& table : validation_.tables) add(table);
}

LabelSet DataLoading::DecideTheLabels() {
  if (First().cache != nullptr) return First().cache->labels();
  DistinctLabels distinct(options_.label_column);
  if (!train_.tables.empty()) {
    for (const TextTable& table : train_.tables) distinct.Add(table);
    return DecideLabels(&distinct, validation_labels_ ? &*validation_labels_ : nullptr, config_,
                        options_);
  }
  if (validation_.tables.empty() || !validation_.tables[0].has(options_.label_column))
    return DecideLabels(nullptr, nullptr, config_, options_);
  if (!validation_.split.drops_duplicates) CutRows(validation_.tables, validation_.split.max_rows);
  for (const TextTable& table : validation_.tables) {
    if (table.rows() > 0) distinct.Add(table);
  }
  return DecideLabels(nullptr, &distinct, config_, options_);
}

// Replaces numbers of columns by names, and sets the open columns.
void DataLoading::NameColumns() {
  const DataSplit& split = First().split;
  options_ = WithColumnNames(options_, split);
  train_.split.weight_column = options_.sample_weight_column;
  if (!open_.any()) return;
  const std::string note = TakeColumnsOfModel(options_.model_name_or_path, split, open_, &options_);
  if (!note.empty()) task_.column_notes.push_back(note);
  given_ = options_;  // what isn't trained need not keep the numbers of columns
}

void DataLoading::Read() {
  if (!First().split.wanted)
    throw UsageError("no file of data is named", "pass " + OptionName("train_file") + " FILE");
  CheckTextColumns(options_);
  NameColumns();
  for (Part* part : Parts()) part->folder = DatasetCacheFolder(part->split, options_);
  Part& first = First();
  if (!first.folder.empty()) {
    CollectValidationLabels();
    KnownAboutRows known = {.validation_labels = validation_labels_};
    if (&first == &test_) known.labels = DecideLabels(nullptr, nullptr, config_, options_);
    OpenCache(first, known);
  }
  for (Part* part : Parts()) {
    if (!part->folder.empty()) continue;
    // These rows lie among the training rows.
    if (part->split.rows == DataSplit::Rows::kValidating) continue;
    if (part->tables.empty()) part->tables = ReadTables(part->split, options_);
    if (part == &train_) CollectValidationLabels();
  }
  task_.labels = DecideTheLabels();
}

// Moves the rows chosen for validation from the training data to the validation data.
void DataLoading::DivideTrainingRows() {
  if (train_.split.rows == DataSplit::Rows::kAll) return;
  if (train_.cache != nullptr) {
    rule_ = train_.cache->rule();
  } else {
    rule_.emplace(train_.split.share);
    for (const TextTable& table : train_.tables)
      rule_->Add(table, task_.text_columns, options_.label_column);
    rule_->Decide(task_.labels.kind(), NameOfFiles(train_.split.files));
    for (TextTable& table : train_.tables) {
      validation_.tables.push_back(
          TakeRows(table, rule_->Validates(table, task_.text_columns, options_.label_column)));
    }
  }
  task_.notes.insert(task_.notes.end(), rule_->notes().begin(), rule_->notes().end());
}

// Tokenizes the rows in memory of a part. Lets go of the texts file by file.
TokenizedDataset DataLoading::TokenizeTables(Part& part, RowFilter& filter) {
  TokenizedDataset all;
  part.marks = {};
  for (size_t file = 0; file < part.tables.size(); ++file) {
    TextTable& table = part.tables[file];
    filter.Apply(table, task_.text_columns);
    if (table.rows() == 0) continue;
    if (part.split.labelled) part.marks.Add(table, file, task_.text_columns);
    TokenizedDataset dataset =
        lathe::Tokenize(table, task_.text_columns, task_.labels, *task_.tokenizer,
                        {.max_length = task_.max_length,
                         .label_column = part.split.labelled ? options_.label_column : "",
                         .require_labels = part.split.labelled,
                         .weight_column = part.split.weight_column,
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
  const std::string dropped = NoteOnDuplicates(part.split, filter.num_dropped());
  if (!dropped.empty()) task_.notes.push_back(dropped);
  return all;
}

// Turns the rows of a part into a dataset, and lets go of the texts.
void DataLoading::TokenizePart(Part& part) {
  if (!part.split.wanted) return;
  if (!part.folder.empty() && part.cache == nullptr)
    OpenCache(part, {.labels = task_.labels, .columns = task_.text_columns, .rule = rule_});
  std::optional<TokenizedDataset> dataset;
  if (part.cache != nullptr) {
    dataset = part.cache->Load(*task_.model);
    part.marks = part.cache->marks();
    task_.notes.insert(task_.notes.end(), part.cache->notes().begin(), part.cache->notes().end());
  }
  if (!dataset) {
    // Tables in memory are divided already.
    const bool divides = rule_.has_value() && part.tables.empty();
    if (part.tables.empty()) part.tables = ReadTables(part.split, options_);
    RowFilter filter(part.split, options_, task_.labels.kind(), divides ? &*rule_ : nullptr);
    dataset = TokenizeTables(part, filter);
  }
  *part.data = {NameForPeople(part.split),
                std::make_shared<const TokenizedDataset>(std::move(*dataset))};
}

// Sets the longest text of --max_seq_length auto.
void DataLoading::CutToTrainingTexts() {
  const TokenizedDataset& train = *task_.train.dataset;
  const bool pairs = !task_.text_columns.second.empty();
  // Every text must keep one token.
  int64_t longest = task_.tokenizer->NumSpecialTokens(pairs) + (pairs ? 2 : 1);
  for (int64_t i = 0; i < train.size(); ++i) longest = std::max(longest, train.length(i));
  task_.max_length = std::min(longest, task_.max_length);
  task_.notes.push_back(OptionName("max_seq_length") + " auto: texts are cut to " +
                        std::to_string(task_.max_length) + " tokens");
}

void DataLoading::Tokenize() {
  const Part& first = First();
  task_.text_columns =
      first.cache != nullptr ? first.cache->columns() : ChooseColumns(first.tables, options_);
  CheckColumns(task_, NameOfFiles(first.split.files), options_);
  task_.columns = ColumnsOfRun(given_, options_, task_.text_columns);
  DivideTrainingRows();
  const bool is_auto = task_.max_length == 0;
  if (is_auto) task_.max_length = LongestText(*task_.tokenizer, *task_.model);
  for (Part* part : Parts()) {
    TokenizePart(*part);
    if (is_auto && part == &train_ && part->split.wanted) CutToTrainingTexts();
  }
  if (validation_.split.wanted) {
    task_.validation_rows = RowSource{.split = validation_.split,
                                      .options = options_,
                                      .columns = task_.text_columns,
                                      .kind = task_.labels.kind(),
                                      .rule = rule_};
  }
  AddNotesOnTexts();
  if (!options_.do_train) {
    const std::string note = NoteOnTextColumns(task_.text_columns, options_);
    if (!note.empty()) task_.column_notes.push_back(note);
  }
}

// Says which labels no training row has, though the validation data have them.
void DataLoading::AddNoteOnLabels() {
  if (!validation_labels_ || task_.labels.kind() == LabelKind::kRegression) return;
  const TokenizedDataset& train = *task_.train.dataset;
  const std::vector<std::string>& names = task_.labels.names();
  std::vector<bool> trained(names.size());
  for (const int64_t label : train.classes) trained.at(static_cast<size_t>(label)) = true;
  const std::vector<float> flags = train.AllScores();
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] > 0.5f) trained[i % names.size()] = true;
  }
  for (size_t i = 0; i < validation_labels_->labels().size(); ++i) {
    const std::string& text = validation_labels_->labels()[i];
    for (const std::string& name : ParseLabelArray(text).value_or(std::vector{text})) {
      const std::optional<int64_t> place = task_.labels.Index(name);
      if (!place || trained[static_cast<size_t>(*place)]) continue;
      trained[static_cast<size_t>(*place)] = true;  // one note is enough
      task_.notes.push_back("label \"" + name + "\" is in no training row, but in " +
                            validation_labels_->Where(i) + "; the model can't learn it");
    }
  }
}

// Warns of texts that are in training and validation, and of labels that contradict each other.
void DataLoading::AddNotesOnTexts() {
  if (!train_.split.wanted) return;
  AddNoteOnLabels();
  const auto marked = [](const Part& part) {
    return MarkedRows{&part.marks, part.data->dataset.get(), part.split.files};
  };
  std::vector<std::string> notes = {NoteOnContradictions(marked(train_), task_.labels)};
  if (validation_.split.wanted)
    notes.push_back(NoteOnOverlap(marked(train_), marked(validation_), task_.labels));
  for (const std::string& note : notes) {
    if (!note.empty()) task_.notes.push_back(note);
  }
}

}  // namespace lathe
