#include "lathe/train/rows/text_marks.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
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

bool HaveSameLabels(const TokenizedDataset& a, size_t row_a, const TokenizedDataset& b,
                    size_t row_b) {
  if (a.kind == LabelKind::kSingleLabel) return a.classes[row_a] == b.classes[row_b];
  return a.Row(static_cast<int64_t>(row_a)).scores == b.Row(static_cast<int64_t>(row_b)).scores;
}

bool HasLabels(const TokenizedDataset& dataset) {
  return dataset.has_labels && dataset.kind != LabelKind::kRegression;
}

// Returns "path:line says "a"" of a row.
std::string Says(const MarkedRows& rows, size_t row, const LabelSet& labels) {
  return rows.marks->Where(row, rows.files) + " says " + LabelsOf(*rows.dataset, row, labels);
}

std::string Counted(int64_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

// Counts the validation rows with a text of the training data whose labels no training row with
// that text has. It keeps one row for each text and label, since very many rows may be equal.
class OtherLabels {
 public:
  OtherLabels(const MarkedRows& train, const MarkedRows& validation)
      : train_(train),
        validation_(validation),
        compares_(HasLabels(*train.dataset) && HasLabels(*validation.dataset)) {}

  // Adds a validation row. `train_row` is the first training row with its texts.
  void Add(size_t row, size_t train_row) {
    if (!compares_ || Agree(train_row, row)) return;
    std::vector<Kept>& known = kept_[validation_.marks->hash(row)];
    const auto same = std::ranges::find_if(known, [&](const Kept& kept) {
      return HaveSameLabels(*validation_.dataset, kept.first_row, *validation_.dataset, row);
    });
    if (same != known.end()) {
      ++same->num_rows;
    } else {
      known.push_back({row, 1});
    }
  }
  // Compares with all training rows. Returns how many rows there are, and the first of them.
  std::pair<int64_t, size_t> Count() {
    for (size_t row = 0; row < train_.marks->size() && !kept_.empty(); ++row) {
      const auto found = kept_.find(train_.marks->hash(row));
      if (found == kept_.end()) continue;
      std::erase_if(found->second, [&](const Kept& kept) { return Agree(row, kept.first_row); });
      if (found->second.empty()) kept_.erase(found);
    }
    int64_t num_rows = 0;
    size_t first = validation_.marks->size();
    for (const auto& [hash, known] : kept_) {
      for (const Kept& kept : known) {
        num_rows += kept.num_rows;
        first = std::min(first, kept.first_row);
      }
    }
    return {num_rows, first};
  }

 private:
  struct Kept {
    size_t first_row;
    int64_t num_rows;
  };
  bool Agree(size_t train_row, size_t row) const {
    return HaveSameLabels(*train_.dataset, train_row, *validation_.dataset, row);
  }

  const MarkedRows& train_;
  const MarkedRows& validation_;
  bool compares_;
  absl::flat_hash_map<uint64_t, std::vector<Kept>> kept_;  // by the hash of texts
};

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
  if (!marks.complete() || !HasLabels(dataset)) return "";
  absl::flat_hash_map<uint64_t, uint32_t> first;  // the first row with these texts
  absl::flat_hash_set<uint64_t> contradicted;
  std::string example;
  first.reserve(marks.size());
  for (size_t row = 0; row < marks.size(); ++row) {
    const auto [known, is_new] = first.emplace(marks.hash(row), static_cast<uint32_t>(row));
    if (is_new || HaveSameLabels(dataset, known->second, dataset, row)) continue;
    if (!contradicted.insert(marks.hash(row)).second || !example.empty()) continue;
    example = Says(rows, known->second, labels) + ", " + Says(rows, row, labels);
  }
  if (contradicted.empty()) return "";
  return Counted(std::ssize(contradicted), "text has", "texts have") +
         " labels that contradict each other, such as: " + example;
}

std::string NoteOnOverlap(const MarkedRows& train, const MarkedRows& validation,
                          const LabelSet& labels) {
  if (!train.marks->complete() || !validation.marks->complete()) return "";
  absl::flat_hash_map<uint64_t, uint32_t> places;  // the first training row with these texts
  places.reserve(train.marks->size());
  for (size_t row = 0; row < train.marks->size(); ++row)
    places.emplace(train.marks->hash(row), static_cast<uint32_t>(row));
  int64_t count = 0;
  std::string example;
  OtherLabels others(train, validation);
  for (size_t row = 0; row < validation.marks->size(); ++row) {
    const auto found = places.find(validation.marks->hash(row));
    if (found == places.end()) continue;
    others.Add(row, found->second);
    if (count++ > 0) continue;
    example = validation.marks->Where(row, validation.files) + " has the text of " +
              train.marks->Where(found->second, train.files);
  }
  if (count == 0) return "";
  const auto [num_others, first] = others.Count();
  std::string note =
      Counted(count, "validation row has", "validation rows have") + " a text of the training data";
  if (num_others < count) note += ", which flatters the metrics";
  note += ", such as: " + example;
  if (num_others == 0) return note;
  return note + "; " + Counted(num_others, "of them has", "of them have") +
         " another label than there, such as: " + Says(validation, first, labels) + ", " +
         Says(train, places.at(validation.marks->hash(first)), labels);
}

}  // namespace lathe
