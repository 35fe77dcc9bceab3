#include "lathe/core/ops/attention.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

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
  if (rows == 0 || tokens == rows) return;
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

// Checks the rows of all offsets that sequences of `longest` tokens have.
void CheckRows(const Tensor& rows, int64_t origin, int64_t longest, int64_t table_rows,
               bool ordered, const char* op) {
  const int32_t* row = rows.data<int32_t>() + origin;
  for (int64_t offset = 1 - longest; offset < longest; ++offset) {
    Check(row[offset] >= 0 && row[offset] < table_rows, op, "relative.rows has ", row[offset],
          " for offset ", offset, " but the tables have ", table_rows, " rows");
    Check(!ordered || offset == 1 - longest || row[offset] >= row[offset - 1], op,
          "relative.rows decreases from ", row[offset - 1], " to ", row[offset], " at offset ",
          offset, "; with keys or queries it must not");
  }
}

// Returns base(i, j) plus the row of offset i - j, for queries i of [0, Q) and keys j of [0, S).
template <typename Base>
Tensor RowIndex(const RelativePositions& relative, int64_t Q, int64_t S, const Base& base) {
  const std::vector<int32_t> rows = relative.rows.ToVector<int32_t>();
  const int64_t origin = relative.rows.numel() / 2;
  std::vector<int64_t> index;
  for (int64_t i = 0; i < Q; ++i) {
    for (int64_t j = 0; j < S; ++j)
      index.push_back(base(i, j) + rows[static_cast<size_t>(i - j + origin)]);
  }
  return Tensor::FromVector(index);
}

// Returns head h's columns of a table with or without columns for each head.
Tensor OfHead(const Tensor& table, int64_t head, int64_t d) {
  return table.dim(1) == d ? table : SliceColumns(table, head * d, (head + 1) * d);
}

// Returns the terms that `relative` describes, without gradients, for q: [.., heads * head_dim] and
// sequences of at most `longest` tokens. Checks the rows unless they lie on a device.
cpu::RelativeTerms RelativeTermsOf(const RelativePositions& relative, const Tensor& q,
                                   int64_t heads, int64_t longest, const char* op) {
  if (!relative.defined()) return {};
  const Tensor &rows = relative.rows, &bias = relative.bias;
  const int64_t H = q.dim(1), d = H / heads;
  Check(rows.defined(), op, "relative.rows must be int32 of shape [2 L - 1] but is undefined");
  Check(rows.dtype() == DType::kI32 && rows.ndim() == 1 && rows.numel() % 2 == 1, op,
        "relative.rows must be int32 of shape [2 L - 1] but is ", ToString(rows.dtype()),
        " of shape ", rows.shape());
  CheckSameDevice(op, q.device(), {rows, bias, relative.keys, relative.queries});
  const int64_t origin = rows.numel() / 2;
  Check(origin + 1 >= longest, op, "relative.rows serves sequences of up to ", origin + 1,
        " tokens but the longest has ", longest);
  cpu::RelativeTerms terms = {.rows = rows.data<int32_t>(), .origin = origin};
  terms.table_rows = -1;
  const auto check_rows = [&](const Tensor& table, const char* name) {
    Check(table.ndim() == 2 && (terms.table_rows < 0 || table.dim(0) == terms.table_rows), op,
          "relative.", name, " has shape ", table.shape(), " but the tables must have ",
          terms.table_rows < 0 ? "two dimensions" : "the same number of rows");
    terms.table_rows = table.dim(0);
  };
  if (bias.defined()) {
    check_rows(bias, "bias");
    Check(bias.dim(1) == heads, op, "relative.bias must have a column for each of ", heads,
          " heads but has shape ", bias.shape());
    Check(bias.dtype() == MathDType(q.dtype()), op, "relative.bias must be ",
          ToString(MathDType(q.dtype())), " for ", ToString(q.dtype()), " q but is ",
          ToString(bias.dtype()));
    terms.bias = bias.raw_data();
  }
  for (const bool of_keys : {true, false}) {
    const Tensor& table = of_keys ? relative.keys : relative.queries;
    const char* name = of_keys ? "keys" : "queries";
    if (!table.defined()) continue;
    check_rows(table, name);
    Check(table.dim(1) == H || table.dim(1) == d, op, "relative.", name, " must have ", H,
          " columns, or ", d, " for all heads, but has shape ", table.shape());
    Check(table.dtype() == q.dtype(), op, "relative.", name, " is ", ToString(table.dtype()),
          " but q is ", ToString(q.dtype()));
    if (!of_keys && relative.keys.defined()) {
      Check(terms.shared == (table.dim(1) != H), op, "relative.keys has shape ",
            relative.keys.shape(), " but relative.queries has shape ", table.shape(),
            "; both need the same width");
    }
    terms.shared = table.dim(1) != H;
    (of_keys ? terms.keys : terms.queries) = table.raw_data();
  }
  if (q.device().is_cpu()) {
    const bool ordered = terms.keys != nullptr || terms.queries != nullptr;
    CheckRows(rows, origin, longest, terms.table_rows, ordered, op);
  }
  return terms;
}

// Composes the terms of `keys` and `queries`, to which the scores' scale applies, for one sequence
// and head. q: [Q, d], the first Q tokens of the sequence; k: [S, d]. Returns [Q, S], or an
// undefined tensor if there is no such term.
Tensor ScaledTermsComposed(const RelativePositions& relative, const Tensor& q, const Tensor& k,
                           int64_t head) {
  const int64_t Q = q.dim(0), S = k.dim(0), d = q.dim(1);
  Tensor sum;
  // Each product has a column for each row of the table; the index picks one of them for i and j.
  if (relative.keys.defined()) {
    const int64_t R = relative.keys.dim(0);
    const Tensor all = MatrixProduct(q, OfHead(relative.keys, head, d), {.b = true});
    const Tensor index = RowIndex(relative, Q, S, [=](int64_t i, int64_t) { return i * R; });
    sum = Reshape(GatherRows(Reshape(all, {Q * R, 1}), index), {Q, S});
  }
  if (relative.queries.defined()) {
    const int64_t R = relative.queries.dim(0);
    const Tensor all = MatrixProduct(k, OfHead(relative.queries, head, d), {.b = true});
    const Tensor index = RowIndex(relative, Q, S, [=](int64_t, int64_t j) { return j * R; });
    const Tensor term = Reshape(GatherRows(Reshape(all, {S * R, 1}), index), {Q, S});
    sum = sum.defined() ? Add(sum, term) : term;
  }
  return sum;
}

// Returns the bias that `relative.bias` adds to the scores of a head: [queries, keys]. Undefined if
// there is none.
Tensor BiasComposed(const RelativePositions& relative, int64_t queries, int64_t keys,
                    int64_t head) {
  if (!relative.bias.defined()) return {};
  const Tensor index = RowIndex(relative, queries, keys, [](int64_t, int64_t) { return 0; });
  return Reshape(GatherRows(SliceColumns(relative.bias, head, head + 1), index), {queries, keys});
}

// Returns [Q, S]: minus infinity where query i does not see key j, and 0 elsewhere. Undefined if
// there is no window.
Tensor WindowMask(const Tensor& q, int64_t S, int64_t window) {
  if (window < 0) return {};
  std::vector<float> mask;
  for (int64_t i = 0; i < q.dim(0); ++i) {
    for (int64_t j = 0; j < S; ++j)
      mask.push_back(std::abs(i - j) <= window ? 0 : -std::numeric_limits<float>::infinity());
  }
  return Tensor::FromVector(mask, {q.dim(0), S}).To(q.dtype());
}

// Allocates the wanted gradients of the defined ones among `tables`: the bias, the keys and the
// queries. Those are the op's inputs from number `first` on. Lets `terms` point to them.
std::vector<Tensor> TableGradients(const BackwardContext& context, size_t first,
                                   const std::vector<Tensor>& tables, cpu::RelativeTerms& terms) {
  void** const pointers[] = {&terms.dbias, &terms.dkeys, &terms.dqueries};
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < tables.size(); ++i) {
    const Tensor& table = tables[i];
    if (!table.defined()) continue;
    const bool wanted = context.NeedsInputGrad(first + gradients.size());
    gradients.push_back(wanted ? Tensor::Empty(table.shape(), table.dtype(), table.device())
                               : Tensor());
    *pointers[i] = wanted ? gradients.back().raw_data() : nullptr;
  }
  return gradients;
}

constexpr const char* kOp = "attention";

// What both passes of one call work on. The members after `args` keep alive what it points to.
struct Attention {
  cpu::AttentionArgs args;
  PackedSequences sequences;
  Tensor rows, step;           // of the relative terms and of dropout
  std::vector<Tensor> tables;  // the relative terms' bias, keys and queries, detached
  int64_t tokens = 0;          // of all sequences, or -1 if only the device knows it
  int64_t kv_rows = 0;
  int64_t keys = 0, values = 0;  // where they begin in kv, in elements
  size_t num_sources = 0;        // the tables are inputs of the op from this number on
  Tensor q, kv, out, lse;
};

// Checks the arguments of Attend and returns what they say, without any output.
Attention CheckedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                           const AttentionOptions& options) {
  Check(q.ndim() == 2 && kv.ndim() == 2 && kv.dim(1) == q.dim(1) && kv.dim(0) % 2 == 0, kOp,
        "kv must have shape [2 T, H] for q [T, H] but they have ", kv.shape(), " and ", q.shape());
  const Tensor& cu = sequences.cu_seqlens;
  Check(cu.dtype() == DType::kI32 && cu.ndim() == 1 && cu.numel() >= 1, kOp,
        "cu_seqlens must be int32 of shape [B + 1] but is ", ToString(cu.dtype()), " of shape ",
        cu.shape());
  const int64_t heads = options.num_heads, H = q.dim(1), batch = sequences.size();
  const int64_t kv_rows = kv.dim(0) / 2;
  Check(heads >= 1 && H % heads == 0, kOp, "the columns of q ", q.shape(), " don't make ", heads,
        " heads");
  Check(q.dtype() == kv.dtype(), kOp, "q is ", ToString(q.dtype()), " but kv is ",
        ToString(kv.dtype()));
  Check(q.dim(0) == (options.first_query_only ? batch : kv_rows), kOp, "q ", q.shape(),
        " doesn't fit ", batch, " sequences with kv ", kv.shape());
  CheckSameDevice(kOp, q.device(), {kv, sequences.cu_seqlens, sequences.sample_ids});
  cpu::AttentionArgs args;
  const int64_t tokens = NumTokens(sequences, kOp, args.max_seqlen);
  Check(tokens <= kv_rows, kOp, "the sequences have ", tokens, " tokens but kv has shape ",
        kv.shape());
  args.cu_seqlens = sequences.cu_seqlens.data<int32_t>();
  args.sample_ids = sequences.sample_ids.defined() ? sequences.sample_ids.data<int32_t>() : nullptr;
  args.batch = batch;
  args.heads = heads;
  args.head_dim = H / heads;
  args.q_rows = q.dim(0);
  args.first_query_only = options.first_query_only;
  args.mask = MaskOf(options.dropout, kOp, -1, q.device());
  Check(options.scale >= 0 && std::isfinite(options.scale), kOp, "scale is ", options.scale,
        " but must be positive, or 0 for 1 / sqrt(head size)");
  Check(options.window >= -1, kOp, "window is ", options.window,
        " but must be a number of tokens, or -1 for all");
  args.scale = options.scale;
  args.window = options.window;
  args.relative = RelativeTermsOf(options.relative, q, heads, args.max_seqlen, kOp);
  Check(args.mask.threshold == 0 || args.sample_ids != nullptr, kOp, "dropout needs sample_ids");
  const int64_t ids = sequences.sample_ids.defined() ? sequences.sample_ids.numel() : batch;
  Check(ids >= batch, kOp, "there are ", batch, " sequences but only ", ids, " sample_ids");
  const int64_t keys = options.values_first ? kv_rows * H : 0;
  return {.args = args,
          .sequences = sequences,
          .rows = options.relative.rows,
          .step = options.dropout.device_step,
          .tables = {},
          .tokens = tokens,
          .kv_rows = kv_rows,
          .keys = keys,
          .values = kv_rows * H - keys,
          .num_sources = 0,
          .q = q.Detach(),
          .kv = kv.Detach(),
          .out = {},
          .lse = {}};
}

// Sets the gradients of q and kv, or of the one tensor that has the rows of both, and of the
// tables.
template <typename T>
void AttendBackward(Attention& a, BackwardContext& context) {
  const auto fresh = [&](const Shape& shape) {
    return Tensor::Empty(shape, a.q.dtype(), a.q.device());
  };
  const bool stacked = a.num_sources == 1;
  const Tensor all = stacked ? fresh({3 * a.kv_rows, a.q.dim(1)}) : Tensor();
  Tensor dq = stacked ? all.Slice(0, a.kv_rows) : fresh(a.q.shape());
  Tensor dkv = stacked ? all.Slice(a.kv_rows, 3 * a.kv_rows) : fresh(a.kv.shape());
  std::vector<Tensor> written = {dkv.Slice(0, a.kv_rows), dkv.Slice(a.kv_rows, 2 * a.kv_rows)};
  if (!a.args.first_query_only) written.push_back(dq);
  ClearSurplus(std::move(written), a.tokens, a.sequences.cu_seqlens);
  std::vector<Tensor> dtables = TableGradients(context, a.num_sources, a.tables, a.args.relative);
  if (a.args.batch > 0) {
    KernelsOf<T, cpu::AttentionKernels>(a.q.device())
        .backward(dq.data<T>(), dkv.data<T>() + a.keys, dkv.data<T>() + a.values,
                  context.grad_output().template data<T>(), a.out.data<T>(),
                  a.lse.data<MathType<T>>(), a.q.data<T>(), a.kv.data<T>() + a.keys,
                  a.kv.data<T>() + a.values, a.args);
  } else {
    for (Tensor& table : dtables) {  // no kernel assigns them
      if (table.defined()) table.Fill(0);
    }
  }
  context.SetGrad(0, stacked ? all : dq);
  if (!stacked) context.SetGrad(1, dkv);
  for (size_t i = 0; i < dtables.size(); ++i) {
    if (dtables[i].defined()) context.SetGrad(a.num_sources + i, dtables[i]);
  }
}

// Computes PackedAttention of q and kv. Records it as an op of `sources`: these are q and kv, or
// one tensor that has the rows of both.
Tensor Attend(const Tensor& q, const Tensor& kv, const std::vector<Tensor>& sources,
              const PackedSequences& sequences, const AttentionOptions& options) {
  Attention a = CheckedAttention(q, kv, sequences, options);
  a.num_sources = sources.size();
  return DispatchActivations(q, kOp, [&](auto tag) {
    using T = decltype(tag);
    using M = MathType<T>;
    Tensor out = Tensor::Empty(q.shape(), q.dtype(), q.device());
    if (!options.first_query_only) ClearSurplus({out}, a.tokens, sequences.cu_seqlens);
    const RelativePositions& relative = options.relative;
    if (NeedsRecord(
            {sources.front(), sources.back(), relative.bias, relative.keys, relative.queries}) ||
        !q.device().is_cpu())
      a.lse = Tensor::Empty({q.dim(0), options.num_heads}, MathDType(q.dtype()), q.device());
    if (a.args.batch > 0) {
      KernelsOf<T, cpu::AttentionKernels>(q.device())
          .forward(out.data<T>(), a.lse.defined() ? a.lse.data<M>() : nullptr, q.data<T>(),
                   kv.data<T>() + a.keys, kv.data<T>() + a.values, a.args);
    }
    std::vector<Tensor> inputs = sources;
    for (const Tensor& table : {relative.bias, relative.keys, relative.queries}) {
      a.tables.push_back(table.defined() ? table.Detach() : Tensor());
      if (table.defined()) inputs.push_back(table);
    }
    std::vector<Tensor> saved = inputs;
    saved.push_back(out);
    a.out = out.Detach();
    return Record(
        kOp, out, std::move(inputs), std::move(saved),
        [a = std::move(a)](BackwardContext& context) mutable { AttendBackward<T>(a, context); });
  });
}

}  // namespace

Tensor PackedAttention(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                       const AttentionOptions& options) {
  return Attend(q, kv, {q, kv}, sequences, options);
}

Tensor PackedSelfAttention(const Tensor& qkv, const PackedSequences& sequences,
                           const AttentionOptions& options) {
  Check(qkv.ndim() == 2 && qkv.dim(0) % 3 == 0, kOp, "qkv must have shape [3 T, H] but has ",
        qkv.shape());
  Check(!options.first_query_only, kOp, "first queries alone don't lie above keys and values");
  const int64_t rows = qkv.dim(0) / 3;
  return Attend(qkv.Slice(0, rows), qkv.Slice(rows, 3 * rows), {qkv}, sequences, options);
}

Tensor PackedAttentionComposed(const Tensor& q, const Tensor& kv, const PackedSequences& sequences,
                               const AttentionOptions& options) {
  const int64_t H = q.dim(1), d = H / options.num_heads;
  const double scale = options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(d));
  const std::vector<int32_t> cu = sequences.cu_seqlens.ToVector<int32_t>();
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < sequences.size(); ++b) {
    const Tensor qs =
        options.first_query_only ? SliceRows(q, b, b + 1) : SliceRows(q, cu[b], cu[b + 1]);
    const int64_t keys = options.values_first ? kv.dim(0) / 2 : 0, values = kv.dim(0) / 2 - keys;
    const Tensor ks = SliceRows(kv, keys + cu[b], keys + cu[b + 1]);
    const Tensor vs = SliceRows(kv, values + cu[b], values + cu[b + 1]);
    const Tensor mask = WindowMask(qs, ks.dim(0), options.window);
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < options.num_heads; ++h) {
      const Tensor k = SliceColumns(ks, h * d, (h + 1) * d);
      const Tensor v = SliceColumns(vs, h * d, (h + 1) * d);
      const Tensor q_head = SliceColumns(qs, h * d, (h + 1) * d);
      Tensor scores = MatrixProduct(q_head, k, {.b = true});
      const Tensor terms = ScaledTermsComposed(options.relative, q_head, k, h);
      if (terms.defined()) scores = Add(scores, terms);
      scores = Scale(scores, scale);
      const Tensor bias = BiasComposed(options.relative, qs.dim(0), ks.dim(0), h);
      if (bias.defined()) scores = Add(scores, bias);
      if (mask.defined()) scores = Add(scores, mask);
      heads.push_back(MatrixProduct(SoftmaxLast(scores), v));
    }
    rows.push_back(ConcatColumns(heads));
  }
  return ConcatRows(rows);
}

}  // namespace lathe
