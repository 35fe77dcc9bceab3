#include "lathe/core/cpu/attention.h"

#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "lathe/core/cpu/math.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries that are handled together

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

// Not above any score, so that no largest one is it.
template <typename M>
constexpr M kNoScore = std::numeric_limits<M>::lowest();

template <typename T, typename M>
void Forward(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
#pragma omp parallel
  {
    Scratch<M> scratch((d + width + 2 * kTile) * most_keys + 2 * kTile * width + 128);
    M* kt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* values = scratch.Take(width * most_keys);
    M* q_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t keys = WholeLines<M>(S), ld = RowStride<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * H + h * d;
        TransposeTo(kt, ld, k + kv, H, S, d);
        Read(values, v + kv, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          Read(q_tile, q + at, H, rows, d);
          Product<M>(rows, keys, d, {q_tile, width, 1}, kt, ld, p, ld, false);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, ld);
          // Loops of their own, so that one row's sums don't wait for another's.
          M top[kTile], sum[kTile];
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * ld;
            for (int64_t j = S; j < keys; ++j) row[j] = kNoScore<M>;
            M largest = row[0];
#pragma omp simd reduction(max : largest)
            for (int64_t j = 0; j < keys; ++j) largest = largest > row[j] ? largest : row[j];
            top[i] = largest;
          }
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * ld;
            const uint32_t* row_bits = bits + i * ld;
            M total = 0;
            if (threshold > 0) {
#pragma omp simd reduction(+ : total)
              for (int64_t j = 0; j < keys; ++j) {
                const M e = Exp((row[j] - top[i]) * scale);
                total += e;
                row[j] = row_bits[j] < threshold ? M(0) : e;
              }
            } else {
#pragma omp simd reduction(+ : total)
              for (int64_t j = 0; j < keys; ++j) {
                row[j] = Exp((row[j] - top[i]) * scale);
                total += row[j];
              }
            }
            sum[i] = total;
          }
          for (int64_t i = 0; i < rows; ++i)
            lse[(q_begin + tile + i) * args.heads + h] = top[i] * scale + std::log(sum[i]);
          Product<M>(rows, width, S, {p, ld, 1}, values, width, out_tile, width, false);
          for (int64_t i = 0; i < rows; ++i) {
            const M factor = keep_scale / sum[i];
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) out_tile[i * width + c] *= factor;
          }
          Write(out + at, H, out_tile, rows, d);
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
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
#pragma omp parallel
  {
    Scratch<M> scratch((2 * d + 3 * width + 3 * kTile) * most_keys + 4 * kTile * width + 256);
    M* kt = scratch.Take(d * most_keys);
    M* vt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* ds = scratch.Take(kTile * most_keys);
    M* keys = scratch.Take(width * most_keys);
    M* dkeys = scratch.Take(width * most_keys);
    M* dvalues = scratch.Take(width * most_keys);
    M* q_tile = scratch.Take(kTile * width);
    M* dout_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    M* dq_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys));
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t n = WholeLines<M>(S), ld = RowStride<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * H + h * d;
        TransposeTo(kt, ld, k + kv, H, S, d);
        TransposeTo(vt, ld, v + kv, H, S, d);
        Read(keys, k + kv, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          Read(q_tile, q + at, H, rows, d);
          Read(dout_tile, dout + at, H, rows, d);
          Read(out_tile, out + at, H, rows, d);
          Product<M>(rows, n, d, {q_tile, width, 1}, kt, ld, p, ld, false);
          Product<M>(rows, n, d, {dout_tile, width, 1}, vt, ld, ds, ld, false);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, ld);
          for (int64_t i = 0; i < rows; ++i) {
            M* prow = p + i * ld;
            M* dsrow = ds + i * ld;
            const uint32_t* row_bits = bits + i * ld;
            const M log_sum = lse[(q_begin + tile + i) * args.heads + h];
            M dot = 0;
            const M* o = out_tile + i * width;
            const M* go = dout_tile + i * width;
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
          Product<M>(S, width, rows, {p, 1, ld}, dout_tile, width, dvalues, width, tile > 0);
          Product<M>(S, width, rows, {ds, 1, ld}, q_tile, width, dkeys, width, tile > 0);
          Product<M>(rows, width, S, {ds, ld, 1}, keys, width, dq_tile, width, false);
          Write(dq + at, H, dq_tile, rows, d);
        }
        Write(dk + kv, H, dkeys, S, d);
        Write(dv + kv, H, dvalues, S, d);
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
