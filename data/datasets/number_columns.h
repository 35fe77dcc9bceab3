// Columns of a CSV, TSV or JSON file as tensors of numbers.
//
//   Tensor inputs = ReadNumberColumns("train.csv", {"age", "height"});      // [rows, 2] f32
//   Tensor targets = ReadNumberColumn("train.csv", "class", DType::kI64);   // [rows] i64
//   TensorDataset data(inputs, targets);                                    // tensor_dataset.h
//
// A table that has been read already has columns of other kinds, too:
//
//   const TextTable table = ReadTextTable("train.csv");                     // text_table.h
//   const LabelSet labels = LabelSet::Infer({&table.column("species")});    // label_set.h
//   Tensor inputs = NumberColumns(table, ColumnsExcept(table, {"species"}));
//   Tensor targets = ClassColumn(table, "species", labels);
//
// All functions throw `path: no column "x"; it has: a, b` for a column that is not there, and
// `path:line: ...` with the column and its text for a value that is missing or of another kind.
#pragma once

#include <string>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/datasets/label_set.h"
#include "lathe/data/datasets/text_table.h"

namespace lathe {

// Returns the columns beside each other: [rows, columns.size()]. `dtype` is kF32, for finite
// numbers, or kI64, for whole ones; "3.0" is whole. Throws for another dtype, and if no column is
// named.
Tensor NumberColumns(const TextTable& table, const std::vector<std::string>& columns,
                     DType dtype = DType::kF32);
// Returns one column: [rows].
Tensor NumberColumn(const TextTable& table, const std::string& column, DType dtype = DType::kF32);

// These two return the same for a file, which they read piece by piece: its text never lies in
// memory as a whole. They also throw what ReadTextTable throws.
Tensor ReadNumberColumns(const std::string& path, const std::vector<std::string>& columns,
                         DType dtype = DType::kF32);
Tensor ReadNumberColumn(const std::string& path, const std::string& column,
                        DType dtype = DType::kF32);

// Returns the index of each row's label in labels.names(): [rows] i64. `labels` must be classes.
// Throws for a label that is empty or not among them.
Tensor ClassColumn(const TextTable& table, const std::string& column, const LabelSet& labels);

// Returns the names of the table's columns but these, in their order. Throws if it lacks one of
// these.
std::vector<std::string> ColumnsExcept(const TextTable& table,
                                       const std::vector<std::string>& columns);

}  // namespace lathe
