// Embedding look-up: see EmbeddingKernels in core/device_kernels.h.
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"

namespace lathe::cuda {
namespace {

template <int V>
__global__ void Kernel(float* y, EmbeddingArgs args) {
  const int64_t packs = args.columns / V;
  for (int64_t i = GlobalThread(); i < args.rows * packs; i += NumThreads()) {
    const int64_t row = i / packs, column = i % packs * V;
    Pack<float, V> sum = {};
    if (args.accumulate) sum = LoadPack<V>(y + row * args.columns + column);
    for (int t = 0; t < args.num_tables; ++t) {
      const int32_t id = args.ids[t][row];
      Pack<float, V> values;
      if (id >= 0 && id < args.table_rows[t]) {
        values = LoadPack<V>(args.tables[t] + id * args.columns + column);
      } else {
        for (int v = 0; v < V; ++v) values.v[v] = __int_as_float(0x7fffffff);  // NaN
      }
      const bool alone = t == 0 && !args.accumulate;  // -0 stays -0
      for (int v = 0; v < V; ++v) sum.v[v] = alone ? values.v[v] : sum.v[v] + values.v[v];
    }
    StorePack(y + row * args.columns + column, sum);
  }
}

void Forward(float* y, const EmbeddingArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  constexpr int V = kPack<float>;
  bool aligned = args.columns % V == 0 && Aligned16({y});
  for (int t = 0; t < args.num_tables; ++t) aligned = aligned && Aligned16({args.tables[t]});
  if (aligned) {
    LATHE_LAUNCH(Kernel<V>, GridFor(args.rows * args.columns / V), kBlock, 0, y, args);
  } else {
    LATHE_LAUNCH(Kernel<1>, GridFor(args.rows * args.columns), kBlock, 0, y, args);
  }
}

const EmbeddingKernels table = {Forward};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
