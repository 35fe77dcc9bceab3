// Chooses the kernels that attention runs: Lathe's own or a library's (attention_library.h).
//
// The environment variable LATHE_ATTENTION decides:
//   auto   Lathe's own kernels. If products are tuned (GemmOptions::tune), the library's for shapes
//          without dropout at which they were measured to be faster.
//   own    Lathe's own kernels always.
//   plain  Lathe's own kernels, without those for tensor cores.
//   cudnn  The library's wherever it can serve. Its dropout masks differ from the CPU's.
// Calls with a window or relative terms run the float32 kernels in terms/, whatever the variable
// says.
// Measurements are kept in the file of tuned products (gemm_tuning.h), under a separate system
// name. If the library can't serve a call for which LATHE_ATTENTION or tuning wants it, Lathe's own
// kernels run. LogDebug then gives the reason, once for each reason.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lathe/core/base/dtype.h"
#include "lathe/core/cpu/attention.h"
#include "lathe/core/cuda/attention/attention_library.h"

namespace lathe::cuda {

enum class WantedAttention { kAuto, kOwn, kPlain, kCudnn };
// Returns the value of LATHE_ATTENTION, kAuto if it is unset or empty. Throws InvalidArgument if it
// has any other value.
WantedAttention GetWantedAttention();

struct AttentionCall {
  bool backward = false;
  DType dtype = DType::kF32;
  const cpu::AttentionArgs& args;
  AttentionOperands operands;  // only the matrices and lse are set
  std::function<void()> own;   // queues Lathe's own kernels
};
// Queues one pass of attention. attention_counts.h counts whose kernels ran. Any thread may call
// this.
void RunAttention(const AttentionCall& call);

}  // namespace lathe::cuda
