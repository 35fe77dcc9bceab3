#include "lathe/core/cpu/dropout.h"

#include "lathe/core/cpu/dropout_bits.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kMaxColumns = 1 << 15;

template <typename T>
void Dropout(const T* x, T* out, int64_t rows, int64_t n, const DropoutMask& mask) {
  const T scale = static_cast<T>(mask.scale);
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    alignas(64) uint32_t bits[kMaxColumns];
    DropoutBitsOfRow(mask.key0, mask.key1, mask.step, static_cast<uint32_t>(mask.row_samples[r]),
                     static_cast<uint32_t>(mask.row_positions[r]), n, bits);
    for (int64_t c = 0; c < n; ++c) {
      out[r * n + c] = bits[c] < mask.threshold ? T(0) : x[r * n + c] * scale;
    }
  }
}

}  // namespace

template <>
const DropoutKernels& TableOf<DropoutKernels, LATHE_ISA>() {
  static constexpr DropoutKernels table = {Dropout<float>, Dropout<double>};
  return table;
}

}  // namespace lathe::cpu
