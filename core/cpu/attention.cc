#include "lathe/core/cpu/attention.h"

#include <omp.h>

#include <cmath>
#include <cstdlib>

#include "lathe/core/cpu/math.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries that are handled together

// C (M, N) [+]= A B with A's element (m, k) at a[m * a_row + k * a_col] and B (K, N), rows of ldb.
// Blocks of 4 rows by 32 columns stay in registers.
template <typename T>
void SmallGemm(int64_t M, int64_t N, int64_t K, const T* a, int64_t a_row, int64_t a_col,
               const T* b, int64_t ldb, T* c, int64_t ldc, bool accumulate) {
  constexpr int64_t kRows = 4, kColumns = 32;
  for (int64_t n = 0; n < N; n += kColumns) {
    const int64_t columns = N - n < kColumns ? N - n : kColumns;
    for (int64_t m = 0; m < M; m += kRows) {
      const int64_t rows = M - m < kRows ? M - m : kRows;
      T acc[kRows][kColumns] = {};
      if (columns == kColumns && rows == kRows) {
        for (int64_t k = 0; k < K; ++k) {
          const T* bk = b + k * ldb + n;
          const T a0 = a[m * a_row + k * a_col], a1 = a[(m + 1) * a_row + k * a_col];
          const T a2 = a[(m + 2) * a_row + k * a_col], a3 = a[(m + 3) * a_row + k * a_col];
#pragma omp simd
          for (int64_t j = 0; j < kColumns; ++j) {
            acc[0][j] += a0 * bk[j];
            acc[1][j] += a1 * bk[j];
            acc[2][j] += a2 * bk[j];
            acc[3][j] += a3 * bk[j];
          }
        }
      } else {
        for (int64_t k = 0; k < K; ++k) {
          const T* bk = b + k * ldb + n;
          for (int64_t i = 0; i < rows; ++i) {
            const T ai = a[(m + i) * a_row + k * a_col];
#pragma omp simd
            for (int64_t j = 0; j < columns; ++j) acc[i][j] += ai * bk[j];
          }
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        T* ci = c + (m + i) * ldc + n;
        if (accumulate) {
          for (int64_t j = 0; j < columns; ++j) ci[j] += acc[i][j];
        } else {
          for (int64_t j = 0; j < columns; ++j) ci[j] = acc[i][j];
        }
      }
    }
  }
}

template <typename T>
void TransposeTo(T* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = in[r * stride + c];
  }
}

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

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

// Mask words of query row i: bits[j] belongs to key j.
void QueryBits(const AttentionArgs& args, int64_t sequence, int64_t head, int64_t i, int64_t keys,
               uint32_t* bits) {
  RowBits(args.mask.key0, args.mask.key1 + static_cast<uint32_t>(head) * 0x9E3779B9u,
          args.mask.step, static_cast<uint32_t>(args.sample_ids[sequence]),
          static_cast<uint32_t>(i), keys, bits);
}

template <typename T>
void Forward(T* out, T* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d, S_max = args.max_seqlen + 32;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  const T keep_scale = static_cast<T>(args.mask.scale);
#pragma omp parallel
  {
    Scratch<T> scratch(d * S_max + kTile * S_max + 4 * 16 + S_max * 4);
    T* kt = scratch.Take(d * S_max);
    T* p = scratch.Take(kTile * S_max);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(S_max * 2));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const T* ks = k + begin * args.kv_stride + h * d;
        const T* vs = v + begin * args.kv_stride + h * d;
        TransposeTo(kt, S, ks, args.kv_stride, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          SmallGemm(rows, S, d, q + (q_begin + tile) * H + h * d, H, int64_t{1}, kt, S, p, S,
                    false);
          for (int64_t i = 0; i < rows; ++i) {
            T* row = p + i * S;
            T top = row[0];
#pragma omp simd reduction(max : top)
            for (int64_t j = 0; j < S; ++j) top = top > row[j] ? top : row[j];
            T sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < S; ++j) {
              row[j] = Exp((row[j] - top) * scale);
              sum += row[j];
            }
            lse[(q_begin + tile + i) * args.heads + h] = top * scale + std::log(sum);
            const T norm = T(1) / sum;
            if (args.mask.threshold > 0) {
              QueryBits(args, s, h, tile + i, S, bits);
              for (int64_t j = 0; j < S; ++j) {
                row[j] = bits[j] < args.mask.threshold ? T(0) : row[j] * norm * keep_scale;
              }
            } else {
              for (int64_t j = 0; j < S; ++j) row[j] *= norm;
            }
          }
          SmallGemm(rows, d, S, p, S, int64_t{1}, vs, args.kv_stride,
                    out + (q_begin + tile) * H + h * d, H, false);
        }
      }
    }
  }
}

// With m the mask times its scale, P' = m P, D_i = sum_j dO_ij O_ij:
//   dV = P'^T dO;  dS = P (m (dO V^T) - D) / sqrt(d);  dQ = dS K;  dK = dS^T Q.
template <typename T>
void Backward(T* dq, T* dk, T* dv, const T* dout, const T* out, const T* lse, const T* q,
              const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d, S_max = args.max_seqlen + 32;
  const T scale = T(1) / std::sqrt(static_cast<T>(d));
  const T keep_scale = static_cast<T>(args.mask.scale);
#pragma omp parallel
  {
    Scratch<T> scratch(2 * d * S_max + 2 * kTile * S_max + 8 * 16 + S_max * 4);
    T* kt = scratch.Take(d * S_max);
    T* vt = scratch.Take(d * S_max);
    T* p = scratch.Take(kTile * S_max);
    T* ds = scratch.Take(kTile * S_max);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(S_max * 2));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * args.kv_stride + h * d;
        TransposeTo(kt, S, k + kv, args.kv_stride, S, d);
        TransposeTo(vt, S, v + kv, args.kv_stride, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          SmallGemm(rows, S, d, q + at, H, int64_t{1}, kt, S, p, S, false);
          SmallGemm(rows, S, d, dout + at, H, int64_t{1}, vt, S, ds, S, false);
          for (int64_t i = 0; i < rows; ++i) {
            T* prow = p + i * S;
            T* dsrow = ds + i * S;
            const T log_sum = lse[(q_begin + tile + i) * args.heads + h];
            T dot = 0;
            const T* o = out + at + i * H;
            const T* go = dout + at + i * H;
#pragma omp simd reduction(+ : dot)
            for (int64_t c = 0; c < d; ++c) dot += o[c] * go[c];
            if (args.mask.threshold > 0) {
              QueryBits(args, s, h, tile + i, S, bits);
              for (int64_t j = 0; j < S; ++j) {
                const T m = bits[j] < args.mask.threshold ? T(0) : keep_scale;
                const T probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (m * dsrow[j] - dot) * scale;
                prow[j] = probability * m;
              }
            } else {
#pragma omp simd
              for (int64_t j = 0; j < S; ++j) {
                const T probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (dsrow[j] - dot) * scale;
                prow[j] = probability;
              }
            }
          }
          SmallGemm(S, d, rows, p, int64_t{1}, S, dout + at, H, dv + kv, args.kv_stride, tile > 0);
          SmallGemm(S, d, rows, ds, int64_t{1}, S, q + at, H, dk + kv, args.kv_stride, tile > 0);
          SmallGemm(rows, d, S, ds, S, int64_t{1}, k + kv, args.kv_stride, dq + at, H, false);
        }
      }
    }
  }
}

}  // namespace

template <>
const AttentionKernels& TableOf<AttentionKernels, LATHE_ISA>() {
  static constexpr AttentionKernels table = {{Forward<float>, Backward<float>},
                                             {Forward<double>, Backward<double>}};
  return table;
}

}  // namespace lathe::cpu
