// The interface to a library's attention, an alternative to Lathe's own kernels. attention_cudnn.cc
// implements it with cuDNN. no_cudnn.cc stands in for builds without cuDNN,
// tests/emulator/attention.cc for the emulated device.
#pragma once

#include <absl/strings/str_cat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "lathe/core/base/dtype.h"

namespace lathe::cuda {

// The problem that a plan is made for. The sequences of a call may be fewer and shorter.
struct AttentionProblem {
  bool backward = false;
  DType dtype = DType::kBF16;  // or DType::kF16
  int64_t batch = 0, heads = 0, head_dim = 0, max_seqlen = 0;
  uint32_t threshold = 0;  // dropout's probability is threshold / 2^32; 0: no dropout

  auto operator<=>(const AttentionProblem&) const = default;
};
// Returns text like "backward bfloat16, 32 sequences of up to 128 tokens, 12 heads of 64, dropout
// 0.1".
inline std::string Describe(const AttentionProblem& p) {
  std::string text = absl::StrCat(p.backward ? "backward " : "forward ", ToString(p.dtype), ", ",
                                  p.batch, " sequences of up to ", p.max_seqlen, " tokens, ",
                                  p.heads, " heads of ", p.head_dim);
  if (p.threshold > 0) absl::StrAppend(&text, ", dropout ", p.threshold * 0x1p-32);
  return text;
}

// Device addresses of the operands. q, k, v, out and their gradients are [T, heads * head_dim].
// lse: [T, heads] is the log of the sum of exponentials. Sequence b has lengths[b] tokens, maybe
// none. It begins at element row_offsets[b] of those matrices and at element lse_offsets[b] of lse.
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
  const int32_t* lengths = nullptr;      // [batch]
  const int32_t* row_offsets = nullptr;  // [batch + 1]
  const int32_t* lse_offsets = nullptr;  // [batch + 1]
  const int64_t* seed = nullptr;         // of dropout's random generator
  const int64_t* offset = nullptr;
  float scale = 1;            // of the scores
  void* workspace = nullptr;  // AttentionPlan::workspace_bytes(), 256-byte aligned
};

// The kernels for one problem. Not thread-safe. A plan's owner keeps it until the process ends,
// since its work may be recorded.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Queues the work, which gives the same bits each time. Throws Error if the library refuses.
  virtual void Run(const AttentionOperands& operands) = 0;
};

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Returns the library's name and version, like "cuDNN 9.19.0".
  virtual std::string Name() const = 0;
  // Returns null and sets *why if the library can't serve the problem. It may take seconds, so
  // nobody calls it while work is recorded.
  virtual std::unique_ptr<AttentionPlan> Build(const AttentionProblem& problem,
                                               std::string* why) = 0;
};

// Returns this process's library, which the first call opens. Returns null and sets *why if there
// is none.
AttentionLibrary* FindAttentionLibrary(std::string* why);

}  // namespace lathe::cuda
