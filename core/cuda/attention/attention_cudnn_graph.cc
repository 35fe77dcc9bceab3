#include "lathe/core/cuda/attention/attention_cudnn_graph.h"

namespace lathe::cuda {
namespace {

using Descriptor = CudnnGraph::Descriptor;
using Sizes = CudnnGraph::Sizes;

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;
const Sizes kOne = {1, 1, 1, 1};

class Builder {
 public:
  Builder(CudnnGraph& graph, const AttentionProblem& p)
      : graph_(graph),
        b_(p.batch),
        h_(p.heads),
        s_(p.max_seqlen),
        d_(p.head_dim),
        width_(p.heads * p.head_dim),
        type_(p.dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        dropout_(p.threshold > 0),
        keep_(KeepProbability(p)),
        lengths_(graph.Tensor(kLengths, CUDNN_DATA_INT32, {b_, 1, 1, 1}, kOne)),
        row_offsets_(graph.Tensor(kRowOffsets, CUDNN_DATA_INT32, {b_ + 1, 1, 1, 1}, kOne)),
        lse_offsets_(graph.Tensor(kLseOffsets, CUDNN_DATA_INT32, {b_ + 1, 1, 1, 1}, kOne)),
        q_(Rows(kQ)),
        // The library wants the second factor of a product transposed.
        keys_by_columns_(Columns(kK)),
        out_(Rows(kOut)),
        lse_(graph.Tensor(kLse, kFloat, {b_, h_, s_, 1}, {h_ * s_, 1, h_, 1}, lse_offsets_)) {
    if (!dropout_) return;
    const Descriptor seed = graph.Tensor(kSeed, CUDNN_DATA_INT64, kOne, kOne);
    const Descriptor offset = graph.Tensor(kOffset, CUDNN_DATA_INT64, kOne, kOne);
    mask_ = Scores(kFloat);
    keep_scale_ = graph.Scalar(kKeepScale);
    graph.Bernoulli(keep_, seed, offset, mask_);
  }

  void Forward() {
    const Descriptor x = MaskedScores();
    const Descriptor largest = PerRow(), shifted = Scores(kFloat), e = Scores(kFloat);
    const Descriptor sum = PerRow(), log_sum = PerRow();
    graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, x, largest);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, x, largest, shifted);
    graph_.Pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, e);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
    graph_.Pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, log_sum);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, largest, log_sum, lse_);
    Descriptor p = Scores(dropout_ ? kFloat : type_);
    graph_.Pointwise(CUDNN_POINTWISE_DIV, e, sum, p);
    if (dropout_) p = Times(Times(p, mask_, kFloat), keep_scale_, type_);
    graph_.Matmul(p, Rows(kV), out_, lengths_, nullptr, lengths_);
  }

  void Backward() {
    const Descriptor dout = Rows(kDOut);
    // dots isn't a virtual tensor, because a separate engine computes it first.
    const Descriptor dots = graph_.Tensor(kDots, kFloat, {b_, h_, s_, 1}, {h_ * s_, s_, 1, 1});
    const Descriptor products =
        graph_.Virtual(kFloat, {b_, h_, s_, d_}, {h_ * s_ * d_, s_ * d_, h_ * d_, 1});
    const Descriptor row_sums = PerRow();
    graph_.Pointwise(CUDNN_POINTWISE_MUL, dout, out_, products);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, products, row_sums);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, row_sums, graph_.Scalar(kKeep), dots);

    const Descriptor x = MaskedScores(), shifted = Scores(kFloat), p = Scores(kFloat);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, x, lse_, shifted);
    graph_.Pointwise(CUDNN_POINTWISE_EXP, shifted, nullptr, p);
    const Descriptor kept = dropout_ ? Times(Times(p, mask_, kFloat), keep_scale_, kFloat) : p;
    graph_.Matmul(Transposed(kept), dout, Rows(kDV), lengths_, nullptr, lengths_);

    const Descriptor dp = Scores(kFloat), rest = Scores(kFloat);
    graph_.Matmul(dout, Columns(kV), dp, lengths_, lengths_, nullptr);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, dropout_ ? Times(dp, mask_, kFloat) : dp, dots, rest);
    Descriptor ds = Times(rest, p, kFloat);
    if (dropout_) ds = Times(ds, keep_scale_, kFloat);
    ds = Times(ds, scale_, type_);
    graph_.Matmul(Transposed(ds), q_, Rows(kDK), lengths_, nullptr, lengths_);
    const Descriptor keys =
        graph_.Virtual(type_, {b_, h_, s_, d_}, {s_ * width_, d_, width_, 1}, row_offsets_);
    graph_.Reshape(keys_by_columns_, keys);
    graph_.Matmul(ds, keys, Rows(kDQ), lengths_, nullptr, lengths_);
  }

 private:
  // Rows() describes a [T, heads * head_dim] matrix by sequence and head, and Columns() the
  // transpose of each head's part.
  Descriptor Rows(AttentionId id) {
    return graph_.Tensor(id, type_, {b_, h_, s_, d_}, {s_ * width_, d_, width_, 1}, row_offsets_);
  }
  Descriptor Columns(AttentionId id) {
    return graph_.Tensor(id, type_, {b_, h_, d_, s_}, {s_ * width_, d_, 1, width_}, row_offsets_);
  }
  Descriptor Scores(cudnnDataType_t type) {
    return graph_.Virtual(type, {b_, h_, s_, s_}, {h_ * s_ * s_, s_ * s_, s_, 1});
  }
  Descriptor PerRow() { return graph_.Virtual(kFloat, {b_, h_, s_, 1}, {h_ * s_, s_, 1, 1}); }
  Descriptor Transposed(Descriptor scores) {
    const Descriptor y = graph_.Virtual(type_, {b_, h_, s_, s_}, {h_ * s_ * s_, s_ * s_, 1, s_});
    graph_.Reshape(scores, y);
    return y;
  }
  Descriptor Times(Descriptor x, Descriptor by, cudnnDataType_t type) {
    const Descriptor y = Scores(type);
    graph_.Pointwise(CUDNN_POINTWISE_MUL, x, by, y);
    return y;
  }
  Descriptor MaskedScores() {
    const Descriptor products = Scores(kFloat);
    graph_.Matmul(q_, keys_by_columns_, products, lengths_, lengths_, nullptr);
    scale_ = graph_.Scalar(kScale);
    const Descriptor scores = Times(products, scale_, kFloat);
    const auto index_below_length = [&](int64_t axis) {
      const Descriptor index = Scores(CUDNN_DATA_INT32), below = Scores(CUDNN_DATA_BOOLEAN);
      graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, index, CUDNN_DATA_INT32, nullptr,
                       axis);
      graph_.Pointwise(CUDNN_POINTWISE_CMP_LT, index, lengths_, below, CUDNN_DATA_BOOLEAN);
      return below;
    };
    const Descriptor row_counts = index_below_length(2), column_counts = index_below_length(3);
    const Descriptor counts = Scores(CUDNN_DATA_BOOLEAN), masked = Scores(kFloat);
    graph_.Pointwise(CUDNN_POINTWISE_LOGICAL_AND, row_counts, column_counts, counts,
                     CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, graph_.Scalar(kNoScore), masked, kFloat,
                     counts);
    return masked;
  }

  CudnnGraph& graph_;
  const int64_t b_, h_, s_, d_, width_;
  const cudnnDataType_t type_;
  const bool dropout_;
  const double keep_;
  const Descriptor lengths_, row_offsets_, lse_offsets_;
  const Descriptor q_, keys_by_columns_, out_, lse_;
  Descriptor mask_ = nullptr, keep_scale_ = nullptr, scale_ = nullptr;
};

}  // namespace

double KeepProbability(const AttentionProblem& problem) { return 1 - problem.threshold * 0x1p-32; }

void AddAttention(CudnnGraph& graph, const AttentionProblem& problem) {
  Builder builder(graph, problem);
  problem.backward ? builder.Backward() : builder.Forward();
}

}  // namespace lathe::cuda
