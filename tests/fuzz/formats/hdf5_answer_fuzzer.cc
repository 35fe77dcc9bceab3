// What the confined child says about an HDF5 file that another program wrote: tf_model.h5, or a
// table of numbers. The child reads a damaged file, so its answer may be anything.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lathe/core/keras_files/confined_hdf5.h"
#include "lathe/core/keras_files/keras_file.h"
#include "lathe/data/column_files/hdf5_table.h"
#include "lathe/tests/fuzz/fuzzer.h"
#include "lathe/tests/fuzz/hdf5_answers.h"

namespace {

constexpr int64_t kMostElements = 10'000, kMostRows = 20;  // that are read
constexpr int64_t kCacheBytes = 1 << 16;

}  // namespace

void lathe::fuzz::ReadInput(std::string_view input) {
  static const std::string path = ScratchFile("numbers.h5", NumbersFile());
  static const auto memory = std::make_shared<const MappedFile>(path);
  const std::vector<Hdf5Array> found = ArraysInAnswer(std::string(input));
  CallAll({[&] {
             for (const auto& [name, array] : KerasTensors(found, memory, memory, path)) {
               if (NumElements(array.shape) > kMostElements) continue;
               Tensor tensor = Tensor::Empty(array.shape, array.dtype.find('F') == std::string::npos
                                                              ? DType::kI64
                                                              : DType::kF32);
               ReadStoredArray(name, array, tensor);
             }
           },
           [&] {
             const Hdf5Table table(path, {found, memory, memory->size()}, kCacheBytes);
             for (size_t i = 0; i < found.size(); ++i) {
               const Hdf5Table::Column& column = table.column(i);
               const int64_t elements = NumElements(column.row_shape);
               if (elements > kMostElements) continue;
               std::string row(static_cast<size_t>(elements * SizeOf(column.dtype)), '\0');
               for (int64_t r = 0; r < std::min(table.rows(), kMostRows); ++r)
                 table.ReadRow(i, r, row.data());
             }
           }});
}
