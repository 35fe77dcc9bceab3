// ValidationRule: which rows of the training data --validation_split keeps for validation.
//
// A row's place is a number from 0 to 1 that follows from its texts alone. It is the first 8 bytes
// of their SHA-256, big-endian, divided by 2^64. For a pair of texts it is the SHA-256 of the
// first, a zero byte and the second. A row validates if its place is below the share. So rows stay
// where they are when other rows come or go, and equal texts of one label stay together.
//
// Classes are then looked at one by one. If a class has no row that validates, its rows with the
// lowest place do. If all of its rows validate, those with the highest place train. A class whose
// texts are all equal trains. These rows alone may change sides when rows of their class come or
// go, as others then have the lowest or the highest place.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"

namespace lathe {

// Returns a row's place before the division.
uint64_t PlaceOfRow(std::string_view first, std::string_view second, bool pairs);

class ValidationRule {
 public:
  // `share` is above 0 and below 1.
  explicit ValidationRule(double share) : share_(share) {}

  // Looks at rows of the training data.
  void Add(const TextTable& rows, const TextColumns& columns, const std::string& label_column);
  // Ends the looking. Scores and several labels at once count as one class. Throws if no row would
  // validate or none would train; `path` names the data.
  void Decide(LabelKind kind, const std::string& path);

  // Returns, for each row, whether it validates. Valid after Decide.
  std::vector<bool> Validates(const TextTable& rows, const TextColumns& columns,
                              const std::string& label_column) const;
  // For people: classes that can't be on both sides.
  const std::vector<std::string>& notes() const { return notes_; }

  // What Decide has decided, for files.
  nlohmann::json ToJson() const;
  static ValidationRule FromJson(const nlohmann::json& json);

 private:
  struct Class {
    int64_t rows = 0, below = 0;  // below: rows whose place is below the share
    uint64_t lowest = UINT64_MAX, highest = 0;
    void Add(uint64_t place, bool is_below);
  };
  bool IsBelow(uint64_t place) const;
  // Decides what becomes of a class, whose key in the maps below is `label`.
  void DecideClass(const Class& rows, const std::string& label);

  double share_;
  Class all_;
  std::map<std::string, Class> classes_;
  bool too_many_classes_ = false, by_class_ = false;
  // The places of the rows of a class that are on the other side than the share says.
  std::map<std::string, uint64_t> validating_, training_;
  std::vector<std::string> notes_;
};

}  // namespace lathe
