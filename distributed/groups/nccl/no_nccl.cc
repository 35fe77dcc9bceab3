// Replaces nccl_group.cc where NCCL's header, or CUDA, was missing.
#include "lathe/core/device_libraries.h"

namespace lathe {

[[maybe_unused]] const bool named = RegisterDeviceLibrary(
    []() -> std::string { return "no NCCL: this program was built without its header"; });

}  // namespace lathe
