// Replaces attention_cudnn.cc in builds without cuDNN's headers.
#include "lathe/core/cuda/attention/attention_library.h"
#include "lathe/core/device_libraries.h"

namespace lathe::cuda {

[[maybe_unused]] const bool registered = RegisterDeviceLibrary(
    []() -> std::string { return "no cuDNN: this program was built without its headers"; });

AttentionLibrary* FindAttentionLibrary(std::string* why) {
  *why = "this program was built without cuDNN's headers";
  return nullptr;
}

}  // namespace lathe::cuda
