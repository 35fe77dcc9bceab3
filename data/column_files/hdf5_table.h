// Hdf5Table: columns of numbers in an HDF5 file that any program wrote, of which any row can be
// read at any time.
//
//   const Hdf5Table table("train.h5", {"inputs", "targets"});
//   std::vector<float> row(NumElements(table.column(0).row_shape));
//   table.ReadRow(0, 17, row.data());
//
// A column is a dataset with at least one dimension, the rows. All columns have as many rows.
// HDF5's library only looks for the places of the numbers, in a confined process, since it crashes
// on some damaged files. Then rows are read from the file itself: plain ones alone, compressed ones
// in whole chunks, of which the last used ones are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/keras_files/hdf5_arrays.h"
#include "lathe/core/tensor.h"
#include "lathe/core/weight_files/mapped_file.h"

namespace lathe {

// What a confined child has found in a file (FindHdf5Columns).
struct Hdf5Columns {
  std::vector<Hdf5Array> arrays;
  std::shared_ptr<const MappedFile> copies;  // of the elements of those that are copied
  uint64_t file_size = 0;
};

class Hdf5Table {
 public:
  struct Column {
    std::string name;
    // What ReadRow gives: float32 for all floating-point numbers, uint8, or int64 for all other
    // integers.
    DType dtype = DType::kF32;
    Shape row_shape;
  };

  // Opens the file. Keeps chunks of up to `cache_bytes` bytes, and the last one whatever its size.
  // Throws NotFound if there is no file, and InvalidArgument if it has no such column or columns
  // with different numbers of rows. Throws DataLoss for a damaged file, as far as it is noticed, or
  // for numbers that Lathe can't read.
  explicit Hdf5Table(const std::string& path, const std::vector<std::string>& names,
                     int64_t cache_bytes = int64_t{64} << 20);
  // Does the same with what was found in the file before. Checks all that the child says. For a
  // fuzzer, too, which can't follow a child.
  Hdf5Table(const std::string& path, const Hdf5Columns& found, int64_t cache_bytes);
  ~Hdf5Table();
  Hdf5Table(const Hdf5Table&) = delete;
  Hdf5Table& operator=(const Hdf5Table&) = delete;

  int64_t rows() const;
  const Column& column(size_t i) const;
  // Writes the elements of a row to `to`, in the column's dtype. Several threads may call it.
  // Throws DataLoss if the file is cut short or a chunk is damaged.
  void ReadRow(size_t column, int64_t row, void* to) const;
  // Returns a text about sizes and the first rows, by which ranks notice different files.
  std::string Fingerprint() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
