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

template <typename M, typename T>
void TransposeTo(M* out, int64_t ld, const T* in, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * ld + r] = Load(in[r * stride + c]);
  }
}

// A matrix of d columns that a product can read.
template <typename M>
struct Block {
  M* data;
  int64_t stride;
};

// Rows of activations as they are or, where they are stored narrower, converted into `scratch`.
template <typename M, typename T>
Block<const M> Read(const T* x, int64_t stride, int64_t rows, int64_t d, M* scratch) {
  if constexpr (std::is_same_v<M, T>) {
    return {x, stride};
  } else {
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) scratch[r * d + c] = Load(x[r * stride + c]);
    }
    return {scratch, d};
  }
}

// Where a product may write that is meant for rows of activations: there or, where they are stored
// narrower, into `scratch`, which Write then converts.
template <typename M, typename T>
Block<M> Target(T* x, int64_t stride, int64_t d, M* scratch) {
  if constexpr (std::is_same_v<M, T>) {
    return {x, stride};
  } else {
    return {scratch, d};
  }
}
template <typename M, typename T>
void Write(T* x, int64_t stride, int64_t rows, int64_t d, const M* scratch) {
  if constexpr (!std::is_same_v<M, T>) {
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
      for (int64_t c = 0; c < d; ++c) Store(x[r * stride + c], scratch[r * d + c]);
    }
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

template <typename T, typename M>
void Forward(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d, S_max = args.max_seqlen + 32;
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
#pragma omp parallel
  {
    Scratch<M> scratch(2 * d * S_max + kTile * S_max + 2 * kTile * d + 8 * 16 + S_max * 4);
    M* kt = scratch.Take(d * S_max);
    M* p = scratch.Take(kTile * S_max);
    M* v_room = scratch.Take(d * S_max);
    M* q_room = scratch.Take(kTile * d);
    M* out_room = scratch.Take(kTile * d);
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
        const Block<const M> values = Read(vs, args.kv_stride, S, d, v_room);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Block<const M> q_tile = Read(q + at, H, rows, d, q_room);
          SmallGemm(rows, S, d, q_tile.data, q_tile.stride, int64_t{1}, kt, S, p, S, false);
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * S;
            M top = row[0];
#pragma omp simd reduction(max : top)
            for (int64_t j = 0; j < S; ++j) top = top > row[j] ? top : row[j];
            M sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < S; ++j) {
              row[j] = Exp((row[j] - top) * scale);
              sum += row[j];
            }
            lse[(q_begin + tile + i) * args.heads + h] = top * scale + std::log(sum);
            const M norm = M(1) / sum;
            if (args.mask.threshold > 0) {
              QueryBits(args, s, h, tile + i, S, bits);
              for (int64_t j = 0; j < S; ++j) {
                row[j] = bits[j] < args.mask.threshold ? M(0) : row[j] * norm * keep_scale;
              }
            } else {
              for (int64_t j = 0; j < S; ++j) row[j] *= norm;
            }
          }
          const Block<M> to = Target(out + at, H, d, out_room);
          SmallGemm(rows, d, S, p, S, int64_t{1}, values.data, values.stride, to.data, to.stride,
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
  const int64_t d = args.head_dim, H = args.heads * d, S_max = args.max_seqlen + 32;
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
#pragma omp parallel
  {
    Scratch<M> scratch(5 * d * S_max + 2 * kTile * S_max + 4 * kTile * d + 16 * 16 + S_max * 4);
    M* kt = scratch.Take(d * S_max);
    M* vt = scratch.Take(d * S_max);
    M* p = scratch.Take(kTile * S_max);
    M* ds = scratch.Take(kTile * S_max);
    M* k_room = scratch.Take(d * S_max);
    M* dk_room = scratch.Take(d * S_max);
    M* dv_room = scratch.Take(d * S_max);
    M* q_room = scratch.Take(kTile * d);
    M* dout_room = scratch.Take(kTile * d);
    M* out_room = scratch.Take(kTile * d);
    M* dq_room = scratch.Take(kTile * d);
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
        const Block<const M> keys = Read(k + kv, args.kv_stride, S, d, k_room);
        const Block<M> dkeys = Target(dk + kv, args.kv_stride, d, dk_room);
        const Block<M> dvalues = Target(dv + kv, args.kv_stride, d, dv_room);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Block<const M> q_tile = Read(q + at, H, rows, d, q_room);
          const Block<const M> dout_tile = Read(dout + at, H, rows, d, dout_room);
          const Block<const M> out_tile = Read(out + at, H, rows, d, out_room);
          SmallGemm(rows, S, d, q_tile.data, q_tile.stride, int64_t{1}, kt, S, p, S, false);
          SmallGemm(rows, S, d, dout_tile.data, dout_tile.stride, int64_t{1}, vt, S, ds, S, false);
          for (int64_t i = 0; i < rows; ++i) {
            M* prow = p + i * S;
            M* dsrow = ds + i * S;
            const M log_sum = lse[(q_begin + tile + i) * args.heads + h];
            M dot = 0;
            const M* o = out_tile.data + i * out_tile.stride;
            const M* go = dout_tile.data + i * dout_tile.stride;
#pragma omp simd reduction(+ : dot)
            for (int64_t c = 0; c < d; ++c) dot += o[c] * go[c];
            if (args.mask.threshold > 0) {
              QueryBits(args, s, h, tile + i, S, bits);
#pragma omp simd
              for (int64_t j = 0; j < S; ++j) {
                const M m = bits[j] < args.mask.threshold ? M(0) : keep_scale;
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (m * dsrow[j] - dot) * scale;
                prow[j] = probability * m;
              }
            } else {
#pragma omp simd
              for (int64_t j = 0; j < S; ++j) {
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (dsrow[j] - dot) * scale;
                prow[j] = probability;
              }
            }
          }
          const Block<M> dq_tile = Target(dq + at, H, d, dq_room);
          SmallGemm(S, d, rows, p, int64_t{1}, S, dout_tile.data, dout_tile.stride, dvalues.data,
                    dvalues.stride, tile > 0);
          SmallGemm(S, d, rows, ds, int64_t{1}, S, q_tile.data, q_tile.stride, dkeys.data,
                    dkeys.stride, tile > 0);
          SmallGemm(rows, d, S, ds, S, int64_t{1}, keys.data, keys.stride, dq_tile.data,
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
