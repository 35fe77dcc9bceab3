// The backend's build for GPUs.
#include <absl/strings/str_cat.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "lathe/core/cuda/runtime/build.h"
#include "lathe/core/cuda/runtime/device.h"

namespace lathe::cuda {

std::string BuildName() {
  return absl::StrCat("CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10,
                      ", kernels for ", LATHE_CUDA_ARCHS);
}

int64_t GuardBytes() { return 0; }
void OnNewSegment(void*, int64_t) {}
void OnNewBuffer(void*, int64_t) {}
bool OnNewStorage(void*, int64_t, bool) { return false; }
void OnFreedStorage(void*, int64_t, bool) {}
void OnGivenWorkspace(void*, int64_t, int64_t) {}

// The limit is never lowered, because recorded launches of the kernel may need more than this one.
void RaiseSharedMemoryLimit(const char* name, const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<const void*, size_t> allowed;
  const std::lock_guard lock(mutex);
  if (allowed[kernel] >= bytes) return;
  CheckCuda(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
  allowed[kernel] = bytes;
}

}  // namespace lathe::cuda
