// RowFile: the tokenized rows of a dataset in a file, read one by one in any order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/data/column_files/column_file.h"

namespace lathe {

// One row as the file has it.
struct RowData {
  std::vector<int32_t> input_ids;
  std::vector<uint8_t> token_type_ids;  // the same length
  std::vector<uint8_t> label_flags;  // [num_labels] 0 or 1 for several labels at once, else empty
};

// Returns the check value that the file keeps for each row.
uint32_t CheckOfRow(const RowData& row);

// The file holds the columns that DatasetFileWriter (dataset_file.h) writes. In memory it takes 4
// bytes for each row. Several threads may read at once.
class RowFile {
 public:
  // Throws as ColumnFile does.
  explicit RowFile(const std::string& path);

  // Reads a row whose tokens are [begin, end) of all. Throws DataLoss, which names the file and the
  // row, if the row's check value doesn't match.
  RowData Read(int64_t row, int64_t begin, int64_t end) const;

  const ColumnFile& columns() const { return file_; }
  // HashName of the arrays that a dataset in memory would have in place of the file.
  uint64_t input_ids_digest() const { return input_ids_digest_; }
  uint64_t token_type_ids_digest() const { return token_type_ids_digest_; }
  uint64_t scores_digest() const { return scores_digest_; }  // of several labels at once

 private:
  ColumnFile file_;
  const Column* input_ids_;
  const Column* token_type_ids_;  // null: all are 0
  const Column* label_flags_;     // null unless there are several labels at once
  int64_t num_labels_ = 0;
  std::vector<uint32_t> checks_;
  uint64_t input_ids_digest_ = 0, token_type_ids_digest_ = 0, scores_digest_ = 0;
};

}  // namespace lathe
