#include "lathe/train/rows/text_marks.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <utility>

#include "lathe/train/rows/row_filter.h"

namespace lathe {
namespace {

constexpr int64_t kLineBits = 40;  // of a place; the other bits are the file's number

// Returns the labels of a row, for people.
std::string LabelsOf(const TokenizedDataset& dataset, size_t row, const LabelSet& labels) {
  const auto quoted = [&](size_t label) { return "\"" + labels.names().at(label) + "\""; };
  if (dataset.kind == LabelKind::kSingleLabel)
    return quoted(static_cast<size_t>(dataset.classes[row]));
  std::string out;
  const std::vector<float> scores = dataset.Row(static_cast<int64_t>(row)).scores;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > 0) out += (out.empty() ? "" : ", ") + quoted(i);
  }
  return "[" + out + "]";
}

bool HaveSameLabels(const TokenizedDataset& dataset, size_t a, size_t b) {
  if (dataset.kind == LabelKind::kSingleLabel) return dataset.classes[a] == dataset.classes[b];
  return dataset.Row(static_cast<int64_t>(a)).scores == dataset.Row(static_cast<int64_t>(b)).scores;
}

std::string Counted(int64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

}  // namespace

void TextMarks::Add(const TextTable& rows, size_t file, const TextColumns& columns) {
  if (!complete_) return;
  if (std::ssize(hashes_) + rows.rows() > kMostMarkedRows) {
    *this = None();
    return;
  }
  const std::vector<std::string>& first = rows.column(columns.first);
  const std::vector<std::string>* second =
      columns.second.empty() ? nullptr : &rows.column(columns.second);
  const bool has_elements = !elements_.empty() || !rows.elements.empty();
  if (has_elements) elements_.resize(hashes_.size());
  for (size_t row = 0; row < first.size(); ++row) {
    if (has_elements) elements_.push_back(rows.element(static_cast<int64_t>(row)));
    hashes_.push_back(static_cast<int64_t>(
        HashOfTexts(first[row], second != nullptr ? std::string_view((*second)[row]) : "")));
    places_.push_back((static_cast<int64_t>(file) << kLineBits) | rows.lines[row]);
  }
}

std::string TextMarks::Where(size_t row, const std::vector<std::string>& files) const {
  const int64_t place = places_[row];
  return NameOfRow(files.at(static_cast<size_t>(place >> kLineBits)),
                   place & ((int64_t{1} << kLineBits) - 1), elements_.empty() ? 0 : elements_[row]);
}

TextMarks TextMarks::FromColumns(std::vector<int64_t> hashes, std::vector<int64_t> places,
                                 std::vector<int64_t> elements) {
  TextMarks marks;
  marks.elements_ = std::move(elements);
  marks.hashes_ = std::move(hashes);
  marks.places_ = std::move(places);
  return marks;
}

TextMarks TextMarks::None() {
  TextMarks marks;
  marks.complete_ = false;
  return marks;
}

std::string NoteOnContradictions(const MarkedRows& rows, const LabelSet& labels) {
  const TextMarks& marks = *rows.marks;
  const TokenizedDataset& dataset = *rows.dataset;
  if (!marks.complete() || !dataset.has_labels || dataset.kind == LabelKind::kRegression) return "";
  absl::flat_hash_map<uint64_t, uint32_t> first;  // the first row with these texts
  absl::flat_hash_set<uint64_t> contradicted;
  std::string example;
  first.reserve(marks.size());
  for (size_t row = 0; row < marks.size(); ++row) {
    const auto [known, is_new] = first.emplace(marks.hash(row), static_cast<uint32_t>(row));
    if (is_new || HaveSameLabels(dataset, known->second, row)) continue;
    if (!contradicted.insert(marks.hash(row)).second || !example.empty()) continue;
    example = marks.Where(known->second, rows.files) + " says " +
              LabelsOf(dataset, known->second, labels) + ", " + marks.Where(row, rows.files) +
              " says " + LabelsOf(dataset, row, labels);
  }
  if (contradicted.empty()) return "";
  return Counted(std::ssize(contradicted), "text has", "texts have") +
         " labels that contradict each other, such as: " + example;
}

std::string NoteOnOverlap(const MarkedRows& train, const MarkedRows& validation) {
  if (!train.marks->complete() || !validation.marks->complete()) return "";
  absl::flat_hash_map<uint64_t, uint32_t> places;
  places.reserve(train.marks->size());
  for (size_t row = 0; row < train.marks->size(); ++row)
    places.emplace(train.marks->hash(row), static_cast<uint32_t>(row));
  int64_t count = 0;
  std::string example;
  for (size_t row = 0; row < validation.marks->size(); ++row) {
    const auto found = places.find(validation.marks->hash(row));
    if (found == places.end()) continue;
    if (count++ > 0) continue;
    example = validation.marks->Where(row, validation.files) + " has the text of " +
              train.marks->Where(found->second, train.files);
  }
  if (count == 0) return "";
  return Counted(count, "validation row has", "validation rows have") +
         " a text of the training data, which flatters the metrics, such as: " + example;
}

}  // namespace lathe
