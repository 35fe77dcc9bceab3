// Tests attention by products of pairs of bfloat16, which few processors have. Its kernels are
// compiled with the instructions in software (avx512.h). They must compute what kernels of level 2
// compute in float32 from the same numbers, but for the rounding of probabilities and gradients.
// Clang compiles no such kernels, so there this tests the ones that convert their operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/cpu/attention.h"

namespace lathe {
namespace {

using cpu::AttentionArgs;
using cpu::AttentionKernels;

struct Case {
  int64_t head_dim = 32, window = -1;
  bool bias = false, keys = false, queries = false, shared = false;
  bool dropout = false, first_query_only = false;
};

std::string Text(const Case& c) {
  return "heads of " + std::to_string(c.head_dim) + ", window " + std::to_string(c.window) +
         (c.bias ? ", bias" : "") + (c.keys ? ", keys" : "") + (c.queries ? ", queries" : "") +
         (c.shared ? ", shared" : "") + (c.dropout ? ", dropout" : "") +
         (c.first_query_only ? ", first query only" : "");
}

// What one call of each kernel computes, as float32.
struct Results {
  std::vector<std::vector<float>> all;  // out, lse, dq, dk, dv, dbias, dkeys, dqueries
};

const std::vector<int32_t> kLengths = {1, 2, 17, 64, 65, 131};

// Random numbers which bfloat16 has.
std::vector<float> Random(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = static_cast<float>(BFloat16(normal(random)));
  return out;
}

template <typename T>
std::vector<T> As(const std::vector<float>& x) {
  return std::vector<T>(x.begin(), x.end());
}

template <typename T>
std::vector<float> Floats(const std::vector<T>& x) {
  std::vector<float> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), [](T e) { return static_cast<float>(e); });
  return out;
}

template <typename T>
Results Run(const AttentionKernels::ForType<T>& kernels, const Case& c) {
  constexpr int64_t kHeads = 3, kTableRows = 9, kReach = 4;
  const int64_t H = kHeads * c.head_dim, batch = static_cast<int64_t>(kLengths.size());
  std::vector<int32_t> begins = {0}, samples(kLengths.size());
  for (const int32_t length : kLengths) begins.push_back(begins.back() + length);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int32_t>(7 * i);
  const int64_t tokens = begins.back(), longest = *std::ranges::max_element(kLengths);
  const int64_t q_rows = c.first_query_only ? batch : tokens;

  std::mt19937 random(1);
  const auto q = As<T>(Random(random, q_rows * H)), k = As<T>(Random(random, tokens * H)),
             v = As<T>(Random(random, tokens * H)), dout = As<T>(Random(random, q_rows * H));
  const int64_t table = kTableRows * (c.shared ? c.head_dim : H);
  const auto bias = Random(random, kTableRows * kHeads);
  const auto keys = As<T>(Random(random, table)), queries = As<T>(Random(random, table));
  std::vector<int32_t> rows;
  for (int64_t offset = 1 - longest; offset < longest; ++offset)
    rows.push_back(static_cast<int32_t>(std::clamp(offset, -kReach, kReach) + kReach));

  std::vector<T> out(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<T> dkeys(c.keys ? keys.size() : 0), dqueries(c.queries ? queries.size() : 0);
  std::vector<float> lse(static_cast<size_t>(q_rows * kHeads)), dbias(c.bias ? bias.size() : 0);
  AttentionArgs args = {};
  args.cu_seqlens = begins.data();
  args.sample_ids = samples.data();
  args.batch = batch;
  args.heads = kHeads;
  args.head_dim = c.head_dim;
  args.max_seqlen = longest;
  args.q_rows = q_rows;
  args.first_query_only = c.first_query_only;
  if (c.dropout) args.mask = {.threshold = 1u << 29, .scale = 8.0 / 7, .key0 = 3, .key1 = 5};
  args.window = c.window;
  if (c.bias || c.keys || c.queries) {
    args.relative = {.rows = rows.data(), .origin = longest - 1, .table_rows = kTableRows};
    args.relative.shared = c.shared;
  }
  if (c.bias) args.relative.bias = bias.data(), args.relative.dbias = dbias.data();
  if (c.keys) args.relative.keys = keys.data(), args.relative.dkeys = dkeys.data();
  if (c.queries) args.relative.queries = queries.data(), args.relative.dqueries = dqueries.data();
  kernels.forward(out.data(), lse.data(), q.data(), k.data(), v.data(), args);
  kernels.backward(dq.data(), dk.data(), dv.data(), dout.data(), out.data(), lse.data(), q.data(),
                   k.data(), v.data(), args);
  return {{Floats(out), lse, Floats(dq), Floats(dk), Floats(dv), dbias, Floats(dkeys),
           Floats(dqueries)}};
}

void Compare(const Case& c) {
  SCOPED_TRACE(Text(c));
  const char* const names[] = {"out", "lse", "dq", "dk", "dv", "dbias", "dkeys", "dqueries"};
  const Results pairs = Run<BFloat16>(cpu::TableOf<AttentionKernels, 5>().bf16, c);
  const Results expected = Run<float>(cpu::TableOf<AttentionKernels, 2>().f32, c);
  for (size_t i = 0; i < expected.all.size(); ++i) {
    const std::vector<float>&want = expected.all[i], &have = pairs.all[i];
    ASSERT_EQ(want.size(), have.size());
    if (want.empty()) continue;
    // With a window of 0, a query sees one key, and the gradients of scores are nearly 0.
    double square = 1e-3 * static_cast<double>(want.size()), difference = 0;
    for (size_t j = 0; j < want.size(); ++j) {
      square += double{want[j]} * want[j];
      difference += (double{want[j]} - have[j]) * (double{want[j]} - have[j]);
    }
    // bfloat16 has 8 bits. A row of 280 that is wrong makes a difference of 0.06.
    EXPECT_LT(std::sqrt(difference / square), 0.02) << names[i];
  }
}

class AttentionPairs : public testing::TestWithParam<int64_t> {  // the heads' size
 protected:
  void SetUp() override {
    if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "needs AVX2";
  }
};

TEST_P(AttentionPairs, PlainAttention) {
  for (const bool dropout : {false, true}) {
    for (const bool first : {false, true})
      Compare({.head_dim = GetParam(), .dropout = dropout, .first_query_only = first});
  }
}

TEST_P(AttentionPairs, Window) {
  Compare({.head_dim = GetParam(), .window = 0});
  for (const int64_t window : {1, 3, 16, 64, 1000}) {
    for (const bool dropout : {false, true})
      Compare({.head_dim = GetParam(), .window = window, .dropout = dropout});
  }
  Compare({.head_dim = GetParam(), .window = 5, .first_query_only = true});
}

TEST_P(AttentionPairs, RelativeTerms) {
  for (int terms = 1; terms < 8; ++terms) {
    for (const bool shared : {false, true}) {
      Case c = {.head_dim = GetParam(), .shared = shared};
      c.bias = terms & 1;
      c.keys = terms & 2;
      c.queries = terms & 4;
      Compare(c);
      c.window = 20;
      c.dropout = true;
      Compare(c);
      c.first_query_only = true;
      Compare(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, AttentionPairs, testing::Values(32, 64));

}  // namespace
}  // namespace lathe
