#include "lathe/core/ops/shaping/strided_copy.h"

#include <cstring>

#include "lathe/core/kernels/shaping/strided_copy_kernels.h"
#include "lathe/core/ops/shaping/operand_runs.h"
#include "lathe/core/ops/shaping/transposed_tile.h"

namespace lathe {
namespace {

// Copies rows of `n` elements. The compiler makes loads and stores of a length that it knows.
template <int64_t n, typename T>
void CopyRowsOf(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * to_stride, from + r * from_stride, n * sizeof(T));
}
template <typename T>
void CopyShortRows(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows,
                   int64_t n) {
  if (n == 1) return CopyRowsOf<1>(from, from_stride, to, to_stride, rows);
  if (n == 2) return CopyRowsOf<2>(from, from_stride, to, to_stride, rows);
  if (n == 4) return CopyRowsOf<4>(from, from_stride, to, to_stride, rows);
  if (n == 8) return CopyRowsOf<8>(from, from_stride, to, to_stride, rows);
  if (n == 16) return CopyRowsOf<16>(from, from_stride, to, to_stride, rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) to[r * to_stride + i] = from[r * from_stride + i];
  }
}

// Copies rows that are so short that a visit of each would take longer than the copy.
template <typename T>
void CopyAllShortRows(const T* from, T* to, const OperandWalk<2>& walk) {
  const WalkRows<2> rows(walk);
  const int64_t n = rows.columns, from_row = rows.RowStride(0), to_row = rows.RowStride(1);
  const bool repeats = rows.strides[0] == 0;
  ForRuns(
      rows.outer,
      [=](const int64_t* offsets, int64_t, int64_t count) {
        const T* const in = from + offsets[0];
        T* const out = to + offsets[1];
        if (!repeats) return CopyShortRows(in, from_row, out, to_row, count, n);
        for (int64_t r = 0; r < count; ++r) {
          const T value = in[r * from_row];
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) out[r * to_row + i] = value;
        }
      },
      n);
}

// Copies run by run along the innermost dimension.
template <typename T>
void CopyRuns(const T* from, T* to, const OperandWalk<2>& walk) {
  const int last = std::max(walk.count - 1, 0);
  const int64_t from_stride = walk.strides[0][last], to_stride = walk.strides[1][last];
  const bool contiguous = walk.count == 0 || (from_stride == 1 && to_stride == 1);
  constexpr int64_t kShort = 32;  // elements of a row
  if (walk.count > 1 && walk.sizes[last] <= kShort && to_stride == 1 && from_stride <= 1)
    return CopyAllShortRows(from, to, walk);
  ForRuns(walk, [=](const int64_t* offsets, int64_t, int64_t n) {
    const T* const in = from + offsets[0];
    T* const out = to + offsets[1];
    constexpr int64_t kFew = 16;  // elements for which a loop is faster than a call
    if (contiguous && n > kFew) {
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof(T));
    } else if (from_stride == 0 && to_stride == 1) {
      const T value = *in;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = value;
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * to_stride] = in[i * from_stride];
    }
  });
}

// Copies tile by tile. Along the dimension `row` the elements of `from` follow each other, and
// along the innermost one those of `to` do.
template <typename T>
void CopyTiles(const T* from, T* to, const OperandWalk<2>& walk, int row) {
  constexpr int64_t kTile = kTransposedTile;
  const int last = walk.count - 1;
  OperandWalk<2> outer = {};
  for (int d = 0; d < last; ++d) {
    if (d == row) continue;
    outer.sizes[outer.count] = walk.sizes[d];
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.count] = walk.strides[k][d];
    ++outer.count;
  }
  const int64_t rows = walk.sizes[row], columns = walk.sizes[last];
  const int64_t across = DivideUp(columns, kTile), tiles = across * DivideUp(rows, kTile);
  const int64_t all = NumPlaces(outer) * tiles;
#pragma omp parallel for schedule(static) if (NumPlaces(walk) > kParallelSize)
  for (int64_t i = 0; i < all; ++i) {
    const WalkPlace<2> place(outer, outer.count, i / tiles);
    const int64_t r = i % tiles / across * kTile, c = i % across * kTile;
    CopyTransposedTile(from + place.offsets[0] + c * walk.strides[0][last] + r,
                       walk.strides[0][last], to + place.offsets[1] + r * walk.strides[1][row] + c,
                       walk.strides[1][row], std::min(kTile, rows - r),
                       std::min(kTile, columns - c));
  }
}

template <typename T>
void CopyOnHost(const void* from_data, void* to_data, const StridedElements& from,
                const StridedElements& to, const OperandWalk<2>& walk) {
  const T* const in = static_cast<const T*>(from_data) + from.begin;
  T* const out = static_cast<T*>(to_data) + to.begin;
  const int last = walk.count - 1;
  if (last > 0 && walk.strides[1][last] == 1 && walk.strides[0][last] > 1) {
    for (int d = 0; d < last; ++d) {
      if (walk.strides[0][d] == 1) return CopyTiles(in, out, walk, d);
    }
  }
  CopyRuns(in, out, walk);
}

}  // namespace

void CopyStrided(const char* op, const Shape& sizes, const StridedElements& from,
                 const StridedElements& to) {
  const OperandWalk<2> walk = MergedWalk<2>(op, sizes, {from.strides, to.strides});
  if (NumPlaces(walk) == 0) return;
  const int64_t size = SizeOf(from.tensor.dtype());
  const void* const in = from.tensor.raw_data();
  void* const out = to.tensor.raw_data();
  if (!from.tensor.device().is_cpu()) {
    return DeviceKernels<StridedCopyKernels>().copy(
        static_cast<const char*>(in) + from.begin * size, static_cast<char*>(out) + to.begin * size,
        size, walk);
  }
  if (size == 1) return CopyOnHost<uint8_t>(in, out, from, to, walk);
  if (size == 2) return CopyOnHost<uint16_t>(in, out, from, to, walk);
  if (size == 4) return CopyOnHost<uint32_t>(in, out, from, to, walk);
  CopyOnHost<uint64_t>(in, out, from, to, walk);
}

Shape ContiguousStrides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

}  // namespace lathe
