// Attention over packed sequences as a graph of cuDNN's operations, a pattern that its engines
// recognize as a whole:
//   S = Q K^T / sqrt(d), -inf beyond a sequence's end;  P = exp(S - lse);  O = (m P) V
//   dots = (1 - p) sum_j dO_ij O_ij;  dS = P (m' dO V^T - dots) / (1 - p) / sqrt(d)
//   dV = (m P)^T dO;  dK = dS^T Q;  dQ = dS K
// Here p is the probability of dropout, m' is its mask of 0 and 1, and m = m' / (1 - p).
#pragma once

#include "lathe/core/cuda/attention/attention_library.h"
#include "lathe/core/cuda/cudnn/cudnn_graph.h"

namespace lathe::cuda {

// The ids of the tensors and scalars in a variant pack. kDots is [batch, heads, max_seqlen] in
// float32, scratch of the backward pass.
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

// Adds all operations of the problem's pass. The backward pass is the deterministic one. It keeps
// dS in the workspace, 2 batch heads max_seqlen^2 bytes. So dQ is one product with dS instead of
// sums in any order.
void AddAttention(CudnnGraph& graph, const AttentionProblem& problem);

// Returns the probability that dropout keeps an element.
double KeepProbability(const AttentionProblem& problem);

}  // namespace lathe::cuda
