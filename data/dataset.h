// Text files in, tokenised classification data out.
//
//   TextTable table = ReadTextTable("train.csv");
//   TextColumns columns = ChooseTextColumns(table, {});            // as run_glue chooses
//   LabelSet labels = LabelSet::FromColumns({&table.column("label")});
//   TokenizedDataset train = Tokenize(table, columns, labels, *tokenizer, {.max_length = 128});
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lathe/data/tokenizer.h"

namespace lathe {

enum class InvalidUtf8 { kError, kReplace };

// A file read whole: named columns of UTF-8 strings, all of the same length.
struct TextTable {
  std::string path;
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> columns;   // columns[c][row]
  std::vector<int64_t> lines;                      // [rows] line on which the row starts, 1-based
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
  bool has(const std::string& name) const;
  // Throws `path: no column "x"; it has: a, b`.
  const std::vector<std::string>& column(const std::string& name) const;
};

// By extension: .csv (RFC 4180: quotes, doubled quotes, line breaks inside quotes, LF or CRLF), .tsv (no
// quoting), .json/.jsonl (one object a line; strings, numbers, booleans and, for labels, arrays, kept as JSON
// text). A UTF-8 byte order mark is skipped. Throws with `path:line: what` for a ragged row, invalid UTF-8
// (unless kReplace puts U+FFFD), a missing key; and for a missing, unreadable or empty file.
TextTable ReadTextTable(const std::string& path, InvalidUtf8 invalid = InvalidUtf8::kError);

struct TextColumns {
  std::string first, second;  // second may be empty
};
// The named ones (one or two); if none is named, as run_glue: sentence1+sentence2 if both are there, else the
// first two columns that are not `label_column` (or "idx"/"id"), else the one.
TextColumns ChooseTextColumns(const TextTable& table, const std::vector<std::string>& named,
                              const std::string& label_column = "label");

enum class LabelKind { kSingleLabel, kMultiLabel, kRegression };

// What label strings mean.
class LabelSet {
 public:
  // Infers from label columns: arrays (JSON) -> multi-label; any non-integer number among all-numeric values
  // -> regression; else classes. Names are sorted as run_glue sorts a column's unique values: integers by
  // value, strings by code point.
  static LabelSet Infer(const std::vector<const std::vector<std::string>*>& columns);
  static LabelSet Classes(std::vector<std::string> names);     // in this order
  static LabelSet MultiLabel(std::vector<std::string> names);
  static LabelSet Regression();

  LabelKind kind() const { return kind_; }
  const std::vector<std::string>& names() const { return names_; }  // empty for regression
  int64_t num_labels() const { return kind_ == LabelKind::kRegression ? 1 : static_cast<int64_t>(names_.size()); }
  // Class index of a label; nullopt if unknown.
  std::optional<int64_t> Index(const std::string& label) const;

 private:
  LabelKind kind_ = LabelKind::kSingleLabel;
  std::vector<std::string> names_;
};

// Flat ids and offsets; cheap to index.
struct TokenizedDataset {
  std::vector<int32_t> input_ids;       // all sequences, one after another
  std::vector<uint8_t> token_type_ids;  // same length
  std::vector<int64_t> offsets{0};      // [n+1]
  LabelKind kind = LabelKind::kSingleLabel;
  bool has_labels = false;
  std::vector<int64_t> classes;         // [n] single-label; -100 where absent
  std::vector<float> scores;            // [n] regression, [n * num_labels] 0/1 multi-label
  int64_t num_labels = 0;
  int64_t truncated = 0;                // sequences that lost tokens

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t length(int64_t i) const { return offsets[i + 1] - offsets[i]; }
};

struct TokenizeOptions {
  int64_t max_length = 128;
  std::string label_column = "label";
  bool require_labels = true;  // false: a missing label column gives a dataset without labels
  int num_threads = 0;         // 0: all cores
};
// Throws `path:line: label "x" was not seen in training; known labels: ...`,
// `path:line: score "x" is not a number`.
TokenizedDataset Tokenize(const TextTable& table, const TextColumns& columns, const LabelSet& labels,
                          const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace lathe
