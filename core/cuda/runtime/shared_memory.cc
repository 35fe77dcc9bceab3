// The limits of the shared memory that a kernel's block may have.
#include "lathe/core/base/error.h"
#include "lathe/core/cuda/runtime/build.h"
#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {

size_t SharedMemoryPerBlock() {
  BindThread();
  // The value is cached, since a process uses one device only.
  static const size_t bytes = [] {
    int device = 0, most = 0;
    CheckCuda("cudaGetDevice", cudaGetDevice(&device));
    CheckCuda("cudaDeviceGetAttribute",
              cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return static_cast<size_t>(most);
  }();
  return bytes;
}

void AllowSharedMemory(const char* name, const void* kernel, size_t bytes) {
  Check(bytes <= SharedMemoryPerBlock(), "cuda", name, " needs ", bytes,
        " bytes of shared memory for a block, but this GPU has ", SharedMemoryPerBlock());
  RaiseSharedMemoryLimit(name, kernel, bytes);
}

}  // namespace lathe::cuda
