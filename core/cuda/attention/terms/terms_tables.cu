// Turns the sums by offset of attention with terms into the gradients of the tables.
#include "lathe/core/cuda/attention/attention_terms.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"

namespace lathe::cuda {
namespace {

constexpr int kRowColumns = 32, kRowThreads = 8;  // the threads of SumRowsKernel

// Adds up all slots, and all heads of a table that they share. sums: [slots, count, groups *
// columns] becomes [count, columns] in the first `columns` columns of the first slot's rows.
__global__ void SumSlotsKernel(float* sums, int slots, int64_t count, int columns, int groups) {
  const int64_t width = static_cast<int64_t>(groups) * columns;
  for (int64_t i = GlobalThread(); i < count * columns; i += NumThreads()) {
    float* const to = sums + i / columns * width + i % columns;
    float sum = 0;
    for (int slot = 0; slot < slots; ++slot) {
      for (int group = 0; group < groups; ++group) {
        sum += to[slot * count * width + static_cast<int64_t>(group) * columns];
      }
    }
    *to = sum;
  }
}

// A block takes a row and 32 columns of a table. Each thread adds up every eighth offset that has
// this row, then one thread for each column adds up their sums.
template <typename T>
__global__ void SumRowsKernel(T* to, const float* sums, int count, int columns, int64_t width,
                              const int32_t* rows, float scale) {
  __shared__ float parts[kRowThreads][kRowColumns];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.x;
  const int column = blockIdx.y * kRowColumns + x;
  float part = 0;
  for (int offset = y; offset < count && column < columns; offset += kRowThreads) {
    if (rows[offset] == row) part += sums[offset * width + column];
  }
  parts[y][x] = part;
  __syncthreads();
  if (y > 0 || column >= columns) return;
  float sum = 0;
  for (int other = 0; other < kRowThreads; ++other) sum += parts[other][x];
  Store(to[static_cast<int64_t>(row) * columns + column], sum * scale);
}

// Assigns a table's gradient, [table_rows, columns], from its sums: [slots, count, groups *
// columns].
template <typename T>
void SumTable(T* to, float* sums, int columns, int groups, float scale, const OffsetSums& shape,
              const AttentionTerms& terms) {
  if (to == nullptr || terms.table_rows == 0) return;
  LATHE_LAUNCH(SumSlotsKernel, GridFor(static_cast<int64_t>(shape.count) * columns), kBlock, 0,
               sums, shape.slots, shape.count, columns, groups);
  const dim3 grid(static_cast<unsigned>(terms.table_rows),
                  static_cast<unsigned>(DivideUp(columns, kRowColumns)));
  LATHE_LAUNCH(SumRowsKernel<T>, grid, dim3(kRowColumns, kRowThreads), 0, to, sums, shape.count,
               columns, static_cast<int64_t>(groups) * columns,
               terms.rows + terms.origin + shape.first, scale);
}

}  // namespace

template <typename T>
void SumsToTables(const TableGradients& tables, const OffsetSums& sums, const AttentionTerms& terms,
                  const AttentionParams& params) {
  const int columns = static_cast<int>(terms.table_width);
  const int groups = columns == params.head_dim ? params.heads : 1;
  SumTable(tables.bias, sums.bias, params.heads, 1, 1, sums, terms);
  SumTable(static_cast<T*>(tables.keys), sums.keys, columns, groups, params.scale, sums, terms);
  SumTable(static_cast<T*>(tables.queries), sums.queries, columns, groups, params.scale, sums,
           terms);
}

#define LATHE_INSTANTIATE(T)                                                                     \
  template void SumsToTables<T>(const TableGradients&, const OffsetSums&, const AttentionTerms&, \
                                const AttentionParams&);
LATHE_INSTANTIATE(float)
LATHE_INSTANTIATE(BFloat16)
LATHE_INSTANTIATE(Float16)
#undef LATHE_INSTANTIATE

}  // namespace lathe::cuda
