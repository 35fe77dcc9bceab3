#include "lathe/core/cpu/attention.h"

#include <type_traits>

#include "lathe/core/cpu/attention/pairs.h"
#include "lathe/core/cpu/attention/tiles.h"
#include "lathe/core/cpu/attention/variants.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

// The place where a product stores its result, and the distance between its rows.
template <typename M>
struct Operand {
  M* data;
  int64_t row;
};

// Returns the dot product of n elements.
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

template <typename T, typename M>
void Forward(T* out, M* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  if (IsVariant(args)) return ForwardOfVariant<T, M>(out, lse, q, k, v, args);
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const int64_t chunk = Chunk(args);
  const int64_t working = (d + width + 2 * kTile) * most_keys + 2 * kTile * width + 128;
  Scratch<M>::Reserve(working);
#pragma omp parallel
  {
    Scratch<M> scratch(working);
    M* kt = scratch.Take(d * most_keys);
    M* p = scratch.Take(kTile * most_keys);
    M* values = scratch.Take(width * most_keys);
    M* q_tile = scratch.Take(kTile * width);
    M* out_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys + kLanes));
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const auto [S, keys, ld, q_begin, queries, kv, next, q_next] = StripsOf<M>(args, s, h);
        TransposeTo(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        Read(values, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Elements<M> q_rows = ReadElements(q_tile, q + at, H, rows, d);
          Product<M>(rows, keys, d, q_rows, kt, ld, p, ld, Result::kOverwrite);
          Fetch<false>(q + at + q_next, H, rows, d);
          Softmax(args, {s, h, tile, rows, S}, p, ld, p, ld, lse, (q_begin + tile) * args.heads + h,
                  bits);
          Fetch<true>(out + at + q_next, H, rows, d);
          if constexpr (std::is_same_v<T, M>) {
            if (d == width) {
              Product<M>(rows, d, S, {p, ld, 1}, values, width, out + at, H, Result::kOverwrite);
              continue;
            }
          }
          Product<M>(rows, width, S, {p, ld, 1}, values, width, out_tile, width,
                     Result::kOverwrite);
          Write(out + at, H, out_tile, rows, d);
        }
      }
    }
  }
}

// With m the dropout mask times its scale, P' = m P and D_i = sum_j dO_ij O_ij:
//   dV = P'^T dO;  dS = P (m (dO V^T) - D) / sqrt(d);  dQ = dS K;  dK = dS^T Q.
// It is one function because its steps share a dozen scratch tiles, which each part of it would
// take as arguments.
template <typename T, typename M>
void Backward(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
              const T* k, const T* v, const AttentionArgs& args) {
  if (IsVariant(args)) {
    return BackwardOfVariant<T, M>(dq, dk, dv, dout, out, lse, q, k, v, args);
  }
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const int64_t chunk = Chunk(args);
  const int64_t working = (2 * d + 3 * width + 3 * kTile) * most_keys + 4 * kTile * width + 256;
  Scratch<M>::Reserve(working);
#pragma omp parallel
  {
    Scratch<M> scratch(working);
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
        const auto [S, n, ld, q_begin, queries, kv, next, q_next] = StripsOf<M>(args, s, h);
        const bool direct = std::is_same_v<T, M> && d == width;
        TransposeTo(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        TransposeTo(vt, ld, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        Read(keys, k + kv, H, S, d);
        // The sums of a single tile go directly to dk and dv, unless they must be converted. The
        // sums of several tiles are gathered in dkeys and dvalues first.
        const bool gather = !direct || queries > kTile;
        Operand<M> to_dk = {dkeys, width}, to_dv = {dvalues, width};
        if constexpr (std::is_same_v<T, M>) {
          if (!gather) to_dk = {dk + kv, H}, to_dv = {dv + kv, H};
        }
        for (int64_t tile = 0; tile < queries; tile += kTile) {
          const int64_t rows = Min(kTile, queries - tile);
          const int64_t at = (q_begin + tile) * H + h * d;
          const Result result = tile > 0 ? Result::kAddTo : Result::kOverwrite;  // dK and dV
          Read(q_tile, q + at, H, rows, d);
          Product<M>(rows, n, d, {q_tile, width, 1}, kt, ld, p, ld, Result::kOverwrite);
          Fetch<false>(q + at + q_next, H, rows, d);
          Read(dout_tile, dout + at, H, rows, d);
          Product<M>(rows, n, d, {dout_tile, width, 1}, vt, ld, ds, ld, Result::kOverwrite);
          Fetch<false>(dout + at + q_next, H, rows, d);
          const Elements<M> out_rows = ReadElements(out_tile, out + at, H, rows, d);
          Fetch<false>(out + at + q_next, H, rows, d);
          M dot[kTile];
          for (int64_t i = 0; i < rows; ++i) {
            dot[i] = Dot(out_rows.data + i * out_rows.row, dout_tile + i * width, d);
          }
          // No product reads the columns from S on.
          SoftmaxGradients(args, {s, h, tile, rows, S}, p, ds, ld, dot,
                           lse + (q_begin + tile) * args.heads + h, bits);
          Fetch<true>(dv + kv + next, H, tile == 0 ? S : 0, d);
          Product<M>(S, width, rows, {p, 1, ld}, dout_tile, width, to_dv.data, to_dv.row, result);
          Fetch<true>(dk + kv + next, H, tile == 0 ? S : 0, d);
          Product<M>(S, width, rows, {ds, 1, ld}, q_tile, width, to_dk.data, to_dk.row, result);
          Fetch<true>(dq + at + q_next, H, rows, d);
          if constexpr (std::is_same_v<T, M>) {
            if (direct) {
              Product<M>(rows, d, S, {ds, ld, 1}, keys, width, dq + at, H, Result::kOverwrite);
              continue;
            }
          }
          Product<M>(rows, width, S, {ds, ld, 1}, keys, width, dq_tile, width, Result::kOverwrite);
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

#if LATHE_ISA >= 5 && !defined(__clang__)
void ForwardOfBFloat16(BFloat16* out, float* lse, const BFloat16* q, const BFloat16* k,
                       const BFloat16* v, const AttentionArgs& args) {
  const bool pairs = SupportsPairs(args) && !IsVariant(args);
  (pairs ? ForwardOfPairs : Forward<BFloat16, float>)(out, lse, q, k, v, args);
}

void BackwardOfBFloat16(BFloat16* dq, BFloat16* dk, BFloat16* dv, const BFloat16* dout,
                        const BFloat16* out, const float* lse, const BFloat16* q, const BFloat16* k,
                        const BFloat16* v, const AttentionArgs& args) {
  const bool pairs = SupportsPairs(args) && !IsVariant(args);
  (pairs ? BackwardOfPairs : Backward<BFloat16, float>)(dq, dk, dv, dout, out, lse, q, k, v, args);
}
#else
constexpr auto ForwardOfBFloat16 = Forward<BFloat16, float>;
constexpr auto BackwardOfBFloat16 = Backward<BFloat16, float>;
#endif

}  // namespace

template <>
const AttentionKernels& TableOf<AttentionKernels, LATHE_ISA>() {
  static constexpr AttentionKernels table = {{Forward<float, float>, Backward<float, float>},
                                             {Forward<double, double>, Backward<double, double>},
                                             {ForwardOfBFloat16, BackwardOfBFloat16}};
  return table;
}

}  // namespace lathe::cpu
