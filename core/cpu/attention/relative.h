// Relative terms of attention's scores, as products.
//
// A term's table is spread out first: it gets a row for each offset that a sequence can have. The
// score of row r and column x takes the table's row x - r + shift. So all scores of a row lie in
// one row of the product with the table. They begin one element earlier than in the row before. A
// product whose result has such a stride adds them to the scores.
//
// Only kernel sources include this header; they are compiled once for each instruction set level.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "lathe/core/cpu/attention/tiles.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

// Returns the distance between rows of n scores. The functions below may write up to a line of any
// numbers behind a row, and up to kMostRows in front of it.
template <typename M>
int64_t SkewedStride(int64_t n) {
  return RowStride<M>(n + std::max<int64_t>(Line<M>::kSize, kMostRows));
}
constexpr int64_t kFront = 16;  // elements in front of a matrix with such rows

// scores[r][x] += a_r . table[x - r + shift], or = for Result::kOverwrite. a: (rows, d); table_t:
// (d, ldt) is the table's transpose; scores: (rows, n).
template <typename M>
void AddSkewed(int64_t rows, int64_t n, int64_t d, const Elements<M>& a, const M* table_t,
               int64_t ldt, int64_t shift, M* scores, int64_t ld, Result result) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    const int64_t m = Min(kMostRows, rows - r);
    Product<M>(m, WholeLines<M>(n + m - 1), d, {a.data + r * a.row, a.row, a.column},
               table_t + shift - r - (m - 1), ldt, scores + r * ld - (m - 1), ld + 1, result);
  }
}

// da_r += sum_x g[r][x] table[x - r + shift]. g: (rows, n), with zeros in front of each row and
// behind it; table: (.., width).
template <typename M>
void AddRowGradients(int64_t rows, int64_t n, int64_t width, const M* g, int64_t ld, const M* table,
                     int64_t shift, M* da, int64_t da_row) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    const int64_t m = Min(kMostRows, rows - r);
    Product<M>(m, width, n + m - 1, {g + r * ld - (m - 1), ld + 1, 1},
               table + (shift - r - (m - 1)) * width, width, da + r * da_row, da_row,
               Result::kAddTo);
  }
}

// dtable[x - r + shift] += sum over these r and x of g[r][x] a_r. a: (rows, width).
template <typename M>
void AddTableGradients(int64_t rows, int64_t n, int64_t width, const M* g, int64_t ld, const M* a,
                       int64_t shift, M* dtable) {
  const int64_t end = shift + n;
  for (int64_t c = shift - (rows - 1); c < end; c += kMostRows) {
    const int64_t m = Min(kMostRows, end - c);
    // The rows r that have a column for one of the offsets.
    const int64_t first = std::max<int64_t>(0, shift - (c + m - 1)), last = Min(rows, end - c);
    Product<M>(m, width, last - first, {g + c - shift + first * (ld + 1), 1, ld + 1},
               a + first * width, width, dtable + c * width, width, Result::kAddTo);
  }
}

// One term's table, spread out: a row for each of the `offsets` = 2 max_seqlen - 1 offsets. They
// rise with j - i, or with i - j if `by_query`. Holds partial sums of its gradient, too.
template <typename T, typename M>
class SpreadTable {
 public:
  // table: (R, d), or (R, columns) with columns for each head; null: there is no such term.
  SpreadTable(const AttentionArgs& args, const void* table, bool by_query, T* gradient,
              int64_t groups)
      : args_(args), by_query_(by_query), gradient_(table != nullptr ? gradient : nullptr) {
    if (table == nullptr) return;
    const RelativeTerms& terms = args.relative;
    heads_ = terms.shared ? 1 : args.heads;
    rows_ = std::make_unique_for_overwrite<M[]>(heads_ * offsets_ * width_);
    transposed_ = std::make_unique_for_overwrite<M[]>(heads_ * args.head_dim * ld_);
    const int64_t d = args.head_dim;
#pragma omp parallel for
    for (int64_t h = 0; h < heads_; ++h) {
      M* rows = rows_.get() + h * offsets_ * width_;
      for (int64_t u = 0; u < offsets_; ++u) {
        const T* from = static_cast<const T*>(table) + (RowOf(u) * heads_ + h) * d;
        Read(rows + u * width_, from, 0, 1, d);
      }
      M* transposed = transposed_.get() + h * d * ld_;
      TransposeTo(transposed, ld_, rows, width_, offsets_, d);
      for (int64_t c = 0; c < d; ++c) {
        for (int64_t u = offsets_; u < ld_; ++u) transposed[c * ld_ + u] = 0;
      }
    }
    if (gradient_ == nullptr) return;
    groups_ = groups;
    partial_ = std::make_unique<M[]>(groups * args.heads * offsets_ * width_);
  }

  bool there() const { return rows_ != nullptr; }
  bool wants_gradient() const { return gradient_ != nullptr; }
  int64_t ld() const { return ld_; }
  const M* rows(int64_t h) const { return rows_.get() + Head(h) * offsets_ * width_; }
  const M* transposed(int64_t h) const {
    return transposed_.get() + Head(h) * args_.head_dim * ld_;
  }
  M* partial(int64_t group, int64_t h) const {
    return partial_.get() + (group * args_.heads + h) * offsets_ * width_;
  }

  // Assigns the gradient, the sum of all partial sums in a fixed order.
  void StoreGradient() const {
    if (gradient_ == nullptr) return;
    const int64_t R = args_.relative.table_rows, d = args_.head_dim, of_head = R * width_;
    const std::unique_ptr<M[]> sums = std::make_unique<M[]>(heads_ * of_head);
#pragma omp parallel for
    for (int64_t unit = 0; unit < heads_; ++unit) {
      M* sum = sums.get() + unit * of_head;
      const int64_t last = heads_ == 1 ? args_.heads : unit + 1;
      for (int64_t h = unit; h < last; ++h) {
        for (int64_t group = 0; group < groups_; ++group) {
          for (int64_t u = 0; u < offsets_; ++u) {
            const M* from = partial(group, h) + u * width_;
            M* to = sum + RowOf(u) * width_;
#pragma omp simd
            for (int64_t c = 0; c < width_; ++c) to[c] += from[c];
          }
        }
      }
      Write(gradient_ + unit * d, heads_ * d, sum, R, d);
    }
  }

 private:
  int64_t Head(int64_t h) const { return heads_ == 1 ? 0 : h; }
  int64_t RowOf(int64_t u) const {
    const int64_t offset = by_query_ ? u - (args_.max_seqlen - 1) : args_.max_seqlen - 1 - u;
    return args_.relative.rows[args_.relative.origin + offset];
  }

  const AttentionArgs& args_;
  const bool by_query_;
  T* const gradient_;
  const int64_t offsets_ = 2 * args_.max_seqlen - 1, width_ = WholeLines<M>(args_.head_dim),
                ld_ = RowStride<M>(offsets_ + Line<M>::kSize);
  int64_t heads_ = 0, groups_ = 0;
  std::unique_ptr<M[]> rows_, transposed_, partial_;
};

// The bias, spread out in the order of rising j - i. It is divided by the scores' scale, because it
// is added before the scores are scaled.
template <typename M>
class SpreadBias {
 public:
  SpreadBias(const AttentionArgs& args, int64_t groups) : args_(args) {
    const RelativeTerms& terms = args.relative;
    if (terms.bias == nullptr) return;
    values_ = std::make_unique_for_overwrite<M[]>(args.heads * offsets_);
    const M* bias = static_cast<const M*>(terms.bias);
    for (int64_t h = 0; h < args.heads; ++h) {
      for (int64_t u = 0; u < offsets_; ++u)
        values_[h * offsets_ + u] = bias[RowOf(u) * args.heads + h] / ScaleOf<M>(args);
    }
    if (terms.dbias == nullptr) return;
    groups_ = groups;
    partial_ = std::make_unique<M[]>(groups * args.heads * offsets_);
  }

  bool there() const { return values_ != nullptr; }
  bool wants_gradient() const { return partial_ != nullptr; }
  // scores[r][x] += bias[x - r + shift]
  void AddTo(M* scores, int64_t ld, int64_t h, int64_t rows, int64_t n, int64_t shift) const {
    for (int64_t r = 0; r < rows; ++r) {
      const M* from = values_.get() + h * offsets_ + shift - r;
      M* to = scores + r * ld;
#pragma omp simd
      for (int64_t x = 0; x < n; ++x) to[x] += from[x];
    }
  }
  // Adds the scores' gradients to a group's partial sums.
  void AddGradients(const M* g, int64_t ld, int64_t group, int64_t h, int64_t rows, int64_t n,
                    int64_t shift) const {
    for (int64_t r = 0; r < rows; ++r) {
      M* to = partial_.get() + (group * args_.heads + h) * offsets_ + shift - r;
      const M* from = g + r * ld;
#pragma omp simd
      for (int64_t x = 0; x < n; ++x) to[x] += from[x];
    }
  }
  void StoreGradient() const {
    if (partial_ == nullptr) return;
    const int64_t heads = args_.heads;
    M* to = static_cast<M*>(args_.relative.dbias);
    std::fill_n(to, args_.relative.table_rows * heads, M(0));
    for (int64_t group = 0; group < groups_; ++group) {
      for (int64_t h = 0; h < heads; ++h) {
        const M* from = partial_.get() + (group * heads + h) * offsets_;
        for (int64_t u = 0; u < offsets_; ++u)
          to[RowOf(u) * heads + h] += from[u] / ScaleOf<M>(args_);
      }
    }
  }

 private:
  int64_t RowOf(int64_t u) const {
    return args_.relative.rows[args_.relative.origin + args_.max_seqlen - 1 - u];
  }

  const AttentionArgs& args_;
  const int64_t offsets_ = 2 * args_.max_seqlen - 1;
  int64_t groups_ = 0;
  std::unique_ptr<M[]> values_, partial_;
};

}  // namespace
}  // namespace lathe::cpu
