#include "lathe/core/ops/attention.h"

#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/cpu/attention.h"
#include "lathe/core/kernels/shape_kernels.h"
#include "lathe/core/ops/dispatch.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/linear.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/core/ops/shape.h"

namespace lathe {
namespace {

// Returns the number of tokens of all sequences, or -1 if only the device knows it. Sets `longest`
// to the length of the longest sequence, or to max_seqlen on a device. Checks each sequence if
// cu_seqlens lies on the host.
int64_t NumTokens(const PackedSequences& sequences, const char* op, int64_t& longest) {
  const int64_t batch = sequences.size(), given = sequences.num_tokens;
  Check(batch >= 0, op, "cu_seqlens is empty; it must hold 0 and the end of each sequence");
  if (!sequences.cu_seqlens.device().is_cpu()) {
    Check(given <= batch * sequences.max_seqlen, op, "num_tokens is ", given, " but ", batch,
          " sequences of at most ", sequences.max_seqlen, " tokens have fewer");
    longest = sequences.max_seqlen;
    return given;
  }
  longest = 0;
  const int32_t* cu = sequences.cu_seqlens.data<int32_t>();
  Check(cu[0] == 0, op, "cu_seqlens must start with 0 but starts with ", cu[0]);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = cu[b + 1] - cu[b];
    Check(length >= 1 && length <= sequences.max_seqlen, op, "sequence ", b, " has ", length,
          " tokens but must have 1 to max_seqlen = ", sequences.max_seqlen);
    longest = std::max(longest, length);
  }
  Check(given < 0 || given == cu[batch], op, "num_tokens is ", given, " but cu_seqlens ends with ",
        cu[batch]);
  return cu[batch];
}

// Zeroes the rows of [kv_rows, H] matrices beyond the last sequence. No kernel writes those rows.
void ClearSurplus(std::vector<Tensor> matrices, int64_t tokens, const Tensor& cu_seqlens) {
  const int64_t rows = matrices[0].dim(0);
  if (tokens == rows) return;
  if (cu_seqlens.device().is_cpu()) {
    for (Tensor& x : matrices) x.Slice(tokens, rows).Fill(0);
    return;
  }
  ClearRowsArgs args;
  args.rows = rows;
  args.row_bytes = matrices[0].bytes() / rows;
  for (size_t i = 0; i < matrices.size(); ++i) args.matrices[i] = matrices[i].raw_data();
  args.first = cu_seqlens.data<int32_t>() + cu_seqlens.numel() - 1;
  DeviceKernels<ShapeKernels>().clear_rows(args);
}

}  // namespace

Tensor PackedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                       const AttentionOptions& options) {
  constexpr const char* kOp = "attention";
  Check(q.ndim() == 2 && kv.ndim() == 2 && kv.dim(1) == q.dim(1) && kv.dim(0) % 2 == 0, kOp,
        "kv must have shape [2 T, H] for q [T, H] but they have ", kv.shape(), " and ", q.shape());
  const int64_t heads = options.num_heads, H = q.dim(1), batch = sequences.size();
  const int64_t kv_rows = kv.dim(0) / 2;
  Check(heads >= 1 && H % heads == 0, kOp, "hidden size ", H, " is not a multiple of ", heads,
        " heads");
  Check(q.dtype() == kv.dtype(), kOp, "q is ", ToString(q.dtype()), " but kv is ",
        ToString(kv.dtype()));
  Check(q.dim(0) == (options.first_query_only ? batch : kv_rows), kOp, "q has ", q.dim(0),
        " rows but there are ", batch, " sequences with ", kv_rows, " tokens");
  CheckSameDevice(kOp, q.device(), {kv, sequences.cu_seqlens, sequences.sample_ids});
  cpu::AttentionArgs args;
  const int64_t tokens = NumTokens(sequences, kOp, args.max_seqlen);
  Check(tokens <= kv_rows, kOp, "the sequences have ", tokens, " tokens but kv has ", kv_rows);
  args.cu_seqlens = sequences.cu_seqlens.data<int32_t>();
  args.sample_ids = sequences.sample_ids.defined() ? sequences.sample_ids.data<int32_t>() : nullptr;
  args.batch = batch;
  args.heads = heads;
  args.head_dim = H / heads;
  args.q_rows = q.dim(0);
  args.first_query_only = options.first_query_only;
  args.mask = MaskOf(options.dropout, kOp, -1, q.device());
  Check(args.mask.threshold == 0 || args.sample_ids != nullptr, kOp, "dropout needs sample_ids");
  const int64_t ids = sequences.sample_ids.defined() ? sequences.sample_ids.numel() : batch;
  Check(ids >= batch, kOp, "there are ", batch, " sequences but only ", ids, " sample_ids");
  return DispatchActivations(q, kOp, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    Tensor out = Tensor::Empty(q.shape(), q.dtype(), q.device());
    if (!options.first_query_only) ClearSurplus({out}, tokens, sequences.cu_seqlens);
    Tensor lse;
    if (NeedsRecord({q, kv}) || !q.device().is_cpu())
      lse = Tensor::Empty({q.dim(0), heads}, MathDType(q.dtype()), q.device());
    const int64_t keys = options.values_first ? kv_rows * H : 0, values = kv_rows * H - keys;
    KernelsOf<T, cpu::AttentionKernels>(q.device())
        .forward(out.data<T>(), lse.defined() ? lse.data<M>() : nullptr, q.data<T>(),
                 kv.data<T>() + keys, kv.data<T>() + values, args);
    // The capture of `sequences` and the dropout's step keeps alive what `args` points to.
    return Record(
        kOp, out, {q, kv}, {q, kv, out},
        [args, sequences, step = options.dropout.device_step, kv_rows, keys, values, lse, tokens,
         q = q.Detach(), kv = kv.Detach(), out = out.Detach()](BackwardContext& context) {
          Tensor dq = Tensor::Empty(q.shape(), q.dtype(), q.device());
          Tensor dkv = Tensor::Empty(kv.shape(), kv.dtype(), kv.device());
          std::vector<Tensor> written = {dkv.Slice(0, kv_rows), dkv.Slice(kv_rows, 2 * kv_rows)};
          if (!args.first_query_only) written.push_back(dq);
          ClearSurplus(std::move(written), tokens, sequences.cu_seqlens);
          KernelsOf<T, cpu::AttentionKernels>(q.device())
              .backward(dq.data<T>(), dkv.data<T>() + keys, dkv.data<T>() + values,
                        context.grad_output().template data<T>(), out.data<T>(), lse.data<M>(),
                        q.data<T>(), kv.data<T>() + keys, kv.data<T>() + values, args);
          context.SetGrad(0, dq);
          context.SetGrad(1, dkv);
        });
  });
}

Tensor PackedAttentionComposed(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                               const AttentionOptions& options) {
  const int64_t H = q.dim(1), d = H / options.num_heads;
  const std::vector<int32_t> cu = sequences.cu_seqlens.ToVector<int32_t>();
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < sequences.size(); ++b) {
    const Tensor qs =
        options.first_query_only ? SliceRows(q, b, b + 1) : SliceRows(q, cu[b], cu[b + 1]);
    const int64_t keys = options.values_first ? kv.dim(0) / 2 : 0, values = kv.dim(0) / 2 - keys;
    const Tensor ks = SliceRows(kv, keys + cu[b], keys + cu[b + 1]);
    const Tensor vs = SliceRows(kv, values + cu[b], values + cu[b + 1]);
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < options.num_heads; ++h) {
      const Tensor k = SliceColumns(ks, h * d, (h + 1) * d);
      const Tensor v = SliceColumns(vs, h * d, (h + 1) * d);
      const Tensor scores = Matmul(SliceColumns(qs, h * d, (h + 1) * d), k, {.b = true});
      heads.push_back(Matmul(SoftmaxLast(Scale(scores, 1 / std::sqrt(static_cast<double>(d)))), v));
    }
    rows.push_back(ConcatColumns(heads));
  }
  return ConcatRows(rows);
}

}  // namespace lathe
