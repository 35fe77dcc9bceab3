// Attention over packed sequences as a graph of cuDNN's operations, which its engines know as one:
//   S = Q K^T / sqrt(d), -inf beyond a sequence's end;  P = exp(S - lse);  O = (m P) V
//   dots = (1 - p) sum_j dO_ij O_ij;  dS = P (m' dO V^T - dots) / (1 - p) / sqrt(d)
//   dV = (m P)^T dO;  dK = dS^T Q;  dQ = dS K
// with m' the dropout's mask, 0 or 1, and m = m' / (1 - p).
#pragma once

#include "lathe/core/cuda/attention_library.h"
#include "lathe/core/cuda/cudnn_graph.h"

namespace lathe::cuda {

// What a variant pack has. dots: (batch, heads, max_seqlen), float32, scratch of the backward pass.
enum AttentionId : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kDots,
  kLengths,
  kRowOffsets,
  kLseOffsets,
  kSeed,
  kOffset,
  // Scalars: 1 / sqrt(d), -inf, 1 / (1 - p), 1 - p.
  kScale,
  kNoScore,
  kKeepScale,
  kKeep,
};

// Adds all operations. The backward pass is the deterministic one: dS is kept in the workspace, 2
// batch heads max_seqlen^2 bytes, and dQ is one product of it instead of sums in whatever order.
void AddAttention(CudnnGraph& graph, const AttentionProblem& problem);

// Probability that dropout keeps.
double KeepProbability(const AttentionProblem& problem);

}  // namespace lathe::cuda
