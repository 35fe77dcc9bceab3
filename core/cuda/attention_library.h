// Attention of a library beside Lathe's own kernels: the seam behind which cuDNN is
// (attention_cudnn.cc), or what stands for it (no_cudnn.cc; tests/emulator/attention.cc).
#pragma once

#include <absl/strings/str_cat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/core/dtype.h"

namespace lathe::cuda {

// What a plan is made for. Sequences may be fewer and shorter.
struct AttentionProblem {
  bool backward = false;
  DType dtype = DType::kBF16;  // or f16
  int64_t batch = 0, heads = 0, head_dim = 0, max_seqlen = 0;
  uint32_t threshold = 0;  // of 2^32: probability of dropout; 0: none

  auto operator<=>(const AttentionProblem&) const = default;
};
// "backward bfloat16, 32 sequences of up to 128 tokens, 12 heads of 64, dropout 0.1".
inline std::string Describe(const AttentionProblem& p) {
  std::string text = absl::StrCat(p.backward ? "backward " : "forward ", ToString(p.dtype), ", ",
                                  p.batch, " sequences of up to ", p.max_seqlen, " tokens, ",
                                  p.heads, " heads of ", p.head_dim);
  if (p.threshold > 0) absl::StrAppend(&text, ", dropout ", p.threshold * 0x1p-32);
  return text;
}

// Where things lie on the device. q, k, v, out and their gradients: (T, heads * head_dim); lse: (T,
// heads), log of the sum of exponentials. Sequence b has lengths[b] tokens, maybe 0, and begins at
// element row_offsets[b] of those matrices and lse_offsets[b] of lse.
struct AttentionOperands {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;   // written by the forward pass
  float* lse = nullptr;  // written by the forward pass
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  const int32_t* lengths = nullptr;      // (batch)
  const int32_t* row_offsets = nullptr;  // (batch + 1)
  const int32_t* lse_offsets = nullptr;  // (batch + 1)
  const int64_t* seed = nullptr;         // of the dropout's generator
  const int64_t* offset = nullptr;
  void* workspace = nullptr;  // AttentionPlan::workspace_bytes(), 256-byte aligned
};

// Kernels for one problem. Not thread-safe. Its work may be recorded, so it is kept to the end.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Queues the work; the same bits each time. Throws Error if the library refuses.
  virtual void Run(const AttentionOperands& operands) = 0;
};

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // "cuDNN 9.19.0".
  virtual std::string Name() const = 0;
  // Null if it can't, and *why says so. Takes up to seconds; never called while work is recorded.
  virtual std::unique_ptr<AttentionPlan> Build(const AttentionProblem& problem,
                                               std::string* why) = 0;
};

// That of this process, opened when it is first asked for. Null, and *why says so, if there is
// none.
AttentionLibrary* FindAttentionLibrary(std::string* why);

}  // namespace lathe::cuda
