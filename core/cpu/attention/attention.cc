#include "lathe/core/cpu/attention.h"

#include <type_traits>

#include "lathe/core/cpu/attention/pairs.h"
#include "lathe/core/cpu/attention/tiles.h"
#include "lathe/core/cpu/attention/variant_pairs.h"
#include "lathe/core/cpu/attention/variants.h"
#include "lathe/core/cpu/small_product.h"

namespace lathe::cpu {
namespace {

// Returns the dot product of n elements.
template <typename T, typename M>
M Dot(const T* a, const M* b, int64_t n) {
  constexpr int64_t kSize = Line<M>::kSize;
  Lanes<M> sums = {};
  int64_t i = 0;
  for (; i + kSize <= n; i += kSize)
    sums += LoadLanes(a + i, AllLanes{}) * LoadLanes(b + i, AllLanes{});
  M sum = Sum<M>(sums);
  for (; i < n; ++i) sum += Load(a[i]) * b[i];
  return sum;
}

// Assigns A B to rows of d activations of one head, with A: (rows, K) and B: (K, WholeLines(d)).
// The product stores its sums there if they are whole lines. It can round them, too, if it stores
// them once. Otherwise they are gathered in `tile` first.
template <typename T, typename M>
[[gnu::always_inline]] inline void ProductTo(T* to, int64_t stride, M* tile, int64_t rows,
                                             int64_t d, int64_t K, const Elements<M>& a,
                                             const M* b) {
  constexpr bool kSame = std::is_same_v<T, M>;
  const int64_t width = WholeLines<M>(d);
  // An instruction that rounds a whole register makes tiny numbers 0; Write keeps them.
  if constexpr (kSame || !kRoundsInOneInstruction) {
    if (d == width && (kSame || K <= kProductDepth))
      return Product<M>(rows, d, K, a, b, width, to, stride, Result::kOverwrite);
  }
  Product<M>(rows, width, K, a, b, width, tile, width, Result::kOverwrite);
  Write(to, stride, tile, rows, d);
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
          ProductTo<T, M>(out + at, H, out_tile, rows, d, S, {p, ld, 1}, values);
        }
      }
    }
  }
}

// With m the dropout mask times its scale, P' = m P and D_i = sum_j dO_ij O_ij:
//   dV = P'^T dO;  dS = P (m (dO V^T) - D) / sqrt(d);  dQ = dS K;  dK = dS^T Q.
// It is long because all its steps share the working memory of a thread.
template <typename T, typename M>
void Backward(T* dq, T* dk, T* dv, const T* dout, const T* out, const M* lse, const T* q,
              const T* k, const T* v, const AttentionArgs& args) {
  if (IsVariant(args)) {
    return BackwardOfVariant<T, M>(dq, dk, dv, dout, out, lse, q, k, v, args);
  }
  const int64_t d = args.head_dim, H = args.heads * d;
  const int64_t width = WholeLines<M>(d), most_keys = RowStride<M>(args.max_seqlen);
  const int64_t chunk = Chunk(args);
  const int64_t working = (2 * d + 3 * width + 3 * kTile) * most_keys + 3 * kTile * width + 256;
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
    M* dq_tile = scratch.Take(kTile * width);
    uint32_t* bits = reinterpret_cast<uint32_t*>(scratch.Take(kTile * most_keys + kLanes));
#pragma omp for collapse(2) schedule(dynamic, chunk)
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t h = 0; h < args.heads; ++h) {
        const auto [S, n, ld, q_begin, queries, kv, next, q_next] = StripsOf<M>(args, s, h);
        TransposeTo(kt, ld, k + kv, H, S, d);
        Fetch<false>(k + kv + next, H, S, d);
        TransposeTo(vt, ld, v + kv, H, S, d);
        Fetch<false>(v + kv + next, H, S, d);
        Read(keys, k + kv, H, S, d);
        const bool gather = queries > kTile;  // dK and dV are sums over tiles
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
          M dot[kTile];
          for (int64_t i = 0; i < rows; ++i)
            dot[i] = Dot(out + at + i * H, dout_tile + i * width, d);
          Fetch<false>(out + at + q_next, H, rows, d);
          // No product reads the columns from S on.
          SoftmaxGradients(args, {s, h, tile, rows, S}, p, ds, ld, dot,
                           lse + (q_begin + tile) * args.heads + h, bits);
          Fetch<true>(dv + kv + next, H, tile == 0 ? S : 0, d);
          const Elements<M> p_columns = {p, 1, ld}, ds_columns = {ds, 1, ld};
          if (gather) {
            Product<M>(S, width, rows, p_columns, dout_tile, width, dvalues, width, result);
          } else {
            ProductTo(dv + kv, H, dvalues, S, d, rows, p_columns, dout_tile);
          }
          Fetch<true>(dk + kv + next, H, tile == 0 ? S : 0, d);
          if (gather) {
            Product<M>(S, width, rows, ds_columns, q_tile, width, dkeys, width, result);
          } else {
            ProductTo(dk + kv, H, dkeys, S, d, rows, ds_columns, q_tile);
          }
          Fetch<true>(dq + at + q_next, H, rows, d);
          ProductTo<T, M>(dq + at, H, dq_tile, rows, d, S, {ds, ld, 1}, keys);
        }
        if (gather) {
          Write(dk + kv, H, dkeys, S, d);
          Write(dv + kv, H, dvalues, S, d);
        }
      }
    }
  }
}

#if LATHE_HAS_BFLOAT16_PRODUCTS
void ForwardOfBFloat16(BFloat16* out, float* lse, const BFloat16* q, const BFloat16* k,
                       const BFloat16* v, const AttentionArgs& args) {
  const auto forward = !SupportsPairs(args) ? Forward<BFloat16, float>
                       : IsVariant(args)    ? ForwardOfVariantPairs
                                            : ForwardOfPairs;
  forward(out, lse, q, k, v, args);
}

void BackwardOfBFloat16(BFloat16* dq, BFloat16* dk, BFloat16* dv, const BFloat16* dout,
                        const BFloat16* out, const float* lse, const BFloat16* q, const BFloat16* k,
                        const BFloat16* v, const AttentionArgs& args) {
  const auto backward = !SupportsPairs(args) ? Backward<BFloat16, float>
                        : IsVariant(args)    ? BackwardOfVariantPairs
                                             : BackwardOfPairs;
  backward(dq, dk, dv, dout, out, lse, q, k, v, args);
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
