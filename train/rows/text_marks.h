// TextMarks: a hash of each row's texts, by which rows with equal texts are found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lathe/data/datasets/dataset.h"
#include "lathe/data/datasets/text_table.h"

namespace lathe {

// For so many rows the marks take 32 MiB, or 48 MiB with an array in JSON. The table by which equal
// texts are found takes about 70 MiB while it is there. More rows are not looked at.
inline constexpr int64_t kMostMarkedRows = int64_t{1} << 21;

class TextMarks {
 public:
  // Adds rows of the file with this number, as long as there are not too many.
  void Add(const TextTable& rows, size_t file, const TextColumns& columns);
  // Returns false if there were too many rows. Then there are no marks.
  bool complete() const { return complete_; }
  size_t size() const { return hashes_.size(); }
  uint64_t hash(size_t row) const { return static_cast<uint64_t>(hashes_[row]); }
  // Returns NameOfRow of a row.
  std::string Where(size_t row, const std::vector<std::string>& files) const;

  // What a file of the dataset cache keeps: a hash for each row, and its file and line. If a file
  // is an array in JSON, each row also has the number of its element, or 0. Else there is none.
  const std::vector<int64_t>& hashes() const { return hashes_; }
  const std::vector<int64_t>& places() const { return places_; }
  const std::vector<int64_t>& elements() const { return elements_; }
  static TextMarks FromColumns(std::vector<int64_t> hashes, std::vector<int64_t> places,
                               std::vector<int64_t> elements = {});
  static TextMarks None();  // of too many rows

 private:
  std::vector<int64_t> hashes_, places_, elements_;
  bool complete_ = true;
};

// A split's rows with their marks.
struct MarkedRows {
  const TextMarks* marks = nullptr;
  const TokenizedDataset* dataset = nullptr;
  std::vector<std::string> files;
};

// Returns a note if equal texts have labels that contradict each other, with one example. Scores
// don't contradict each other.
std::string NoteOnContradictions(const MarkedRows& rows, const LabelSet& labels);

// Returns a note if texts are in both training and validation, with one example. It also counts the
// validation rows whose labels are those of no training row with their text. Scores don't count as
// labels here.
std::string NoteOnOverlap(const MarkedRows& train, const MarkedRows& validation,
                          const LabelSet& labels);

}  // namespace lathe
