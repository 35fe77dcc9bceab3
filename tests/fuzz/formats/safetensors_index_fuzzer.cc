// model.safetensors.index.json, beside two shards that hold the tensors a and b.
#include <filesystem>

#include "lathe/core/safetensors/safetensors.h"
#include "lathe/tests/fuzz/fuzzer.h"

void lathe::fuzz::ReadInput(std::string_view input) {
  static const bool written = [] {
    for (const char* name : {"a", "b"}) {
      WriteSafetensors(ScratchFolder() + "/" + name + ".safetensors",
                       {{name, Tensor::Zeros({2}, DType::kF32)}});
    }
    return true;
  }();
  static_cast<void>(written);
  ScratchFile("model.safetensors.index.json", input);
  const SafetensorsReader reader = SafetensorsReader::FromDirectory(ScratchFolder());
  for (const auto& [name, entry] : reader.entries()) reader.Read(name);
}
