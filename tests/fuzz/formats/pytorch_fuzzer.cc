// pytorch_model.bin: the zip file or the older form, the pickle, and all tensors that it describes.
#include "lathe/core/base/error.h"
#include "lathe/core/pytorch_files/pytorch_file.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  // A tensor may have far more elements than its storage, if its strides are 0. A program gives it
  // memory only if a parameter has the same shape.
  constexpr int64_t kMostElements = 1 << 16;
  for (const auto& [name, array] : ReadPyTorchFile(ScratchFile("pytorch_model.bin", input))) {
    if (NumElements(array.shape) > kMostElements) continue;
    // Only some dtypes convert to both. A refusal of one tensor is none of the file.
    for (const DType dtype : {DType::kF32, DType::kI64}) {
      Tensor converted = Tensor::Empty(array.shape, dtype);
      try {
        ReadStoredArray(name, array, converted);
      } catch (const Error&) {
      }
    }
  }
}
