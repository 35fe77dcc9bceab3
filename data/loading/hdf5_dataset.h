// Hdf5Dataset: the rows of datasets in an HDF5 file, such as h5py writes.
//
//   Hdf5Dataset data("train.h5", {"inputs", "targets"});   // [n, 20] and [n]
//   DataLoader train(data, {.batch_size = 32, .shuffle = true});
//   for (const auto& [inputs, targets] : train) ...        // [32, 20] and [32]
//
// The loader's threads read the rows when they are needed, so a file may be larger than the memory
// (data/column_files/hdf5_table.h). Shuffling is fast for datasets without chunks and compression.
// Compressed ones are read in whole chunks, so let `cache_bytes` hold them all or read in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/column_files/hdf5_table.h"
#include "lathe/data/loading/dataset.h"

namespace lathe {

template <size_t N>
class Hdf5Dataset : public Dataset<std::array<Tensor, N>> {
 public:
  // `columns`: paths of datasets in the file, each [n, ...]. Floating-point numbers become float32,
  // uint8 stays, and other integers become int64. Keeps decompressed chunks of up to `cache_bytes`
  // bytes. Throws as Hdf5Table does; Get throws if the file has been cut short since.
  Hdf5Dataset(const std::string& path, const std::string (&columns)[N],
              int64_t cache_bytes = int64_t{64} << 20)
      : table_(std::make_shared<const Hdf5Table>(
            path, std::vector<std::string>(columns, columns + N), cache_bytes)) {}

  int64_t Size() const override { return table_->rows(); }
  std::array<Tensor, N> Get(int64_t i) const override {
    std::array<Tensor, N> row;
    for (size_t k = 0; k < N; ++k) {
      row[k] = Tensor::Empty(table_->column(k).row_shape, table_->column(k).dtype);
      table_->ReadRow(k, i, row[k].raw_data());
    }
    return row;
  }
  std::string Fingerprint() const override { return table_->Fingerprint(); }
  const Hdf5Table& table() const { return *table_; }

 private:
  std::shared_ptr<const Hdf5Table> table_;
};

}  // namespace lathe
