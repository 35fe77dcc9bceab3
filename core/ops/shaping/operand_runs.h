// Walks over several tensors together on the host, for ops that read elements in another order than
// they lie.
#pragma once

#include <algorithm>
#include <array>

#include "lathe/core/base/round_up.h"
#include "lathe/core/kernels/shaping/operand_walk.h"
#include "lathe/core/ops/dispatch.h"

namespace lathe {

// Returns the walk over `shape` with operands of these strides. Adjacent dimensions are merged if
// all operands allow it. Throws `[op] ...` if more than kMaxWalkDims are left.
template <size_t N>
OperandWalk<N> MergedWalk(const char* op, const Shape& shape, const std::array<Shape, N>& strides) {
  OperandWalk<N> walk = {};
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    const int outer = walk.count - 1;
    bool merges = outer >= 0;
    for (size_t k = 0; k < N && merges; ++k) {
      merges = walk.strides[k][outer] == strides[k][d] * shape[d];
    }
    const int at = merges ? outer : walk.count;
    Check(at < kMaxWalkDims, op, "shape ", shape, " needs more than ", kMaxWalkDims,
          " dimensions after merging");
    walk.sizes[at] = merges ? walk.sizes[at] * shape[d] : shape[d];
    for (size_t k = 0; k < N; ++k) walk.strides[k][at] = strides[k][d];
    walk.count = at + 1;
  }
  return walk;
}

// A place of the outermost `count` dimensions of a walk, with the operands' offsets there.
template <int N>
class WalkPlace {
 public:
  WalkPlace(const OperandWalk<N>& walk, int count, int64_t index) : walk_(walk), count_(count) {
    for (int d = count - 1; d >= 0; --d) {
      at_[d] = index % walk.sizes[d];
      index /= walk.sizes[d];
      for (int k = 0; k < N; ++k) offsets[k] += at_[d] * walk.strides[k][d];
    }
  }
  void Next() {
    for (int d = count_ - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offsets[k] += walk_.strides[k][d];
      if (++at_[d] < walk_.sizes[d]) return;
      for (int k = 0; k < N; ++k) offsets[k] -= walk_.strides[k][d] * at_[d];
      at_[d] = 0;
    }
  }
  int64_t offsets[N] = {};

 private:
  const OperandWalk<N>& walk_;
  int count_;
  int64_t at_[kMaxWalkDims] = {};
};

// Calls body(offsets, place, n) for all runs of the walk's innermost dimension, on several threads
// if there are many places. `offsets` are the operands' at the run's first element, and `place` is
// that element's number in the walk. Long runs come in pieces. A place stands for `weight`
// elements.
template <int N, typename Body>
void ForRuns(const OperandWalk<N>& walk, Body body, int64_t weight = 1) {
  const int last = std::max(walk.count - 1, 0);
  const int64_t n = walk.count == 0 ? 1 : walk.sizes[last], places = NumPlaces(walk);
  if (places == 0) return;
  const int64_t most = std::max<int64_t>(kParallelSize / weight, 1);  // places at once
  const int64_t piece = std::min(n, most), pieces = DivideUp(n, piece);
  const int64_t runs = places / n * pieces;
  const int64_t at_once = std::max<int64_t>(most / piece, 1);
#pragma omp parallel for schedule(static) if (places * weight > kParallelSize)
  for (int64_t first = 0; first < runs; first += at_once) {
    WalkPlace<N> outer(walk, last, first / pieces);
    int64_t begin = first % pieces * piece, place = first / pieces * n + begin;
    for (int64_t run = first; run < std::min(first + at_once, runs); ++run) {
      int64_t offsets[N];
      for (int k = 0; k < N; ++k) offsets[k] = outer.offsets[k] + begin * walk.strides[k][last];
      const int64_t length = std::min(piece, n - begin);
      body(static_cast<const int64_t*>(offsets), place, length);
      place += length;
      begin += length;
      if (begin == n) {
        begin = 0;
        outer.Next();
      }
    }
  }
}

// The rows of a walk: its innermost dimension, and a walk over all others.
template <int N>
struct WalkRows {
  explicit WalkRows(const OperandWalk<N>& walk) : outer(walk) {
    if (walk.count == 0) return;
    const int last = --outer.count;
    columns = walk.sizes[last];
    for (int k = 0; k < N; ++k) strides[k] = walk.strides[k][last];
  }
  // Returns operand k's stride from row to row of a run.
  int64_t RowStride(int k) const {
    return outer.count == 0 ? 0 : outer.strides[k][outer.count - 1];
  }

  OperandWalk<N> outer;
  int64_t columns = 1;
  int64_t strides[N] = {};
};
// Calls body(stride) with an operand's innermost stride, 0 or 1, as an integral constant, so that
// the compiler makes a loop for each.
template <typename Body>
void WithConstantStride(int64_t stride, Body body) {
  if (stride == 0) return body(std::integral_constant<int64_t, 0>{});
  body(std::integral_constant<int64_t, 1>{});
}

}  // namespace lathe
