#include "lathe/core/cpu/attention.h"

#include <omp.h>

#include <cmath>
#include <cstdlib>

#include "lathe/core/cpu/math.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries that are handled together

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// A cache line of elements. Every matrix that a product reads along its rows has a multiple of
// this many columns, so no product and no softmax has a remainder.
template <typename T>
struct Line {
  static constexpr int64_t kSize = 64 / sizeof(T);
  typedef T Vector __attribute__((vector_size(64), aligned(alignof(T)), may_alias));
};
template <typename T>
int64_t WholeLines(int64_t n) {
  return (n + Line<T>::kSize - 1) / Line<T>::kSize * Line<T>::kSize;
}

// What fits into the registers: 8 x 2 accumulators of a line with AVX-512, 4 x 1 of half as wide
// registers.
constexpr int kMostRows = LATHE_ISA >= 4 ? 8 : 4;
constexpr int kMostLines = LATHE_ISA >= 4 ? 2 : 1;

// An operand of which a product reads single elements: (m, k) is at data[m * row + k * column].
template <typename T>
struct Elements {
  const T* data;
  int64_t row, column;
};

// C [+]= A B for `kRows` rows and `kLines` lines of columns.
template <int kRows, int kLines, typename T>
[[gnu::always_inline]] inline void Block(int64_t K, const Elements<T>& a, const T* b, int64_t ldb,
                                         T* c, int64_t ldc, bool accumulate) {
  using Vector = typename Line<T>::Vector;
  constexpr int64_t kSize = Line<T>::kSize;
  Vector sums[kRows][kLines] = {};
  for (int64_t k = 0; k < K; ++k) {
    Vector line[kLines];
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) line[l] = *(const Vector*)(b + k * ldb + l * kSize);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const T factor = a.data[r * a.row + k * a.column];
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l) sums[r][l] += factor * line[l];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int l = 0; l < kLines; ++l) {
      Vector* to = (Vector*)(c + r * ldc + l * kSize);
      *to = accumulate ? *to + sums[r][l] : sums[r][l];
    }
  }
}

// At most `kRows` rows.
template <int kRows, int kLines, typename T>
void Rows(int64_t rows, int64_t K, const Elements<T>& a, const T* b, int64_t ldb, T* c, int64_t ldc,
          bool accumulate) {
  if (rows == kRows) return Block<kRows, kLines>(K, a, b, ldb, c, ldc, accumulate);
  if constexpr (kRows > 1) Rows<kRows - 1, kLines>(rows, K, a, b, ldb, c, ldc, accumulate);
}

// C (M, N) [+]= A B with B (K, N); N is a multiple of a line.
template <typename T>
void Product(int64_t M, int64_t N, int64_t K, Elements<T> a, const T* b, int64_t ldb, T* c,
             int64_t ldc, bool accumulate) {
  constexpr int64_t kColumns = kMostLines * Line<T>::kSize;
  for (int64_t m = 0; m < M; m += kMostRows) {
    const int64_t rows = Min(kMostRows, M - m);
    const Elements<T> am = {a.data + m * a.row, a.row, a.column};
    int64_t n = 0;
    for (; n + kColumns <= N; n += kColumns) {
      Rows<kMostRows, kMostLines>(rows, K, am, b + n, ldb, c + m * ldc + n, ldc, accumulate);
    }
    for (; n < N; n += Line<T>::kSize) {
      Rows<kMostRows, 1>(rows, K, am, b + n, ldb, c + m * ldc + n, ldc, accumulate);
    }
  }
}

// out (columns, ld) = in^T, with zeros from `rows` to ld.
template <typename M, typename T>
void TransposeTo(M* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = rows; r < ld; ++r) out[c * ld + r] = 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = Load(in[r * stride + c]);
  }
}

template <typename M>
struct Matrix {
  M* data;
  int64_t stride;
};

// Whether products can work on activations where they lie: stored in T, d columns a head.
template <typename M, typename T>
bool InPlace(int64_t d) {
  return std::is_same_v<M, T> && d % Line<M>::kSize == 0;
}

// Rows of activations as they are or, where products can't read them there, copied into `scratch`
// with zeros up to whole lines.
template <typename M, typename T>
Matrix<const M> Read(const T* x, int64_t stride, int64_t rows, int64_t d, M* scratch) {
  if constexpr (std::is_same_v<M, T>) {
    if (InPlace<M, T>(d)) return {x, stride};
  }
  const int64_t width = WholeLines<M>(d);
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) scratch[r * width + c] = Load(x[r * stride + c]);
    for (int64_t c = d; c < width; ++c) scratch[r * width + c] = 0;
  }
  return {scratch, width};
}

// Where a product may write that is meant for rows of activations: there or in `scratch`, from
// where Write takes it.
template <typename M, typename T>
Matrix<M> Target(T* x, int64_t stride, int64_t d, M* scratch) {
  if constexpr (std::is_same_v<M, T>) {
    if (InPlace<M, T>(d)) return {x, stride};
  }
  return {scratch, WholeLines<M>(d)};
}
template <typename M, typename T>
void Write(T* x, int64_t stride, int64_t rows, int64_t d, const M* scratch) {
  if (InPlace<M, T>(d)) return;
  const int64_t width = WholeLines<M>(d);
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < d; ++c) Store(x[r * stride + c], scratch[r * width + c]);
  }
}

// One thread's working memory, freed on leaving.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : data_(static_cast<T*>(std::aligned_alloc(64, (elements * sizeof(T) + 127) / 64 * 64))) {}
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* Take(int64_t elements) {
    T* taken = data_ + used_;
    used_ += (elements + 15) / 16 * 16;
    return taken;
  }

 private:
  T* data_;
  int64_t used_ = 0;
};

// Mask words of queries [first, first + rows): bits[i * ld + j] belongs to key j, as RowBits makes
// them. Short rows are made together, so that there is enough for a vector.
void TileBits(const AttentionArgs& args, int64_t sequence, int64_t head, int64_t first,
              int64_t rows, int64_t keys, uint32_t* bits, int64_t ld) {
  constexpr int64_t kTogether = 64;
  const uint32_t key0 = args.mask.key0;
  const uint32_t key1 = args.mask.key1 + static_cast<uint32_t>(head) * 0x9E3779B9u;
  const uint32_t sample = static_cast<uint32_t>(args.sample_ids[sequence]), step = args.mask.step;
  const int64_t blocks = (keys + 3) / 4;
  if (blocks >= kTogether / 2) {
    for (int64_t i = 0; i < rows; ++i)
      RowBits(key0, key1, step, sample, static_cast<uint32_t>(first + i), keys, bits + i * ld);
    return;
  }
  uint32_t place[kTogether], position[kTogether], words[4][kTogether];
  const int64_t group = kTogether / blocks;
  for (int64_t i = 0; i < rows; i += group) {
    const int64_t n = Min(group, rows - i);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        place[r * blocks + b] = static_cast<uint32_t>(b);
        position[r * blocks + b] = static_cast<uint32_t>(first + i + r);
      }
    }
#pragma omp simd
    for (int64_t at = 0; at < n * blocks; ++at) {
      const PhiloxBlock block = Philox4x32({{place[at], position[at], sample, step}}, key0, key1);
      words[0][at] = block.v[0];
      words[1][at] = block.v[1];
      words[2][at] = block.v[2];
      words[3][at] = block.v[3];
    }
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t w = 0; w < 4; ++w) {
        uint32_t* to = bits + (i + r) * ld + w * blocks;
        for (int64_t b = 0; b < blocks; ++b) to[b] = words[w][r * blocks + b];
      }
    }
  }
}

// Below any score: too far for its exponential to change a sum.
template <typename M>
constexpr M kNoScore = M(-1e30);

template <typename T, typename M>
void Forward(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = WholeLines<M>(args.max_seqlen);
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
#pragma omp parallel
  {
    Scratch<M> scratch((d + width + 2 * kTile) * most_keys + 2 * kTile * width + 128);
    M* kt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* v_room = scratch.Take(width * most_keys);
    M* q_room = scratch.Take(kTile * width);
    M* out_room = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t keys = WholeLines<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * args.kv_stride + h * d;
        TransposeTo(kt, keys, k + kv, args.kv_stride, S, d);
        const Matrix<const M> values = Read(v + kv, args.kv_stride, S, d, v_room);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Matrix<const M> q_tile = Read(q + at, H, rows, d, q_room);
          Product<M>(rows, keys, d, {q_tile.data, q_tile.stride, 1}, kt, keys, p, keys, false);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, keys);
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * keys;
            const uint32_t* row_bits = bits + i * keys;
            for (int64_t j = S; j < keys; ++j) row[j] = kNoScore<M>;
            M top = row[0];
#pragma omp simd reduction(max : top)
            for (int64_t j = 0; j < keys; ++j) top = top > row[j] ? top : row[j];
            M sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < keys; ++j) {
              row[j] = Exp((row[j] - top) * scale);
              sum += row[j];
            }
            lse[(q_begin + tile + i) * args.heads + h] = top * scale + std::log(sum);
            const M norm = M(1) / sum;
            if (threshold > 0) {
              const M factor = norm * keep_scale;
#pragma omp simd
              for (int64_t j = 0; j < keys; ++j)
                row[j] = row_bits[j] < threshold ? M(0) : row[j] * factor;
            } else {
#pragma omp simd
              for (int64_t j = 0; j < keys; ++j) row[j] *= norm;
            }
          }
          const Matrix<M> to = Target(out + at, H, d, out_room);
          Product<M>(rows, width, S, {p, keys, 1}, values.data, values.stride, to.data, to.stride,
                     false);
          Write(out + at, H, rows, d, to.data);
        }
      }
    }
  }
}

// With m the mask times its scale, P' = m P, D_i = sum_j dO_ij O_ij:
//   dV = P'^T dO;  dS = P (m (dO V^T) - D) / sqrt(d);  dQ = dS K;  dK = dS^T Q.
template <typename T, typename M>
void Backward(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
              const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = WholeLines<M>(args.max_seqlen);
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
#pragma omp parallel
  {
    Scratch<M> scratch((2 * d + 3 * width + 3 * kTile) * most_keys + 4 * kTile * width + 4 * kTile +
                       256);
    M* kt = scratch.Take(d * most_keys);
    M* vt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* ds = scratch.Take(kTile * most_keys);
    M* k_room = scratch.Take(width * most_keys);
    M* dk_room = scratch.Take(width * most_keys);
    M* dv_room = scratch.Take(width * most_keys);
    M* q_room = scratch.Take(kTile * width);
    M* dout_room = scratch.Take(kTile * width);
    M* out_room = scratch.Take(kTile * width);
    M* dq_room = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t n = WholeLines<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * args.kv_stride + h * d;
        TransposeTo(kt, n, k + kv, args.kv_stride, S, d);
        TransposeTo(vt, n, v + kv, args.kv_stride, S, d);
        const Matrix<const M> keys = Read(k + kv, args.kv_stride, S, d, k_room);
        const Matrix<M> dkeys = Target(dk + kv, args.kv_stride, d, dk_room);
        const Matrix<M> dvalues = Target(dv + kv, args.kv_stride, d, dv_room);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Matrix<const M> q_tile = Read(q + at, H, rows, d, q_room);
          const Matrix<const M> dout_tile = Read(dout + at, H, rows, d, dout_room);
          const Matrix<const M> out_tile = Read(out + at, H, rows, d, out_room);
          Product<M>(rows, n, d, {q_tile.data, q_tile.stride, 1}, kt, n, p, n, false);
          Product<M>(rows, n, d, {dout_tile.data, dout_tile.stride, 1}, vt, n, ds, n, false);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, n);
          for (int64_t i = 0; i < rows; ++i) {
            M* prow = p + i * n;
            M* dsrow = ds + i * n;
            const uint32_t* row_bits = bits + i * n;
            const M log_sum = lse[(q_begin + tile + i) * args.heads + h];
            M dot = 0;
            const M* o = out_tile.data + i * out_tile.stride;
            const M* go = dout_tile.data + i * dout_tile.stride;
#pragma omp simd reduction(+ : dot)
            for (int64_t c = 0; c < d; ++c) dot += o[c] * go[c];
            // Columns from S on are read by no product.
            if (threshold > 0) {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) {
                const M m = row_bits[j] < threshold ? M(0) : keep_scale;
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (m * dsrow[j] - dot) * scale;
                prow[j] = probability * m;
              }
            } else {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) {
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (dsrow[j] - dot) * scale;
                prow[j] = probability;
              }
            }
          }
          const Matrix<M> dq_tile = Target(dq + at, H, d, dq_room);
          Product<M>(S, width, rows, {p, 1, n}, dout_tile.data, dout_tile.stride, dvalues.data,
                     dvalues.stride, tile > 0);
          Product<M>(S, width, rows, {ds, 1, n}, q_tile.data, q_tile.stride, dkeys.data,
                     dkeys.stride, tile > 0);
          Product<M>(rows, width, S, {ds, n, 1}, keys.data, keys.stride, dq_tile.data,
                     dq_tile.stride, false);
          Write(dq + at, H, rows, d, dq_tile.data);
        }
        Write(dk + kv, args.kv_stride, S, d, dkeys.data);
        Write(dv + kv, args.kv_stride, S, d, dvalues.data);
      }
    }
  }
}

}  // namespace

template <>
const AttentionKernels& TableOf<AttentionKernels, LATHE_ISA>() {
  static constexpr AttentionKernels table = {{Forward<float, float>, Backward<float, float>},
                                             {Forward<double, double>, Backward<double, double>},
                                             {Forward<BFloat16, float>, Backward<BFloat16, float>}};
  return table;
}

}  // namespace lathe::cpu
