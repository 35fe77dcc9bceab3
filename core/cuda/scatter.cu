// Sums of rows by number, for the gradients of look-ups. ScatterAddKernels in
// core/kernels/scatter_add_kernels.h describes them. A row's number, index[row], is the row of `to`
// that it is added to.
//
// The first row with a number sums all rows with that number in order, so the result doesn't depend
// on timing. It searches the numbers behind it until it has found all occurrences. If more than
// kFew rows have a number, they are summed in two stages: over chunks of kChunk rows, then over the
// chunks.
#include <algorithm>

#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/launch.h"
#include "lathe/core/cuda/numeric.h"
#include "lathe/core/cuda/pack.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/kernels/scatter_add_kernels.h"

namespace lathe::cuda {
namespace {

constexpr int kChunk = 128;  // rows; a warp looks at their numbers at once
constexpr int kFew = 64;
constexpr int kWarps = 4;   // of a block
constexpr int kAtOnce = 4;  // rows that are loaded at the same time

struct Args {
  int64_t count, num_rows, columns, skipped;
  // [num_rows] each, zeroed at first: how often each number occurs, and `count` minus the first row
  // that has it.
  int* occurrences;
  int* first;
  float* partial;  // [count, columns]; only rows that lead in a chunk are used
};

template <typename Index>
__device__ bool Counts(Index number, const Args& args) {
  return number >= 0 && number < args.num_rows && number != args.skipped;
}

// A warp counts 32 rows. One lane adds for all rows with the same number, because the atomic
// additions for a frequent number would wait for each other.
template <typename Index>
__global__ void CountKernel(const Index* index, Args args) {
  const int lane = threadIdx.x % 32;
  for (int64_t begin = GlobalThread() - lane; begin < args.count; begin += NumThreads()) {
    const int64_t row = begin + lane;
    const Index number = row < args.count ? index[row] : static_cast<Index>(-1);
    unsigned left = __ballot_sync(kFullWarp, Counts(number, args));
    while (left != 0) {
      const int leader = __ffs(static_cast<int>(left)) - 1;
      const unsigned same =
          __ballot_sync(kFullWarp, number == __shfl_sync(kFullWarp, number, leader));
      if (lane == leader) {
        atomicAdd(&args.occurrences[number], __popc(same));
        atomicMax(&args.first[number], static_cast<int>(args.count - row));
      }
      left &= ~same;
    }
  }
}

// Sets bit l of found[k] if row begin + 32 k + l has the number. All lanes of a warp must call
// this.
template <typename Index>
__device__ void Find(const Index* index, int64_t count, int64_t begin, Index number,
                     unsigned* found) {
  Index numbers[kChunk / 32];
#pragma unroll
  for (int k = 0; k < kChunk / 32; ++k) {
    const int64_t at = begin + 32 * k + threadIdx.x;
    numbers[k] = at < count ? index[at] : static_cast<Index>(-1);
  }
#pragma unroll
  for (int k = 0; k < kChunk / 32; ++k) found[k] = __ballot_sync(kFullWarp, numbers[k] == number);
}

// Adds rows of x to a lane's V columns, one after the other, but loads several at the same time.
template <typename T, int V>
class RowAdder {
 public:
  // x points at the lane's first column; `active` is false if the lane has no columns.
  __device__ RowAdder(const T* x, int64_t columns, bool active)
      : x_(x), columns_(columns), active_(active) {}
  __device__ void Add(int64_t row) {
#pragma unroll
    for (int i = 1; i < kAtOnce; ++i) rows_[i - 1] = rows_[i];
    rows_[kAtOnce - 1] = row;
    if (++waiting_ == kAtOnce) Flush();
  }
  __device__ void Flush() {
    Pack<T, V> packs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= kAtOnce - waiting_ && active_) packs[i] = LoadPack<V>(x_ + rows_[i] * columns_);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      for (int v = 0; v < V && i >= kAtOnce - waiting_ && active_; ++v)
        sum[v] += Load(packs[i].v[v]);
    }
    waiting_ = 0;
  }
  float sum[V] = {};

 private:
  const T* x_;
  int64_t columns_;
  bool active_;
  int waiting_ = 0;
  int64_t rows_[kAtOnce] = {};  // the latest; `waiting_` of them aren't added yet
};

// The part of one warp: a row and 32 V columns, of which each lane has V.
struct Part {
  int64_t row, column;
};
template <int V>
__device__ Part PartOf(const Args& args) {
  const int64_t tiles = DivideUp(args.columns, 32 * V);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  return {warp / tiles, (warp % tiles * 32 + threadIdx.x) * V};
}

// For each frequent number, the first row in a chunk that has it sums all such rows of the chunk.
template <typename T, typename Index, int V>
__global__ void SumChunksKernel(const T* x, const Index* index, Args args) {
  const auto [row, column] = PartOf<V>(args);
  if (row >= args.count) return;
  const Index number = index[row];
  if (!Counts(number, args) || args.occurrences[number] <= kFew) return;
  const int64_t begin = row / kChunk * kChunk;
  unsigned found[kChunk / 32];
  Find(index, args.count, begin, number, found);
  const bool active = column < args.columns;
  RowAdder<T, V> adder(x + column, args.columns, active);
  bool is_first = true;
  for (int k = 0; k < kChunk / 32; ++k) {
    for (unsigned bits = found[k]; bits != 0; bits &= bits - 1) {
      const int64_t at = begin + 32 * k + __ffs(static_cast<int>(bits)) - 1;
      if (is_first && at != row) return;  // another row leads; all lanes return
      is_first = false;
      adder.Add(at);
    }
  }
  adder.Flush();
  if (!active) return;
  Pack<float, V> out;
  for (int v = 0; v < V; ++v) out.v[v] = adder.sum[v];
  StorePack(args.partial + row * args.columns + column, out);
}

// The first row with a number adds all rows with that number to `to`.
template <typename T, typename Index, int V>
__global__ void SumKernel(T* to, const T* x, const Index* index, Args args) {
  const auto [row, column] = PartOf<V>(args);
  if (row >= args.count) return;
  const Index number = index[row];
  if (!Counts(number, args) || args.first[number] != args.count - row) return;
  const int occurrences = args.occurrences[number];
  const bool active = column < args.columns;
  RowAdder<T, V> rows(x + column, args.columns, active);
  RowAdder<float, V> chunks(args.partial + column, args.columns, active);
  int seen = 0;
  if (occurrences == 1) {
    rows.Add(row);
    seen = 1;
  }
  for (int64_t begin = row / kChunk * kChunk; seen < occurrences && begin < args.count;
       begin += kChunk) {
    unsigned found[kChunk / 32];
    Find(index, args.count, begin, number, found);
    bool led = false;
    for (int k = 0; k < kChunk / 32; ++k) {
      seen += __popc(found[k]);
      for (unsigned bits = found[k]; bits != 0; bits &= bits - 1) {
        const int64_t at = begin + 32 * k + __ffs(static_cast<int>(bits)) - 1;
        if (occurrences <= kFew) {
          rows.Add(at);
        } else if (!led) {
          chunks.Add(at);
          led = true;
        }
      }
    }
  }
  rows.Flush();
  chunks.Flush();
  if (!active) return;
  T* const at = to + static_cast<int64_t>(number) * args.columns + column;
  Pack<T, V> pack = LoadPack<V>(at);
  for (int v = 0; v < V; ++v) Store(pack.v[v], Load(pack.v[v]) + rows.sum[v] + chunks.sum[v]);
  StorePack(at, pack);
}

template <typename T, typename Index, int V>
void Run(T* to, const T* x, const Index* index, const Args& args) {
  LATHE_LAUNCH(CountKernel<Index>, GridFor(args.count), kBlock, 0, index, args);
  const int64_t tiles = DivideUp(args.columns, 32 * V);
  const int64_t blocks = DivideUp(args.count * tiles, kWarps);
  const dim3 grid(static_cast<unsigned>(blocks)), block(32, kWarps);
  if (args.count > kFew) {
    LATHE_LAUNCH((SumChunksKernel<T, Index, V>), grid, block, 0, x, index, args);
  }
  LATHE_LAUNCH((SumKernel<T, Index, V>), grid, block, 0, to, x, index, args);
}

template <typename T, typename Index>
void Add(void* to, const void* x, const void* index, const Args& args) {
  T* const to_rows = static_cast<T*>(to);
  const T* const rows = static_cast<const T*>(x);
  const Index* const numbers = static_cast<const Index*>(index);
  constexpr int V = kPack<T>;
  if (args.columns % V == 0 && Aligned16({to, x, args.partial})) {
    Run<T, Index, V>(to_rows, rows, numbers, args);
  } else {
    Run<T, Index, 1>(to_rows, rows, numbers, args);
  }
}

template <typename T>
void AddOf(const ScatterAddArgs& a, const Args& args) {
  if (a.index_type == DType::kI32) return Add<T, int32_t>(a.to, a.x, a.index, args);
  return Add<T, int64_t>(a.to, a.x, a.index, args);
}

void AddRows(const ScatterAddArgs& a) {
  if (a.count == 0 || a.columns == 0 || a.num_rows == 0) return;
  int* const counters = static_cast<int*>(a.counters);
  const Args args = {a.count,  a.num_rows, a.columns, a.skipped, counters, counters + a.num_rows,
                     a.partial};
  if (a.type == DType::kF32) return AddOf<float>(a, args);
  if (a.type == DType::kBF16) return AddOf<BFloat16>(a, args);
  return AddOf<Float16>(a, args);
}

const ScatterAddKernels table = {AddRows};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace
}  // namespace lathe::cuda
