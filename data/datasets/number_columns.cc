#include "lathe/data/datasets/number_columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/data/datasets/text_table_reader.h"

namespace lathe {
namespace {

constexpr char kOp[] = "number_columns";

// Parses a finite number.
template <typename T>
requires std::is_same_v<T, float> std::optional<T> Parse(const std::string& text) {
  const float number = static_cast<float>(ParseNumber(text).value_or(NAN));
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

// Parses a whole number. Those with a point or an exponent pass through a double, so they must be
// small enough to be exact there.
template <typename T>
requires std::is_same_v<T, int64_t> std::optional<T> Parse(const std::string& text) {
  constexpr double kLargestExact = 9007199254740992;  // 2^53
  const size_t first = std::min(text.find_first_not_of(" \t"), text.size());
  const char *const begin = text.data() + first, *const end =
                                                     text.data() + text.find_last_not_of(" \t") + 1;
  int64_t whole = 0;
  if (const auto [stop, code] = std::from_chars(begin, end, whole);
      code == std::errc() && stop == end)
    return whole;
  const double number = ParseNumber(text).value_or(NAN);
  if (!(std::abs(number) <= kLargestExact) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

template <typename T>
constexpr const char* kKind = "a finite number";
template <>
constexpr const char* kKind<int64_t> = "a whole number";

// Appends the columns of all rows of the table.
template <typename T>
void Append(const TextTable& table, const std::vector<std::string>& names, std::vector<T>& out) {
  std::vector<const std::vector<std::string>*> columns;
  for (const std::string& name : names) columns.push_back(&table.column(name));
  for (int64_t row = 0; row < table.rows(); ++row) {
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string& text = (*columns[c])[static_cast<size_t>(row)];
      if (const std::optional<T> number = Parse<T>(text)) {
        out.push_back(*number);
      } else if (text.empty()) {
        throw InvalidArgument(table.Where(row) + ": column \"" + names[c] + "\" has no value",
                              "fill in a number, or remove the row");
      } else {
        throw InvalidArgument(table.Where(row) + ": \"" + text + "\" in column \"" + names[c] +
                                  "\" is not " + kKind<T>,
                              "correct the value, or remove the row");
      }
    }
  }
}

// Returns the numbers that append(vector) appends, one row after another: [rows, columns.size()].
template <typename Function>
Tensor Collect(const std::vector<std::string>& columns, DType dtype, const Function& append) {
  Check(!columns.empty(), kOp, "expected at least one column");
  Check(dtype == DType::kF32 || dtype == DType::kI64, kOp,
        "the dtype must be float32 or int64 but is ", ToString(dtype));
  const auto collect = [&](auto numbers) {
    append(numbers);
    const auto width = static_cast<int64_t>(columns.size());
    return Tensor::FromVector(numbers, {std::ssize(numbers) / width, width});
  };
  return dtype == DType::kF32 ? collect(std::vector<float>()) : collect(std::vector<int64_t>());
}

}  // namespace

Tensor NumberColumns(const TextTable& table, const std::vector<std::string>& columns, DType dtype) {
  return Collect(columns, dtype, [&](auto& numbers) { Append(table, columns, numbers); });
}

Tensor NumberColumn(const TextTable& table, const std::string& column, DType dtype) {
  return NumberColumns(table, {column}, dtype).Reshape({-1});
}

Tensor ReadNumberColumns(const std::string& path, const std::vector<std::string>& columns,
                         DType dtype) {
  return Collect(columns, dtype, [&](auto& numbers) {
    TextTableReader reader(path);
    for (TextTable rows = reader.Next(); rows.rows() > 0; rows = reader.Next())
      Append(rows, columns, numbers);
  });
}

Tensor ReadNumberColumn(const std::string& path, const std::string& column, DType dtype) {
  return ReadNumberColumns(path, {column}, dtype).Reshape({-1});
}

Tensor ClassColumn(const TextTable& table, const std::string& column, const LabelSet& labels) {
  if (labels.kind() != LabelKind::kSingleLabel) {
    throw InvalidArgument(table.path + ": the labels of column \"" + column + "\" are no classes",
                          "read numbers by NumberColumn, classes that are written as numbers by "
                          "NumberColumn(table, column, DType::kI64)");
  }
  std::vector<int64_t> classes;
  const std::vector<std::string>& texts = table.column(column);
  for (int64_t row = 0; row < table.rows(); ++row) {
    const std::string& text = texts[static_cast<size_t>(row)];
    if (text.empty()) throw EmptyLabel(table.Where(row));
    const std::optional<int64_t> label = labels.Index(text);
    if (!label) throw UnseenLabel(table.Where(row), text, labels);
    classes.push_back(*label);
  }
  return Tensor::FromVector(classes);
}

std::vector<std::string> ColumnsExcept(const TextTable& table,
                                       const std::vector<std::string>& columns) {
  for (const std::string& name : columns) table.column(name);  // throws if it is not there
  std::vector<std::string> others;
  for (const std::string& name : table.names) {
    if (std::ranges::find(columns, name) == columns.end()) others.push_back(name);
  }
  return others;
}

}  // namespace lathe
