// Copies with the dimensions in any order. StridedCopyKernels in
// core/kernels/shaping/strided_copy_kernels.h describes the kernel.
#include <algorithm>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/cuda/shaping/operand_offsets.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/shaping/strided_copy_kernels.h"

namespace lathe::cuda {
namespace {

template <typename Unit, typename Index>
__global__ void CopyKernel(const Unit* from, Unit* to, OperandWalk<2> walk, int64_t n) {
  for (int64_t i = GlobalThread(); i < n; i += NumThreads()) {
    int64_t offsets[2];
    OffsetsAt(walk, static_cast<Index>(i), offsets);
    to[offsets[1]] = from[offsets[0]];
  }
}

template <typename Unit>
void Copy(const void* from, void* to, const OperandWalk<2>& walk) {
  const int64_t n = NumPlaces(walk);
  WithIndexType(n, [&](auto index) {
    LATHE_LAUNCH((CopyKernel<Unit, decltype(index)>), GridFor(n), kBlock, 0,
                 static_cast<const Unit*>(from), static_cast<Unit*>(to), walk, n);
  });
}

constexpr int kTile = 32, kTileRows = 8;

// The matrices of a copy that exchanges rows and columns. The elements of a row follow each other
// in `from`, those of a column in `to`.
struct Matrices {
  OperandWalk<2> outer;  // over the matrices
  int64_t rows, columns, from_stride, to_stride;
};

// A block of (kTile, kTileRows) threads takes tiles of kTile by kTile elements.
template <typename T>
__global__ void TileKernel(const T* from, T* to, Matrices m, int64_t matrices) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t across = (m.columns + kTile - 1) / kTile, down = (m.rows + kTile - 1) / kTile;
  for (int64_t t = blockIdx.x; t < matrices * across * down; t += gridDim.x) {
    int64_t offsets[2];
    OffsetsAt(m.outer, t / (across * down), offsets);
    const int64_t row = t / across % down * kTile, column = t % across * kTile;
    for (int r = threadIdx.y; r < kTile; r += kTileRows) {
      if (row + r < m.rows && column + threadIdx.x < m.columns) {
        tile[r][threadIdx.x] = from[offsets[0] + (row + r) * m.from_stride + column + threadIdx.x];
      }
    }
    __syncthreads();
    for (int c = threadIdx.y; c < kTile; c += kTileRows) {
      if (column + c < m.columns && row + threadIdx.x < m.rows) {
        to[offsets[1] + (column + c) * m.to_stride + row + threadIdx.x] = tile[threadIdx.x][c];
      }
    }
    __syncthreads();
  }
}

// `column` is the dimension along which the elements of `from` follow each other; those of `to` do
// so along the innermost one.
template <typename T>
void CopyTiles(const void* from, void* to, const OperandWalk<2>& walk, int column) {
  const int last = walk.count - 1;
  Matrices m = {
      {}, walk.sizes[last], walk.sizes[column], walk.strides[0][last], walk.strides[1][column]};
  for (int d = 0; d < last; ++d) {
    if (d == column) continue;
    m.outer.sizes[m.outer.count] = walk.sizes[d];
    for (int k = 0; k < 2; ++k) m.outer.strides[k][m.outer.count] = walk.strides[k][d];
    ++m.outer.count;
  }
  const int64_t matrices = NumPlaces(m.outer);
  const int64_t tiles = matrices * DivideUp(m.rows, kTile) * DivideUp(m.columns, kTile);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tiles, 1 << 20)));
  LATHE_LAUNCH(TileKernel<T>, grid, dim3(kTile, kTileRows), 0, static_cast<const T*>(from),
               static_cast<T*>(to), m, matrices);
}

// Returns the number of elements that can be moved at once: as many as 16 bytes have, or 1.
int64_t ElementsAtOnce(const void* from, const void* to, int64_t size, const OperandWalk<2>& walk) {
  const int last = walk.count - 1;
  if (last < 0 || walk.strides[0][last] != 1 || walk.strides[1][last] != 1) return 1;
  int64_t bits = walk.sizes[last] * size;  // divisible by 16 if all lengths are
  for (int d = 0; d < last; ++d) bits |= (walk.strides[0][d] | walk.strides[1][d]) * size;
  return bits % 16 == 0 && Aligned16({from, to}) ? 16 / size : 1;
}

void CopyOf(const void* from, void* to, int64_t size, const OperandWalk<2>& walk) {
  if (NumPlaces(walk) == 0) return;
  const int last = walk.count - 1;
  if (const int64_t n = ElementsAtOnce(from, to, size, walk); n > 1) {
    OperandWalk<2> units = walk;
    units.sizes[last] /= n;
    for (int d = 0; d < last; ++d) {
      for (int k = 0; k < 2; ++k) units.strides[k][d] /= n;
    }
    return Copy<uint4>(from, to, units);
  }
  WithElement(size, [&](auto element) {
    using T = decltype(element);
    if (last > 0 && walk.strides[1][last] == 1 && walk.strides[0][last] > 1) {
      for (int d = 0; d < last; ++d) {
        if (walk.strides[0][d] == 1) return CopyTiles<T>(from, to, walk, d);
      }
    }
    Copy<T>(from, to, walk);
  });
}

const StridedCopyKernels table = {CopyOf};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
