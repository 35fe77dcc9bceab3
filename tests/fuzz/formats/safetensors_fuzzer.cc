// model.safetensors: the header, and all tensors that it describes.
#include "lathe/core/base/error.h"
#include "lathe/core/safetensors/safetensors.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  const SafetensorsReader reader(ScratchFile("model.safetensors", input));
  for (const auto& [name, entry] : reader.entries()) {
    const std::string of = name;
    const auto convert = [&](DType dtype) {
      Tensor converted = Tensor::Empty(reader.entries().at(of).shape, dtype);
      reader.Read(of, converted);
    };
    // Only some dtypes convert to both. A refusal of one tensor is none of the file.
    for (const DType dtype : {DType::kF32, DType::kI64}) {
      try {
        convert(dtype);
      } catch (const Error&) {
      }
    }
    try {
      reader.Read(of);
    } catch (const Error&) {
    }
  }
}
