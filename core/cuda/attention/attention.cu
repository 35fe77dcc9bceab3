// Attention over packed sequences on a device. core/cpu/attention.h declares and describes it.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "lathe/core/base/allocation_tag.h"
#include "lathe/core/cpu/attention.h"
#include "lathe/core/cuda/attention/attention.h"
#include "lathe/core/cuda/attention/attention_dispatch.h"
#include "lathe/core/cuda/attention/attention_terms.h"
#include "lathe/core/cuda/runtime/device.h"
#include "lathe/core/device_kernels.h"
#include "lathe/core/tensor.h"

namespace lathe::cuda {
namespace {

using cpu::AttentionArgs;
using cpu::AttentionKernels;

template <typename T>
AttentionParams ParamsOf(const AttentionArgs& args, std::initializer_list<const void*> rows) {
  constexpr int64_t kMostBlocks = 65535;  // the limit of a grid's y and z
  Check(args.head_dim <= 256, "attention", "heads have ", args.head_dim,
        " columns, but a GPU takes at most 256");
  Check(args.heads <= kMostBlocks && args.batch <= kMostBlocks, "attention", "there are ",
        args.batch, " sequences and ", args.heads, " heads, but a GPU takes at most 65535 of each");
  AttentionParams params;
  params.cu_seqlens = args.cu_seqlens;
  params.sample_ids = args.sample_ids;
  params.width = args.heads * args.head_dim;
  params.batch = static_cast<int32_t>(args.batch);
  params.heads = static_cast<int32_t>(args.heads);
  params.head_dim = static_cast<int32_t>(args.head_dim);
  params.max_seqlen = static_cast<int32_t>(args.max_seqlen);
  params.first_query_only = args.first_query_only;
  params.aligned = args.head_dim * sizeof(T) % 16 == 0;
  for (const void* row : rows) {
    params.aligned = params.aligned && reinterpret_cast<uintptr_t>(row) % 16 == 0;
  }
  params.scale = ScaleOf(args);
  params.keep_scale = static_cast<float>(args.mask.scale);
  params.threshold = args.mask.threshold;
  params.key0 = args.mask.key0;
  params.key1 = args.mask.key1;
  params.step = args.mask.step;
  params.device_step = args.mask.device_step;
  return params;
}

// Returns what the kernels with terms need, and checks the limits of a GPU's integers.
AttentionTerms TermsOf(const AttentionArgs& args) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
  const cpu::RelativeTerms& relative = args.relative;
  Check(args.max_seqlen <= kMost && relative.origin <= kMost && relative.table_rows <= kMost,
        "attention", "sequences have up to ", args.max_seqlen, " tokens, and relative tables have ",
        relative.table_rows, " rows for ", relative.origin,
        " offsets to each side, but a GPU takes at most ", kMost, " of each");
  AttentionTerms terms;
  terms.window = static_cast<int32_t>(args.window < 0 ? args.max_seqlen
                                                      : std::min(args.window, args.max_seqlen));
  terms.rows = relative.rows;
  terms.origin = static_cast<int32_t>(relative.origin);
  terms.table_rows = static_cast<int32_t>(relative.table_rows);
  terms.bias = static_cast<const float*>(relative.bias);
  terms.keys = relative.keys;
  terms.queries = relative.queries;
  terms.table_width = relative.shared ? args.head_dim : args.heads * args.head_dim;
  return terms;
}

// Zeroed memory on the device, which is free for other work once it goes out of scope.
std::shared_ptr<Storage> ZeroedScratch(int64_t bytes) {
  int device = 0;
  CheckCuda("cudaGetDevice", cudaGetDevice(&device));
  const AllocationTag allocation_tag = AllocationTag::Buffer("scratch memory");
  return Storage::Allocate(bytes, {DeviceType::kCUDA, device}, /*zeroed=*/true);
}

// The backward pass with terms. It needs scratch memory for the gradients of the tables.
template <typename T>
void BackwardWithTerms(T* dq, T* dk, T* dv, float* dots, const T* dout, const T* out,
                       const float* lse, const T* q, const T* k, const T* v,
                       const AttentionArgs& args) {
  const AttentionTerms terms = TermsOf(args);
  const cpu::RelativeTerms& relative = args.relative;
  const AttentionParams params =
      ParamsOf<T>(args, {dq, dk, dv, dout, out, q, k, v, relative.keys, relative.queries});
  const TableGradients tables = {static_cast<float*>(relative.dbias), relative.dkeys,
                                 relative.dqueries};
  const int64_t bias_columns = tables.bias != nullptr ? args.heads : 0;
  const int64_t keys_columns = tables.keys != nullptr ? params.width : 0;
  const int64_t queries_columns = tables.queries != nullptr ? params.width : 0;
  const int64_t columns = bias_columns + keys_columns + queries_columns;
  const OffsetSpan span = {.max_seqlen = args.max_seqlen,
                           .window = terms.window,
                           .first_query_only = args.first_query_only};
  OffsetSums sums = ShapeOfOffsetSums(span, columns, QueryTiles(args.batch, span));
  const int64_t offsets = static_cast<int64_t>(sums.slots) * sums.count;
  std::shared_ptr<Storage> scratch;
  if (columns > 0) {
    scratch = ZeroedScratch(offsets * columns * static_cast<int64_t>(sizeof(float)));
    float* at = static_cast<float*>(scratch->data());
    const auto take = [&](int64_t of_columns) {
      return of_columns == 0 ? nullptr : std::exchange(at, at + offsets * of_columns);
    };
    sums.keys = take(keys_columns);
    sums.queries = take(queries_columns);
    sums.bias = take(bias_columns);
  }
  TermsAttentionBackward(dq, dk, dv, tables, dots, sums, dout, out, lse, q, k, v, terms, params);
}

template <typename T>
void Forward(T* out, float* lse, const T* q, const T* k, const T* v, const AttentionArgs& args) {
  if (args.batch == 0) return;
  const auto own = [&] {
    if (HasTerms(args)) {
      const cpu::RelativeTerms& relative = args.relative;
      return TermsAttentionForward(
          out, lse, q, k, v, TermsOf(args),
          ParamsOf<T>(args, {out, q, k, v, relative.keys, relative.queries}));
    }
    const AttentionParams params = ParamsOf<T>(args, {out, q, k, v});
    if constexpr (!std::is_same_v<T, float>) {
      if (ChooseAttentionKernels(args.head_dim, DTypeOf<T>::value, args.max_seqlen).tensor_cores) {
        return TensorCoreAttentionForward(out, lse, q, k, v, params);
      }
    }
    PlainAttentionForward(out, lse, q, k, v, params);
  };
  RunAttention({.dtype = DTypeOf<T>::value,
                .args = args,
                .operands = {.q = q, .k = k, .v = v, .out = out, .lse = lse},
                .own = own});
}

template <typename T>
void Backward(T* dq, T* dk, T* dv, const T* dout, const T* out, const float* lse, const T* q,
              const T* k, const T* v, const AttentionArgs& args) {
  if (args.batch == 0) return;
  const auto own = [&] {
    float* dots = static_cast<float*>(
        Workspace(args.q_rows * args.heads * static_cast<int64_t>(sizeof(float))));
    if (HasTerms(args)) {
      return BackwardWithTerms(dq, dk, dv, dots, dout, out, lse, q, k, v, args);
    }
    const AttentionParams params = ParamsOf<T>(args, {dq, dk, dv, dout, out, q, k, v});
    if constexpr (!std::is_same_v<T, float>) {
      if (ChooseAttentionKernels(args.head_dim, DTypeOf<T>::value, args.max_seqlen).tensor_cores) {
        return TensorCoreAttentionBackward(dq, dk, dv, dots, dout, out, lse, q, k, v, params);
      }
    }
    PlainAttentionBackward(dq, dk, dv, dots, dout, out, lse, q, k, v, params);
  };
  // The backward pass changes out and lse only in the rows behind the last sequence.
  RunAttention({.backward = true,
                .dtype = DTypeOf<T>::value,
                .args = args,
                .operands = {.q = q,
                             .k = k,
                             .v = v,
                             .out = const_cast<T*>(out),
                             .lse = const_cast<float*>(lse),
                             .dout = dout,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv},
                .own = own});
}

template <typename T>
constexpr AttentionKernels::ForType<T> TableFor() {
  return {Forward<T>, Backward<T>};
}

const AttentionKernels table = {
    .f32 = TableFor<float>(), .f64 = {}, .bf16 = TableFor<BFloat16>(), .f16 = TableFor<Float16>()};
[[maybe_unused]] const bool registered = RegisterDeviceKernels(table);

}  // namespace

AttentionChoice ChooseAttentionKernels(int64_t head_dim, DType dtype, int64_t /*max_seqlen*/) {
  if (GetWantedAttention() == WantedAttention::kPlain) {
    return {false, "LATHE_ATTENTION asks for the plain kernels"};
  }
  if (dtype == DType::kF32) return {false, "tensor cores would round float32"};
  if (head_dim > 128) return {false, "heads have more than 128 columns"};
  return {true, "tensor cores take bfloat16 and float16"};
}

}  // namespace lathe::cuda
