// Tests attention by products of pairs of bfloat16, which few processors have. Its kernels are
// compiled with the instructions in software (avx512.h). They must compute what kernels of level 2
// compute in float32 from the same numbers, but for the rounding of probabilities and gradients.
// Clang compiles no such kernels, so there this tests the ones that convert their operands.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lathe/core/base/dtype.h"
#include "lathe/core/base/isa.h"
#include "lathe/core/base/working_memory.h"
#include "lathe/core/cpu/attention.h"

namespace lathe {
namespace {

using cpu::AttentionArgs;
using cpu::AttentionKernels;

constexpr int64_t kHeads = 3, kTableRows = 9;

struct Case {
  int64_t head_dim = 32, window = -1;
  bool bias = false, keys = false, queries = false, shared = false;
  bool dropout = false, first_query_only = false;
  double scale = 0;
  // Short sequences follow a long one, whose numbers are still in the working memory.
  std::vector<int32_t> lengths = {131, 1, 64, 2, 65, 17};
  bool dbias = true, dkeys = true, dqueries = true;  // the wanted gradients of tables
};

std::string Text(const Case& c) {
  return "heads of " + std::to_string(c.head_dim) + ", window " + std::to_string(c.window) +
         (c.bias ? ", bias" : "") + (c.keys ? ", keys" : "") + (c.queries ? ", queries" : "") +
         (c.shared ? ", shared" : "") + (c.dropout ? ", dropout" : "") +
         (c.first_query_only ? ", first query only" : "") + ", scale " + std::to_string(c.scale) +
         ", " + std::to_string(c.lengths.size()) + " sequences, the first of " +
         std::to_string(c.lengths[0]);
}

// Random numbers which bfloat16 has.
template <typename T>
std::vector<T> Random(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<T> out(static_cast<size_t>(n));
  for (T& x : out) x = static_cast<T>(static_cast<float>(BFloat16(normal(random))));
  return out;
}

template <typename T>
std::vector<T> NotANumber(size_t n) {
  return std::vector<T>(n, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
}

template <typename T>
std::vector<float> Floats(const std::vector<T>& x) {
  std::vector<float> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), [](T e) { return static_cast<float>(e); });
  return out;
}

// Fills the working memory of all threads with NaN, as float32 and as bfloat16. So a kernel that
// reads what it has not written gives NaN.
constexpr size_t kPoisoned = size_t{2} << 20;
void PoisonWorkingMemory() {
  cpu::ReserveWorkingMemory(kPoisoned);
#pragma omp parallel
  std::memset(cpu::WorkingMemory(kPoisoned), 0xff, kPoisoned);
}

// The operands and the results of both kernels for one case.
template <typename T>
struct Call {
  using Kernels = AttentionKernels::ForType<T>;

  explicit Call(const Case& a_case) : c(a_case) {
    for (const int32_t length : c.lengths) begins.push_back(begins.back() + length);
    for (size_t i = 0; i < c.lengths.size(); ++i) samples.push_back(static_cast<int32_t>(7 * i));
    const int64_t longest = *std::ranges::max_element(c.lengths);
    for (int64_t offset = 1 - longest; offset < longest; ++offset) {
      constexpr int64_t kReach = (kTableRows - 1) / 2;
      rows.push_back(static_cast<int32_t>(std::clamp(offset, -kReach, kReach) + kReach));
    }
    const int64_t H = kHeads * c.head_dim, tokens = begins.back();
    const int64_t q_rows = c.first_query_only ? std::ssize(c.lengths) : tokens;
    const int64_t table = kTableRows * (c.shared ? c.head_dim : H);
    std::mt19937 random(1);
    q = Random<T>(random, q_rows * H), dout = Random<T>(random, q_rows * H);
    k = Random<T>(random, tokens * H), v = Random<T>(random, tokens * H);
    if (c.bias) bias = Random<float>(random, kTableRows * kHeads);
    if (c.keys) keys = Random<T>(random, table);
    if (c.queries) queries = Random<T>(random, table);
    out = dq = NotANumber<T>(q.size());
    dk = dv = NotANumber<T>(k.size());
    lse = NotANumber<float>(static_cast<size_t>(q_rows * kHeads));
    dbias = NotANumber<float>(c.dbias ? bias.size() : 0);
    dkeys = NotANumber<T>(c.dkeys ? keys.size() : 0);
    dqueries = NotANumber<T>(c.dqueries ? queries.size() : 0);
  }

  AttentionArgs Args() {
    AttentionArgs args = {};
    args.cu_seqlens = begins.data();
    args.sample_ids = samples.data();
    args.batch = std::ssize(c.lengths);
    args.heads = kHeads;
    args.head_dim = c.head_dim;
    args.max_seqlen = *std::ranges::max_element(c.lengths);
    args.q_rows = std::ssize(q) / (kHeads * c.head_dim);
    args.first_query_only = c.first_query_only;
    if (c.dropout) args.mask = {.threshold = 1u << 29, .scale = 8.0 / 7, .key0 = 3, .key1 = 5};
    args.scale = c.scale;
    args.window = c.window;
    if (!c.bias && !c.keys && !c.queries) return args;
    const auto pointer = [](auto& x) { return x.empty() ? nullptr : x.data(); };
    args.relative = {.rows = rows.data(),
                     .origin = args.max_seqlen - 1,
                     .table_rows = kTableRows,
                     .shared = c.shared,
                     .bias = pointer(bias),
                     .keys = pointer(keys),
                     .queries = pointer(queries),
                     .dbias = pointer(dbias),
                     .dkeys = pointer(dkeys),
                     .dqueries = pointer(dqueries)};
    return args;
  }

  void Forward(const Kernels& kernels, bool with_lse = true) {
    PoisonWorkingMemory();
    kernels.forward(out.data(), with_lse ? lse.data() : nullptr, q.data(), k.data(), v.data(),
                    Args());
    EXPECT_EQ(cpu::WorkingMemorySize(), kPoisoned) << "not all of it was poisoned";
  }
  void Backward(const Kernels& kernels) {
    PoisonWorkingMemory();
    kernels.backward(dq.data(), dk.data(), dv.data(), dout.data(), out.data(), lse.data(), q.data(),
                     k.data(), v.data(), Args());
    EXPECT_EQ(cpu::WorkingMemorySize(), kPoisoned) << "not all of it was poisoned";
  }
  // Returns all results of both kernels.
  std::vector<std::vector<float>> Run(const Kernels& kernels) {
    Forward(kernels);
    Backward(kernels);
    return {Floats(out), lse,   Floats(dq),    Floats(dk),
            Floats(dv),  dbias, Floats(dkeys), Floats(dqueries)};
  }

  const Case c;
  std::vector<int32_t> begins = {0}, samples, rows;
  std::vector<T> q, k, v, dout, keys, queries;
  std::vector<T> out, dq, dk, dv, dkeys, dqueries;
  std::vector<float> bias, lse, dbias;
};

const AttentionKernels::ForType<BFloat16>& Pairs() {
  return cpu::TableOf<AttentionKernels, 5>().bf16;
}
const AttentionKernels::ForType<float>& Float32() {
  return cpu::TableOf<AttentionKernels, 2>().f32;
}

// Compares a head's columns in rows [begin, end) of two matrices. A matrix has `columns` columns
// for each of `heads` heads.
void ExpectNear(const std::vector<float>& have, const std::vector<float>& want, int64_t begin,
                int64_t end, int64_t head, int64_t heads, int64_t columns) {
  // If a sequence has one token, the gradients of its scores are 0 but for float32's rounding.
  double square = 1e-6 * static_cast<double>((end - begin) * columns), difference = 0;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      const auto at = static_cast<size_t>((r * heads + head) * columns + i);
      square += double{want[at]} * want[at];
      difference += (double{want[at]} - have[at]) * (double{want[at]} - have[at]);
    }
  }
  // Rounding results to bfloat16 makes a difference of 0.0017, and rounding what is multiplied
  // makes one more. They make 0.0046 at most here, in sequences of one or two tokens.
  EXPECT_LE(std::sqrt(difference / square), 0.005)
      << "head " << head << ", rows " << begin << " to " << end;
}

// Compares each sequence and head of two matrices (T, H), or (Tq, H) if `of_queries`.
template <typename T>
void ExpectSequencesNear(const char* name, const Call<T>& call, const std::vector<T>& have,
                         const std::vector<float>& want, bool of_queries) {
  SCOPED_TRACE(name);
  ASSERT_EQ(have.size(), want.size());
  const std::vector<float> floats = Floats(have);
  for (size_t s = 0; s < call.c.lengths.size(); ++s) {
    const bool one_row = of_queries && call.c.first_query_only;
    const int64_t begin = one_row ? static_cast<int64_t>(s) : call.begins[s];
    const int64_t end = begin + (one_row ? 1 : call.c.lengths[s]);
    for (int64_t h = 0; h < kHeads; ++h)
      ExpectNear(floats, want, begin, end, h, kHeads, call.c.head_dim);
  }
}

// Compares each head of two tables' gradients.
void ExpectTablesNear(const char* name, const std::vector<float>& have,
                      const std::vector<float>& want, int64_t heads) {
  SCOPED_TRACE(name);
  ASSERT_EQ(have.size(), want.size());
  for (int64_t h = 0; h < heads && !want.empty(); ++h)
    ExpectNear(have, want, 0, kTableRows, h, heads, std::ssize(want) / (kTableRows * heads));
}

// Runs both kernels, and those in float32 on the same numbers, and compares the results.
void Compare(const Case& c) {
  SCOPED_TRACE(Text(c));
  Call<BFloat16> pairs(c);
  Call<float> expected(c);
  pairs.Forward(Pairs());
  expected.Forward(Float32());
  ExpectSequencesNear("out", pairs, pairs.out, expected.out, true);
  for (size_t i = 0; i < expected.lse.size(); ++i) {  // it is computed of products of pairs alone
    ASSERT_NEAR(pairs.lse[i], expected.lse[i], 1e-5 * std::fmax(1, std::abs(expected.lse[i]))) << i;
  }
  // The gradients depend on the output as it was rounded.
  expected.out = Floats(pairs.out);
  expected.lse = pairs.lse;
  pairs.Backward(Pairs());
  expected.Backward(Float32());
  ExpectSequencesNear("dq", pairs, pairs.dq, expected.dq, true);
  ExpectSequencesNear("dk", pairs, pairs.dk, expected.dk, false);
  ExpectSequencesNear("dv", pairs, pairs.dv, expected.dv, false);
  ExpectTablesNear("dbias", pairs.dbias, expected.dbias, kHeads);
  const int64_t heads = c.shared ? 1 : kHeads;
  ExpectTablesNear("dkeys", Floats(pairs.dkeys), expected.dkeys, heads);
  ExpectTablesNear("dqueries", Floats(pairs.dqueries), expected.dqueries, heads);
}

class AttentionPairs : public testing::TestWithParam<int64_t> {  // the heads' size
 protected:
  void SetUp() override {
    if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "needs AVX2";
  }
};

TEST_P(AttentionPairs, PlainAttention) {
  for (const bool dropout : {false, true}) {
    for (const bool first : {false, true}) {
      for (const double scale : {0.0, 0.1}) {
        Compare({.head_dim = GetParam(),
                 .dropout = dropout,
                 .first_query_only = first,
                 .scale = scale});
      }
    }
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
  for (int bits = 0; bits < 128; ++bits) {
    Case c = {.head_dim = GetParam()};
    c.bias = bits & 1;
    c.keys = bits & 2;
    c.queries = bits & 4;
    c.shared = bits & 8;
    c.dropout = bits & 16;
    c.window = (bits & 32) != 0 ? 20 : -1;
    c.first_query_only = bits & 64;
    if (c.shared ? !c.keys && !c.queries : !c.bias && !c.keys && !c.queries) continue;
    if (c.dropout && (c.keys || c.queries)) c.scale = 0.1;
    Compare(c);
  }
}

// Sums over more than 256 keys are products in several parts.
TEST_P(AttentionPairs, LongSequences) {
  const std::vector<int32_t> lengths = {333, 3, 257};
  for (const int64_t window : {-1, 200}) {
    for (const bool terms : {false, true}) {
      Case c = {.head_dim = GetParam(), .window = window, .dropout = true, .lengths = lengths};
      c.bias = c.keys = c.queries = terms;
      Compare(c);
    }
  }
  Compare({.head_dim = GetParam(), .keys = true, .first_query_only = true, .lengths = lengths});
}

// With a window of 0 each query sees its own key alone. The exponentials of other keys are about
// 1e-38 before the mask makes them 0, so only large values show whether they count. The last token
// of each sequence has such values. Its own output has no gradient, so that nothing else is large.
TEST_P(AttentionPairs, KeysOutsideTheWindowCountNothing) {
  for (const bool terms : {false, true}) {
    Case c = {.head_dim = GetParam(), .window = 0};
    c.bias = c.keys = c.queries = terms;
    SCOPED_TRACE(Text(c));
    Call<BFloat16> call(c);
    const auto H = static_cast<size_t>(kHeads * c.head_dim);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (size_t i = 0, last = static_cast<size_t>(call.begins[s + 1] - 1) * H; i < H; ++i) {
        call.v[last + i] = BFloat16(static_cast<float>(call.v[last + i]) * 0x1p120f);
        call.dout[last + i] = BFloat16(0.0f);
      }
    }
    call.Run(Pairs());
    for (size_t i = 0; i < call.v.size(); ++i) {
      ASSERT_EQ(static_cast<float>(call.out[i]), static_cast<float>(call.v[i])) << i;
      ASSERT_EQ(static_cast<float>(call.dv[i]), static_cast<float>(call.dout[i])) << i;
      ASSERT_NEAR(static_cast<float>(call.dq[i]), 0, 1e-4) << i;
      ASSERT_NEAR(static_cast<float>(call.dk[i]), 0, 1e-4) << i;
    }
  }
}

// Gradients of tables are summed in 8 groups of sequences at most, so that threads don't change
// their bits.
TEST_P(AttentionPairs, ManySequences) {
  Case c = {.head_dim = GetParam(), .dropout = true, .lengths = {70}};
  for (int32_t i = 1; i < 19; ++i) c.lengths.push_back(1 + i * 7 % 30);
  const int threads = omp_get_max_threads();
  for (const bool tables : {false, true}) {
    c.bias = c.keys = c.queries = tables;
    Compare(c);
    omp_set_num_threads(1);
    const auto one = Call<BFloat16>(c).Run(Pairs());
    omp_set_num_threads(3);
    const auto three = Call<BFloat16>(c).Run(Pairs());
    omp_set_num_threads(threads);
    EXPECT_TRUE(one == three) << Text(c);
  }
}

TEST_P(AttentionPairs, ResultsThatNobodyWants) {
  Case c = {
      .head_dim = GetParam(), .bias = true, .keys = true, .queries = true, .lengths = {70, 1, 17}};
  Call<BFloat16> call(c);
  const auto all = call.Run(Pairs());
  for (int wanted = 0; wanted < 8; ++wanted) {
    c.dbias = wanted & 1;
    c.dkeys = wanted & 2;
    c.dqueries = wanted & 4;
    const auto some = Call<BFloat16>(c).Run(Pairs());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(some[i].empty() || some[i] == all[i]) << "result " << i << " of " << wanted;
    }
  }
  for (const bool terms : {false, true}) {
    c.bias = c.keys = c.queries = terms;
    Call<BFloat16> with(c), without(c);
    with.Forward(Pairs());
    without.Forward(Pairs(), false);
    EXPECT_TRUE(Floats(with.out) == Floats(without.out)) << Text(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, AttentionPairs, testing::Values(32, 64));

class AttentionPairsOfWideHeads : public AttentionPairs {};

// Sums over more than 256 columns are products in several parts.
TEST_P(AttentionPairsOfWideHeads, AllKinds) {
  for (const bool terms : {false, true}) {
    for (const int64_t window : {-1, 20}) {
      Case c = {.head_dim = GetParam(), .window = window, .lengths = {131, 1, 64, 17}};
      c.bias = c.keys = c.queries = terms;
      c.dropout = terms == (window < 0);
      Compare(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WideHeads, AttentionPairsOfWideHeads, testing::Values(96, 128, 288));

}  // namespace
}  // namespace lathe
