#include "lathe/core/cpu/packed_product.h"

#include <omp.h>

#include <type_traits>

#include "lathe/core/cpu/lanes.h"
#include "lathe/core/cpu/small_product.h"
#include "lathe/core/cpu/working_memory.h"

namespace lathe::cpu {
namespace {

#if LATHE_ISA < 4

// Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008): a tile of C
// stays in the registers while it is summed up over a block of `depth`. For it a panel of op(B),
// depth x kPanel, is read from the nearest cache, and a strip of op(A), kStrip x depth, from the
// next one.
constexpr int64_t kStrip = 6, kPanel = 2 * kSide;
constexpr int64_t kMostDepth = 256;      // a panel takes 16 KB
constexpr int64_t kMostStripRows = 192;  // of strips that are copied together: 192 KB
constexpr int64_t kMostColumns = 1024;  // of panels that are copied together, for all threads: 1 MB

constexpr int64_t kSmall = 1 << 16;  // operations that other threads would come too late for

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The size of as few equal parts of n as there can be with at most `most` each; a multiple of
// `unit`, as `most` must be.
int64_t PartSize(int64_t n, int64_t most, int64_t unit) {
  return Ceil(Ceil(n, Ceil(n, most)), unit) * unit;
}

// Part `i` of `parts` nearly equal ones of the numbers from 0 to n.
struct Range {
  int64_t begin, end;
};
Range PartOf(int64_t n, int64_t parts, int64_t i) { return {n * i / parts, n * (i + 1) / parts}; }

// How threads share out C: rows x columns of them.
struct Grid {
  int64_t rows, columns;
};
// The one with the least work for the thread that has the most.
Grid ChooseGrid(int64_t threads, int64_t strips, int64_t panels) {
  Grid best = {threads, 1};
  int64_t least = INT64_MAX;
  for (int64_t columns = 1; columns <= threads; ++columns) {
    if (threads % columns != 0) continue;
    const int64_t most = Ceil(strips, threads / columns) * Ceil(panels, columns);
    if (most < least) best = {threads / columns, columns}, least = most;
  }
  return best;
}

// to[k * kStrip + r] = op(A)(row + r, depth + k), for `rows` <= kStrip; what `to` has for other
// rows counts for nothing. Writes up to a register beyond the strip.
template <typename T, typename C>
void CopyStrip(float* to, const PackedProduct<T, C>& p, int64_t row, int64_t rows, int64_t from,
               int64_t depth) {
  if (p.transpose_a) {
    const T* a = p.a + from * p.lda + row;
    // A whole register is more than a strip: of the last rows it would be more than A has.
    const bool whole = kSide > kStrip && row + kSide <= p.M;
    for (int64_t k = 0; k < depth; ++k, a += p.lda, to += kStrip) {
      if (whole) {
        StoreLanes(to, LoadLanes(a, AllLanes{}), AllLanes{});
      } else {
        for (int64_t r = 0; r < rows; ++r) to[r] = Load(a[r]);
      }
    }
    return;
  }
  const T* a = p.a + row * p.lda + from;
  int64_t k = 0;
  if constexpr (kSide > kStrip) {
    // Of a transposed register only the first kStrip elements stay.
    for (; k + kSide <= depth; k += kSide) {
      if (rows == kStrip) {
        TransposeBlock<false>(to + k * kStrip, kStrip, a + k, p.lda, kStrip);
      } else {
        TransposeBlock<false>(to + k * kStrip, kStrip, a + k, p.lda, rows);
      }
    }
  }
  for (; k < depth; ++k) {
    for (int64_t r = 0; r < rows; ++r) to[k * kStrip + r] = Load(a[r * p.lda + k]);
  }
}

// to[k * kPanel + n] = op(B)(from + k, column + n), zeros from `columns` <= kPanel on.
template <typename T, typename C>
void CopyPanel(float* to, const PackedProduct<T, C>& p, int64_t column, int64_t columns,
               int64_t from, int64_t depth) {
  if (columns < kPanel) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t n = 0; n < kPanel; ++n) {
        const int64_t at =
            p.transpose_b ? (column + n) * p.ldb + from + k : (from + k) * p.ldb + column + n;
        to[k * kPanel + n] = n < columns ? Load(p.b[at]) : 0.0f;
      }
    }
    return;
  }
  if (!p.transpose_b) {
    const T* b = p.b + from * p.ldb + column;
    for (int64_t k = 0; k < depth; ++k, b += p.ldb, to += kPanel) {
      StoreLanes(to, LoadLanes(b, AllLanes{}), AllLanes{});
      StoreLanes(to + kSide, LoadLanes(b + kSide, AllLanes{}), AllLanes{});
    }
    return;
  }
  for (int64_t n = 0; n < kPanel; n += kSide) {
    const T* b = p.b + (column + n) * p.ldb + from;
    int64_t k = 0;
    for (; k + kSide <= depth; k += kSide)
      TransposeBlock<true>(to + k * kPanel + n, kPanel, b + k, p.ldb, kSide);
    for (; k < depth; ++k) {
      for (int64_t r = 0; r < kSide; ++r) to[k * kPanel + n + r] = Load(b[r * p.ldb + k]);
    }
  }
}

// c (rows, kPanel) = a b + `start`, or c += a b; a: a strip, b: a panel. start: (kPanel), or null.
template <int rows>
[[gnu::noinline]] void Tile(int64_t depth, const float* a, const float* b, float* c, int64_t ldc,
                            bool accumulate, const float* start) {
  Lanes<float> sums[rows][2] = {};
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) __builtin_prefetch(c + r * ldc, 1);
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k) {
    const Lanes<float> left = LoadLanes(b + k * kPanel, AllLanes{});
    const Lanes<float> right = LoadLanes(b + k * kPanel + kSide, AllLanes{});
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const float factor = a[k * kStrip + r];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* const to = c + r * ldc + half * kSide;
      Lanes<float> sum = sums[r][half];
      if (accumulate) {
        sum += LoadLanes(to, AllLanes{});
      } else if (start != nullptr) {
        sum += LoadLanes(start + half * kSide, AllLanes{});
      }
      StoreLanes(to, sum, AllLanes{});
    }
  }
}

using TileFunction = void (*)(int64_t depth, const float* a, const float* b, float* c, int64_t ldc,
                              bool accumulate, const float* start);
constexpr TileFunction kTiles[kStrip] = {Tile<1>, Tile<2>, Tile<3>, Tile<4>, Tile<5>, Tile<6>};

// What a thread works in, in elements: strips, a tile of C, its part of C if that isn't float32;
// and panels for all threads, which the first one has.
struct WorkingSizes {
  int64_t strips, tile, sums, panels;
  int64_t All() const { return strips + tile + sums + panels; }
};

template <typename T, typename C>
void Multiply(const PackedProduct<T, C>& p) {
  constexpr bool kDirect = std::is_same_v<C, float>;
  const int64_t depth = PartSize(p.K, kMostDepth, kSide);
  const int64_t columns = PartSize(p.N, kMostColumns, kPanel);
  const int64_t all_strips = Ceil(p.M, kStrip);
  const WorkingSizes sizes = {.strips = PartSize(p.M, kMostStripRows, kStrip) * depth + kSide,
                              .tile = kStrip * kPanel,
                              .sums = kDirect ? 0 : all_strips * kStrip * columns,
                              .panels = columns * depth};
  const size_t bytes = static_cast<size_t>(sizes.All() + 64) * sizeof(float);
  ReserveWorkingMemory(bytes);
  float* const panels = static_cast<float*>(WorkingMemory(bytes));
#pragma omp parallel if (p.M * p.N * p.K > kSmall)
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    float* const tile = static_cast<float*>(WorkingMemory(bytes)) + sizes.panels;
    float* const sums = tile + sizes.tile;
    float* const strips = sums + sizes.sums;
    for (int64_t n = 0; n < p.N; n += columns) {
      const int64_t width = Min(columns, p.N - n), all_panels = Ceil(width, kPanel);
      const Grid grid = ChooseGrid(threads, all_strips, all_panels);
      const Range my_strips = PartOf(all_strips, grid.rows, thread / grid.columns);
      const Range my_panels = PartOf(all_panels, grid.columns, thread % grid.columns);
      const int64_t first_row = my_strips.begin * kStrip;
      const int64_t end_row = Min(my_strips.end * kStrip, p.M);
      const int64_t rows =
          first_row < end_row ? PartSize(end_row - first_row, kMostStripRows, kStrip) : 0;
      for (int64_t k = 0; k < p.K; k += depth) {
        const int64_t deep = Min(depth, p.K - k);
#pragma omp barrier  // nobody reads the last panels any more
        const Range mine = PartOf(all_panels, threads, thread);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
          CopyPanel(panels + i * kPanel * deep, p, n + i * kPanel, Min(kPanel, width - i * kPanel),
                    k, deep);
        }
#pragma omp barrier
        const bool accumulate = k > 0 || (kDirect && p.accumulate);
        for (int64_t block = first_row; block < end_row; block += rows) {
          const int64_t block_end = Min(block + rows, end_row);
          for (int64_t row = block; row < block_end; row += kStrip)
            CopyStrip(strips + (row - block) * deep, p, row, Min(kStrip, p.M - row), k, deep);
          for (int64_t i = my_panels.begin; i < my_panels.end; ++i) {
            const float* const panel = panels + i * kPanel * deep;
            const int64_t column = n + i * kPanel, real = Min(kPanel, p.N - column);
            for (int64_t row = block; row < block_end; row += kStrip) {
              const int64_t real_rows = Min(kStrip, p.M - row);
              const TileFunction multiply = kTiles[real_rows - 1];
              const float* const strip = strips + (row - block) * deep;
              const float* const bias = p.bias == nullptr ? nullptr : p.bias + column;
              if constexpr (kDirect) {
                float* const c = p.c + row * p.ldc + column;
                if (real == kPanel) {
                  multiply(deep, strip, panel, c, p.ldc, accumulate, bias);
                  continue;
                }
                multiply(deep, strip, panel, tile, kPanel, false, nullptr);
                for (int64_t r = 0; r < real_rows; ++r) {
                  for (int64_t j = 0; j < real; ++j) {
                    float& to = c[r * p.ldc + j];
                    to = tile[r * kPanel + j] + (accumulate        ? to
                                                 : bias != nullptr ? bias[j]
                                                                   : 0.0f);
                  }
                }
              } else {
                float* const c = sums + (row - first_row) * columns + i * kPanel;
                multiply(deep, strip, panel, c, columns, accumulate, nullptr);
                if (k + deep < p.K) continue;
                for (int64_t r = 0; r < real_rows; ++r) {
                  C* const to = p.c + (row + r) * p.ldc + column;
                  for (int64_t j = 0; j < real; ++j) {
                    Store(to[j], c[r * columns + j] + (p.accumulate      ? Load(to[j])
                                                       : bias != nullptr ? bias[j]
                                                                         : 0.0f));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

#endif

}  // namespace

template <>
const PackedProductKernels& TableOf<PackedProductKernels, LATHE_ISA>() {
#if LATHE_ISA == 3
  static constexpr PackedProductKernels table = {
      Multiply<float, float>, Multiply<BFloat16, BFloat16>, Multiply<BFloat16, float>};
#elif LATHE_ISA == 2
  static constexpr PackedProductKernels table = {nullptr, Multiply<BFloat16, BFloat16>,
                                                 Multiply<BFloat16, float>};
#else
  static constexpr PackedProductKernels table = {};
#endif
  return table;
}

}  // namespace lathe::cpu
