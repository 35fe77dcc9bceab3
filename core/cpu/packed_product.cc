#include "lathe/core/cpu/packed_product.h"

#include <omp.h>

#include <iterator>
#include <type_traits>

#include "lathe/core/base/round_up.h"
#include "lathe/core/base/working_memory.h"
#include "lathe/core/cpu/lanes.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

#if LATHE_ISA < 4

// A tile of C stays in the registers while it is summed up over a block of `depth`. For that a
// panel of op(B), depth x kPanel, is read from the nearest cache. A strip of op(A), kStrip x depth,
// is read from the next one. Source: Goto and van de Geijn, Anatomy of High-Performance Matrix
// Multiplication (2008).
constexpr int64_t kStrip = kMostRows, kPanel = 2 * kSide;
constexpr int64_t kMostDepth = 256;      // a panel takes up to 16 KB
constexpr int64_t kMostStripRows = 192;  // rows of the strips that are copied together: 192 KB
constexpr int64_t kMostColumns = 1536;   // columns of the panels that are copied together: 1.5 MB
constexpr int64_t kMostSummedColumns = 384;  // if C isn't float32: sums take 1.5 KB a row
constexpr int64_t kSmall = 1 << 16;  // operations that one thread has done before others could help

// Returns the size of equal parts of n, as few as possible, with at most `most` each. It is a
// multiple of `unit`, as `most` must be.
int64_t PartSize(int64_t n, int64_t most, int64_t unit) {
  return RoundUp(DivideUp(n, DivideUp(n, most)), unit);
}

// The numbers from `begin` up to, but not including, `end`.
struct Range {
  int64_t begin, end;
};
// Returns part `i` of `parts` nearly equal ones of the numbers from 0 to n.
Range PartOf(int64_t n, int64_t parts, int64_t i) { return {n * i / parts, n * (i + 1) / parts}; }

// The grid of threads that share C: rows x columns of them.
struct Grid {
  int64_t rows, columns;
};
// Returns the grid whose busiest thread has the least work.
Grid ChooseGrid(int64_t threads, int64_t strips, int64_t panels) {
  Grid best = {threads, 1};
  int64_t least = INT64_MAX;
  for (int64_t columns = 1; columns <= threads; ++columns) {
    if (threads % columns != 0) continue;
    const int64_t most = DivideUp(strips, threads / columns) * DivideUp(panels, columns);
    if (most < least) best = {threads / columns, columns}, least = most;
  }
  return best;
}

// Returns the distance from a strip to the next one. A register that is stored at a strip's end
// reaches beyond it.
int64_t StripSize(int64_t depth) { return kStrip * depth + kSide; }

// The number of strips or panels that are copied together if their elements lie beside each other,
// so that a cache line is read once.
constexpr int64_t kTogether = 4;

// to[k * kStrip + r] = op(A)(row + r, from + k), for r < `rows` <= kStrip. The elements of `to` for
// other rows have no meaning. Writes up to a register beyond the strip.
template <typename T, typename C>
void CopyStrip(float* to, const PackedProduct<T, C>& p, int64_t row, int64_t rows, int64_t from,
               int64_t depth) {
  const int64_t row_stride = p.transpose_a ? 1 : p.lda, stride = p.transpose_a ? p.lda : 1;
  const T* const a = p.a + row * row_stride + from * stride;
  int64_t k = 0;
  if (kSide > kStrip && !p.transpose_a) {
    // Only the first kStrip elements of a transposed register stay. Because the number of rows is
    // passed as a constant, TransposeBlock doesn't compare with it at run time.
    for (; rows == kStrip && k + kSide <= depth; k += kSide)
      TransposeBlock<false>(to + k * kStrip, kStrip, a + k, p.lda, kStrip);
  }
  for (; k < depth; ++k) {
    for (int64_t r = 0; r < rows; ++r) to[k * kStrip + r] = Load(a[r * row_stride + k * stride]);
  }
}

// Copies the strips of rows [begin, end), one after the other.
template <typename T, typename C>
void CopyStrips(float* to, const PackedProduct<T, C>& p, int64_t begin, int64_t end, int64_t from,
                int64_t depth) {
  int64_t row = begin;
  // A register is wider than a strip, so for A's last rows it would read beyond A.
  constexpr int64_t kReach = (kTogether - 1) * kStrip + kSide;
  if (kSide > kStrip && p.transpose_a) {
    for (; row + kTogether * kStrip <= end && row + kReach <= p.M; row += kTogether * kStrip) {
      const T* a = p.a + from * p.lda + row;
      float* strip = to + (row - begin) / kStrip * StripSize(depth);
      for (int64_t k = 0; k < depth; ++k, a += p.lda, strip += kStrip) {
#pragma GCC unroll 4
        for (int64_t i = 0; i < kTogether; ++i) {
          StoreLanes(strip + i * StripSize(depth), LoadLanes(a + i * kStrip, AllLanes{}),
                     AllLanes{});
        }
      }
    }
  }
  for (; row < end; row += kStrip)
    CopyStrip(to + (row - begin) / kStrip * StripSize(depth), p, row, Min(kStrip, p.M - row), from,
              depth);
}

// to[k * kPanel + n] = op(B)(from + k, column + n), with zeros for n from `columns` <= kPanel on.
template <typename T, typename C>
void CopyPanel(float* to, const PackedProduct<T, C>& p, int64_t column, int64_t columns,
               int64_t from, int64_t depth) {
  const int64_t column_stride = p.transpose_b ? p.ldb : 1, stride = p.transpose_b ? 1 : p.ldb;
  const T* const b = p.b + column * column_stride + from * stride;
  int64_t k = 0;
  if (columns == kPanel && p.transpose_b) {
    for (; k + kSide <= depth; k += kSide) {
      for (int64_t n = 0; n < kPanel; n += kSide)
        TransposeBlock<true>(to + k * kPanel + n, kPanel, b + n * p.ldb + k, p.ldb, kSide);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t n = 0; n < kPanel; ++n) {
      to[k * kPanel + n] = n < columns ? Load(b[n * column_stride + k * stride]) : 0.0f;
    }
  }
}

// Copies panels [begin, end) of the `columns` columns of op(B) from `column` on.
template <typename T, typename C>
void CopyPanels(float* to, const PackedProduct<T, C>& p, Range panels, int64_t column,
                int64_t columns, int64_t from, int64_t depth) {
  int64_t i = panels.begin;
  if (!p.transpose_b) {
    for (; i + kTogether <= panels.end && (i + kTogether) * kPanel <= columns; i += kTogether) {
      const T* b = p.b + from * p.ldb + column + i * kPanel;
      float* panel = to + i * kPanel * depth;
      for (int64_t k = 0; k < depth; ++k, b += p.ldb, panel += kPanel) {
#pragma GCC unroll 8
        for (int64_t j = 0; j < 2 * kTogether; ++j) {
          StoreLanes(panel + j / 2 * kPanel * depth + j % 2 * kSide,
                     LoadLanes(b + j * kSide, AllLanes{}), AllLanes{});
        }
      }
    }
  }
  for (; i < panels.end; ++i) {
    CopyPanel(to + i * kPanel * depth, p, column + i * kPanel, Min(kPanel, columns - i * kPanel),
              from, depth);
  }
}

// c: (rows, kPanel) = a b + `start`, or c += a b, as `result` says. a is a strip, b a panel. start:
// (kPanel), or null.
template <int rows>
[[gnu::noinline]] void Tile(int64_t depth, const float* a, const float* b, float* c, int64_t ldc,
                            Result result, const float* start) {
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
      if (result == Result::kAddTo) {
        sum += LoadLanes(to, AllLanes{});
      } else if (start != nullptr) {
        sum += LoadLanes(start + half * kSide, AllLanes{});
      }
      StoreLanes(to, sum, AllLanes{});
    }
  }
}

using TileFunction = void (*)(int64_t depth, const float* a, const float* b, float* c, int64_t ldc,
                              Result result, const float* start);
constexpr TileFunction kTiles[] = {Tile<1>, Tile<2>, Tile<3>, Tile<4>, Tile<5>, Tile<6>};
static_assert(std::size(kTiles) == kStrip);

// A tile of C: `rows` x `columns` elements from (row, column) on, at most kStrip x kPanel.
struct Place {
  int64_t row, column, rows, columns;
};

// Returns what p adds to the finished sum of element c of C, which is in column `column`.
template <typename T, typename C>
float Added(const PackedProduct<T, C>& p, const C& c, int64_t column) {
  return p.accumulate ? Load(c) : p.bias != nullptr ? p.bias[column] : 0.0f;
}

// Multiplies a strip by a panel into C itself, which is float32. `first` is true for the first
// block of the depth.
template <typename T>
void MultiplyTile(const PackedProduct<T, float>& p, const Place& at, int64_t depth, bool first,
                  const float* strip, const float* panel, float* tile) {
  const TileFunction multiply = kTiles[at.rows - 1];
  float* const c = p.c + at.row * p.ldc + at.column;
  if (at.columns == kPanel) {
    const float* const start = first && p.bias != nullptr ? p.bias + at.column : nullptr;
    const Result result = !first || p.accumulate ? Result::kAddTo : Result::kOverwrite;
    return multiply(depth, strip, panel, c, p.ldc, result, start);
  }
  multiply(depth, strip, panel, tile, kPanel, Result::kOverwrite, nullptr);
  for (int64_t r = 0; r < at.rows; ++r) {
    for (int64_t j = 0; j < at.columns; ++j) {
      float& to = c[r * p.ldc + j];
      to = tile[r * kPanel + j] + (first ? Added(p, to, at.column + j) : to);
    }
  }
}

// Stores finished float32 sums in C, which has another type.
template <typename T, typename C>
void StoreTile(const PackedProduct<T, C>& p, const Place& at, const float* sums, int64_t ld) {
  for (int64_t r = 0; r < at.rows; ++r) {
    C* const to = p.c + (at.row + r) * p.ldc + at.column;
    for (int64_t j = 0; j < at.columns; ++j)
      Store(to[j], sums[r * ld + j] + Added(p, to[j], at.column + j));
  }
}

// The sizes of working memory, in elements. Each thread has strips and a tile of C. All threads
// share the panels, twice, and the sums of C if C isn't float32.
struct WorkingSizes {
  int64_t strips, tile, panels, sums;
  int64_t OfThread() const { return strips + tile; }
  int64_t Shared() const { return 2 * panels + sums; }
};
size_t Bytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); }

// It is long because its loops share the working memory.
template <typename T, typename C>
void Multiply(const PackedProduct<T, C>& p) {
  constexpr bool kInPlace = std::is_same_v<C, float>;
  const int64_t depth = PartSize(p.K, kMostDepth, kSide);
  const int64_t columns = PartSize(p.N, kInPlace ? kMostColumns : kMostSummedColumns, kPanel);
  const int64_t all_strips = DivideUp(p.M, kStrip);
  const WorkingSizes sizes = {
      .strips = PartSize(p.M, kMostStripRows, kStrip) / kStrip * StripSize(depth),
      .tile = kStrip * kPanel,
      .panels = columns * depth,
      .sums = kInPlace ? 0 : all_strips * kStrip * columns};
  ReserveWorkingMemory(Bytes(sizes.OfThread()));
  float* const all_panels =
      static_cast<float*>(WorkingMemory(Bytes(sizes.Shared() + sizes.OfThread())));
  float* const all_sums = all_panels + 2 * sizes.panels;
#pragma omp parallel if (p.M * p.N * p.K > kSmall)
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    float* const strips = thread == 0 ? all_panels + sizes.Shared()
                                      : static_cast<float*>(WorkingMemory(Bytes(sizes.OfThread())));
    float* const tile = strips + sizes.strips;
    bool second = false;
    for (int64_t n = 0; n < p.N; n += columns) {
      const int64_t width = Min(columns, p.N - n), num_panels = DivideUp(width, kPanel);
      const Grid grid = ChooseGrid(threads, all_strips, num_panels);
      const Range my_strips = PartOf(all_strips, grid.rows, thread / grid.columns);
      const Range my_panels = PartOf(num_panels, grid.columns, thread % grid.columns);
      const int64_t begin = my_strips.begin * kStrip, end = Min(my_strips.end * kStrip, p.M);
      const int64_t rows = begin < end ? PartSize(end - begin, kMostStripRows, kStrip) : kStrip;
      for (int64_t k = 0; k < p.K; k += depth) {
        const int64_t deep = Min(depth, p.K - k);
        // Other threads may still read the panels of the block before. None reads those of the
        // block before that, because all threads have come to the barrier since.
        float* const panels = all_panels + (second ? sizes.panels : 0);
        second = !second;
        CopyPanels(panels, p, PartOf(num_panels, threads, thread), n, width, k, deep);
#pragma omp barrier
        for (int64_t block = begin; block < end; block += rows) {
          const int64_t block_end = Min(block + rows, end);
          CopyStrips(strips, p, block, block_end, k, deep);
          for (int64_t i = my_panels.begin; i < my_panels.end; ++i) {
            const float* const panel = panels + i * kPanel * deep;
            for (int64_t row = block; row < block_end; row += kStrip) {
              const float* const strip = strips + (row - block) / kStrip * StripSize(deep);
              const Place at = {row, n + i * kPanel, Min(kStrip, p.M - row),
                                Min(kPanel, width - i * kPanel)};
              if constexpr (kInPlace) {
                MultiplyTile(p, at, deep, k == 0, strip, panel, tile);
              } else {
                float* const c = all_sums + row * columns + i * kPanel;
                kTiles[at.rows - 1](deep, strip, panel, c, columns,
                                    k > 0 ? Result::kAddTo : Result::kOverwrite, nullptr);
                if (k + deep == p.K) StoreTile(p, at, c, columns);
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
