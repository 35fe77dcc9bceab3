#include <gtest/gtest.h>
#include <omp.h>

#include <thread>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/working_memory.h"
#include "lathe/core/ops/attention.h"
#include "lathe/tests/attention_cases.h"

namespace lathe {
namespace {

// Returns the bytes of working memory that one thread uses for a sequence of `length` tokens, in
// the forward and the backward pass.
size_t MemoryFor(int32_t length, DType dtype) {
  size_t bytes = 0;
  // A new thread starts without working memory.
  std::thread([&] {
    omp_set_num_threads(1);
    constexpr int64_t kH = 64;
    Tensor q = Tensor::Zeros({length, kH}, dtype), kv = Tensor::Zeros({2 * length, kH}, dtype);
    q.SetRequiresGrad(true);
    kv.SetRequiresGrad(true);
    const Tensor out = PackedAttention(q, kv, Packed({0, length}), {.num_heads = 2});
    Backward(out, Tensor::Zeros(out.shape(), dtype));
    EXPECT_TRUE(q.grad().defined());
    bytes = cpu::WorkingMemorySize();
  }).join();
  return bytes;
}

// Four times as many tokens need at most four times the memory: there is no S x S matrix.
TEST(AttentionMemory, IsLinearInTheLength) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const size_t part = MemoryFor(1024, dtype), whole = MemoryFor(4096, dtype);
    EXPECT_GT(part, 0u);
    EXPECT_LE(whole, 4 * part);
    EXPECT_LT(whole, size_t{4096} * 4096);  // bytes; one matrix of scores would be 4 times that
  }
}

}  // namespace
}  // namespace lathe
