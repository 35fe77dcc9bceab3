// Which kernels attention runs: Lathe's own or a library's (attention_library.h).
//
// LATHE_ATTENTION says so:
//   auto   own ones; where products are tuned (GemmOptions::tune), the library's for shapes without
//          dropout at which they were measured to be faster
//   own    never the library's
//   plain  the same, and those without tensor cores
//   cudnn  the library's wherever it can; its masks of dropout are not the CPU's
// What is measured is kept in the file of tuned products (gemm_tuning.h), under a system of its
// own. Where the library can't serve what LATHE_ATTENTION or tuning ask of it, the own ones run and
// LogDebug says why, once for each reason.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lathe/core/cpu/attention.h"
#include "lathe/core/cuda/attention_library.h"
#include "lathe/core/dtype.h"

namespace lathe::cuda {

enum class WantedAttention { kAuto, kOwn, kPlain, kCudnn };
// What LATHE_ATTENTION says. Throws InvalidArgument if that is none of them.
WantedAttention GetWantedAttention();

struct AttentionCall {
  bool backward = false;
  DType dtype = DType::kF32;
  const cpu::AttentionArgs& args;
  AttentionOperands operands;  // the matrices and lse
  std::function<void()> own;   // queues the own kernels
};
// Queues one pass of attention; attention_counts.h tells whose it was. Any thread may call.
void RunAttention(const AttentionCall& call);

}  // namespace lathe::cuda
