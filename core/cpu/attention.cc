#include "lathe/core/cpu/attention.h"

#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "lathe/core/cpu/math.h"
#include "lathe/core/cpu/row_bits.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries that are handled together

// One thread's working memory, kept for the next call: fresh pages would cost more than the work
// on them. One at a time in a thread.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t elements) {
    const size_t bytes = (static_cast<size_t>(elements) * sizeof(T) + 127) / 64 * 64;
    static thread_local struct Kept {
      ~Kept() { std::free(data); }
      void* data = nullptr;
      size_t bytes = 0;
    } kept;
    if (kept.bytes < bytes) {
      std::free(kept.data);
      kept.data = std::aligned_alloc(64, bytes);
      kept.bytes = bytes;
    }
    data_ = static_cast<T*>(kept.data);
  }
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

// Heads that a thread takes at a time: few enough to share them out evenly, many enough that the
// threads don't meet all the time over who takes the next.
int64_t Chunk(const AttentionArgs& args) {
  const int64_t chunks = int64_t{32} * omp_get_max_threads();
  return 1 + args.batch * args.heads / chunks;
}

// From a strip of `rows` rows of head h to the next head's, or to the next sequence's first.
int64_t ToNext(const AttentionArgs& args, int64_t h, int64_t rows) {
  const int64_t d = args.head_dim;
  return h + 1 < args.heads ? d : rows * args.heads * d - h * d;
}

// A result of products.
template <typename M>
struct Operand {
  M* data;
  int64_t row;
};

// Of n elements.
template <typename M>
M Dot(const M* a, const M* b, int64_t n) {
  constexpr int64_t kSize = Line<M>::kSize;
  typename Line<M>::Vector sums = {};
  int64_t i = 0;
  for (; i + kSize <= n; i += kSize) sums += LineAt(a + i) * LineAt(b + i);
  M sum = Sum<M>(sums);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

constexpr int64_t kLanes = 16;

// Mask words of queries [first, first + rows): bits[i * ld + j] belongs to key j, as RowBits makes
// them. Short rows are made together, so that there is enough for a vector. `bits` has room for
// kLanes more.
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
  // Whole vectors are copied; what is too much is overwritten by what follows.
  uint32_t place[kTogether + kLanes] = {}, position[kTogether + kLanes] = {};
  uint32_t words[4][kTogether + kLanes];
  const int64_t group = kTogether / blocks;
  for (int64_t i = 0; i < rows; i += group) {
    const int64_t n = Min(group, rows - i);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t b = 0; b < blocks; b += kLanes) {
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) {
          place[r * blocks + b + l] = static_cast<uint32_t>(b + l);
          position[r * blocks + b + l] = static_cast<uint32_t>(first + i + r);
        }
      }
    }
    for (int64_t from = 0; from < n * blocks; from += kPhiloxLanes) {
      const PhiloxWords made =
          PhiloxAt(*reinterpret_cast<const FullLanes*>(place + from),
                   *reinterpret_cast<const FullLanes*>(position + from), sample, step, key0, key1);
      for (int w = 0; w < 4; ++w) *reinterpret_cast<FullLanes*>(words[w] + from) = made.words[w];
    }
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t w = 0; w < 4; ++w) {
        for (int64_t b = 0; b < blocks; b += kLanes) {
          uint32_t* to = bits + (i + r) * ld + w * blocks + b;
#pragma omp simd
          for (int64_t l = 0; l < kLanes; ++l) to[l] = words[w][r * blocks + b + l];
        }
      }
    }
  }
}

// Not above any score, so that no largest one is it.
template <typename M>
constexpr M kNoScore = std::numeric_limits<M>::lowest();

template <typename T, typename M>
void Forward(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  constexpr int64_t kSize = Line<M>::kSize;
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const M scale = M(1) / std::sqrt(static_cast<M>(d));
  const M keep_scale = static_cast<M>(args.mask.scale);
  const uint32_t threshold = args.mask.threshold;
  const int64_t chunk = Chunk(args);
#pragma omp parallel
  {
    Scratch<M> scratch((d + width + 2 * kTile) * most_keys + 2 * kTile * width + 128);
    M* kt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* values = scratch.Take(width * most_keys);
    M* q_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys + kLanes));
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t keys = WholeLines<M>(S), ld = RowStride<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * H + h * d;
        const int64_t next = ToNext(args, h, S), q_next = ToNext(args, h, queries);
        TransposeTo(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        Read(values, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Elements<M> q_rows = ReadElements(q_tile, q + at, H, rows, d);
          Product<M>(rows, keys, d, q_rows, kt, ld, p, ld, false);
          Fetch<false>(q + at + q_next, H, rows, d);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, ld);
          // Loops of their own, so that one row's sums don't wait for another's.
          M top[kTile], factor[kTile];
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * ld;
            for (int64_t j = S; j < keys; ++j) row[j] = kNoScore<M>;
            typename Line<M>::Vector largest = LineAt(row);
            for (int64_t j = kSize; j < keys; j += kSize) {
              const typename Line<M>::Vector line = LineAt(row + j);
              largest = largest > line ? largest : line;
            }
            top[i] = Largest<M>(largest);
          }
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * ld;
#pragma omp simd
            for (int64_t j = 0; j < keys; ++j) row[j] = Exp((row[j] - top[i]) * scale);
            for (int64_t j = S; j < keys; ++j) row[j] = 0;
            typename Line<M>::Vector total = LineAt(row);
            for (int64_t j = kSize; j < keys; j += kSize) total += LineAt(row + j);
            const M sum = Sum<M>(total);
            lse[(q_begin + tile + i) * args.heads + h] = top[i] * scale + std::log(sum);
            factor[i] = keep_scale / sum;
          }
          for (int64_t i = 0; i < rows; ++i) {
            M* row = p + i * ld;
            const uint32_t* row_bits = bits + i * ld;
            const M by = factor[i];
            if (threshold > 0) {
#pragma omp simd
              for (int64_t j = 0; j < keys; ++j) {
                const M kept = row[j] * by;
                row[j] = row_bits[j] < threshold ? M(0) : kept;
              }
            } else {
#pragma omp simd
              for (int64_t j = 0; j < keys; ++j) row[j] *= by;
            }
          }
          Fetch<true>(out + at + q_next, H, rows, d);
          if constexpr (std::is_same_v<T, M>) {
            if (d == width) {
              Product<M>(rows, d, S, {p, ld, 1}, values, width, out + at, H, false);
              continue;
            }
          }
          Product<M>(rows, width, S, {p, ld, 1}, values, width, out_tile, width, false);
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
  const int64_t chunk = Chunk(args);
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
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys + kLanes));
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t begin = args.cu_seqlens[s], S = args.cu_seqlens[s + 1] - begin;
        const int64_t n = WholeLines<M>(S), ld = RowStride<M>(S);
        const int64_t q_begin = args.first_query_only ? s : begin;
        const int64_t queries = args.first_query_only ? 1 : S;
        const int64_t kv = begin * H + h * d;
        const int64_t next = ToNext(args, h, S), q_next = ToNext(args, h, queries);
        const bool direct = std::is_same_v<T, M> && d == width;
        TransposeTo(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        TransposeTo(vt, ld, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        Read(keys, k + kv, H, S, d);
        // One tile's sums go where they belong, several tiles' are gathered first.
        const bool gather = !direct || queries > kTile;
        Operand<M> to_dk = {dkeys, width}, to_dv = {dvalues, width};
        if constexpr (std::is_same_v<T, M>) {
          if (!gather) to_dk = {dk + kv, H}, to_dv = {dv + kv, H};
        }
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          Read(q_tile, q + at, H, rows, d);
          Product<M>(rows, n, d, {q_tile, width, 1}, kt, ld, p, ld, false);
          Fetch<false>(q + at + q_next, H, rows, d);
          Read(dout_tile, dout + at, H, rows, d);
          Product<M>(rows, n, d, {dout_tile, width, 1}, vt, ld, ds, ld, false);
          Fetch<false>(dout + at + q_next, H, rows, d);
          if (threshold > 0) TileBits(args, s, h, tile, rows, S, bits, ld);
          const Elements<M> out_rows = ReadElements(out_tile, out + at, H, rows, d);
          Fetch<false>(out + at + q_next, H, rows, d);
          M dot[kTile];
          for (int64_t i = 0; i < rows; ++i) {
            dot[i] = Dot(out_rows.data + i * out_rows.row, dout_tile + i * width, d);
          }
          for (int64_t i = 0; i < rows; ++i) {
            M* prow = p + i * ld;
            M* dsrow = ds + i * ld;
            const uint32_t* row_bits = bits + i * ld;
            const M log_sum = lse[(q_begin + tile + i) * args.heads + h];
            // Columns from S on are read by no product.
            if (threshold > 0) {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) {
                const M m = row_bits[j] < threshold ? M(0) : keep_scale;
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (m * dsrow[j] - dot[i]) * scale;
                prow[j] = probability * m;
              }
            } else {
#pragma omp simd
              for (int64_t j = 0; j < n; ++j) {
                const M probability = Exp(prow[j] * scale - log_sum);
                dsrow[j] = probability * (dsrow[j] - dot[i]) * scale;
                prow[j] = probability;
              }
            }
          }
          Fetch<true>(dv + kv + next, H, tile == 0 ? S : 0, d);
          Product<M>(S, width, rows, {p, 1, ld}, dout_tile, width, to_dv.data, to_dv.row, tile > 0);
          Fetch<true>(dk + kv + next, H, tile == 0 ? S : 0, d);
          Product<M>(S, width, rows, {ds, 1, ld}, q_tile, width, to_dk.data, to_dk.row, tile > 0);
          Fetch<true>(dq + at + q_next, H, rows, d);
          if constexpr (std::is_same_v<T, M>) {
            if (direct) {
              Product<M>(rows, d, S, {ds, ld, 1}, keys, width, dq + at, H, false);
              continue;
            }
          }
          Product<M>(rows, width, S, {ds, ld, 1}, keys, width, dq_tile, width, false);
          Write(dq + at, H, dq_tile, rows, d);
        }
        if (gather) {
          Write(dk + kv, H, dkeys, S, d);
          Write(dv + kv, H, dvalues, S, d);
        }
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
