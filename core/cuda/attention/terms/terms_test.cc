// Tests the kernels of attention with terms against the composed formula, and against the kernels
// without terms where the terms are zero.
#include <gtest/gtest.h>

#include <cstdlib>

#include "lathe/core/attention_counts.h"
#include "lathe/core/base/round_up.h"
#include "lathe/core/cuda/attention/attention_terms_shape.h"
#include "lathe/tests/attention_cases.h"

namespace lathe::cuda {
namespace {

struct Variant {
  const char* name;
  int64_t window = -1;
  bool bias = false, keys = false, queries = false, shared = false;
  double scale = 0;
  bool first_query_only = false;
  int64_t heads = 2, head_dim = 8;
};

// Returns the table row of each offset from 1 - length to length - 1. Near offsets have rows of
// their own; far ones share rows. With `mixed`, offsets of both signs share rows, too.
Tensor Rows(int64_t length, int64_t table_rows, bool mixed) {
  std::vector<int32_t> rows;
  const int64_t middle = table_rows / 2;
  for (int64_t offset = 1 - length; offset < length; ++offset) {
    const int64_t distance = std::abs(offset), step = distance < 3 ? distance : 2 + distance / 9;
    const int64_t row = middle + (offset < 0 && !mixed ? -step : step);
    rows.push_back(static_cast<int32_t>(std::clamp<int64_t>(row, 0, table_rows - 1)));
  }
  return Tensor::FromVector(rows);
}

constexpr int64_t kTableRows = 11;

// The tables are the inputs behind q and kv.
AttentionOptions OptionsOf(const Variant& variant, const Tensors& x, int64_t longest) {
  AttentionOptions options;
  options.num_heads = variant.heads;
  options.first_query_only = variant.first_query_only;
  options.scale = variant.scale;
  options.window = variant.window;
  size_t next = 2;
  if (variant.bias) options.relative.bias = x[next++];
  if (variant.keys) options.relative.keys = x[next++];
  if (variant.queries) options.relative.queries = x[next++];
  if (next > 2) {
    options.relative.rows =
        Rows(longest + 3, kTableRows, !variant.keys && !variant.queries).To(x[0].device());
  }
  return options;
}

void CheckVariant(const Variant& variant, const std::vector<int32_t>& lengths) {
  const PackedSequences packed = Packed(WithLengths(lengths));
  const int64_t rows = packed.cu_seqlens.values<int32_t>().back();
  const int64_t H = variant.heads * variant.head_dim;
  const Shape table = {kTableRows, variant.shared ? variant.head_dim : H};
  std::vector<Shape> shapes = {{variant.first_query_only ? packed.size() : rows, H}, {2 * rows, H}};
  std::vector<size_t> activations = {0, 1};
  if (variant.bias) shapes.push_back({kTableRows, variant.heads});
  for (const bool there : {variant.keys, variant.queries}) {
    if (!there) continue;
    activations.push_back(shapes.size());
    shapes.push_back(table);
  }
  CheckOp({.name = variant.name,
           .op =
               [=](const Tensors& x) {
                 return PackedAttention(x[0], x[1], At(x[0], packed),
                                        OptionsOf(variant, x, packed.max_seqlen));
               },
           .composed =
               [=](const Tensors& x) {
                 return PackedAttentionComposed(x[0], x[1], packed,
                                                OptionsOf(variant, x, packed.max_seqlen));
               },
           .shapes = {shapes},
           .low = -1,
           .high = 1,
           .float64 = false,
           .extremes = false,
           .nan_check = false,
           .activations = activations});
}

const std::vector<int32_t> kLengths = {3, 70, 1};

TEST(AttentionTerms, Scale) { CheckVariant({.name = "scale", .scale = 0.7}, kLengths); }
TEST(AttentionTerms, Window) {
  CheckVariant({.name = "window", .window = 5}, kLengths);
  CheckVariant({.name = "window 0", .window = 0, .scale = 0.5}, {3, 66});
  CheckVariant({.name = "window over tiles", .window = 65, .heads = 1}, {200, 3});
}
TEST(AttentionTerms, Bias) {
  CheckVariant({.name = "bias", .bias = true}, kLengths);
  CheckVariant({.name = "bias and window", .window = 7, .bias = true, .scale = 1}, kLengths);
}
TEST(AttentionTerms, Keys) {
  CheckVariant({.name = "keys", .keys = true}, kLengths);
  CheckVariant({.name = "shared keys", .keys = true, .shared = true, .scale = 0.2}, kLengths);
}
TEST(AttentionTerms, Queries) {
  CheckVariant({.name = "queries", .queries = true}, kLengths);
  CheckVariant({.name = "shared queries", .queries = true, .shared = true}, kLengths);
}
TEST(AttentionTerms, All) {
  for (const int64_t head_dim : {7, 20, 65, 130}) {
    CheckVariant({.name = "all terms",
                  .window = 33,
                  .bias = true,
                  .keys = true,
                  .queries = true,
                  .scale = 0.3,
                  .head_dim = head_dim},
                 {3, 70});
  }
}
TEST(AttentionTerms, FirstQueries) {
  CheckVariant({.name = "first: window", .window = 20, .first_query_only = true}, kLengths);
  CheckVariant({.name = "first: bias", .bias = true, .first_query_only = true}, kLengths);
  for (const bool shared : {false, true}) {
    CheckVariant({.name = "first: all",
                  .window = 66,
                  .bias = true,
                  .keys = true,
                  .queries = true,
                  .shared = shared,
                  .first_query_only = true},
                 kLengths);
  }
}

// With a bias of zero, the results and the dropout masks are those of attention without terms.
TEST(AttentionTerms, DropoutIsThatOfTheHost) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  const std::vector<int32_t> cu = WithLengths({1, 2, 5, 66, 70});
  for (const bool first : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const AttentionOptions plain = Options(2, first, 0.4);
      AttentionOptions with_terms = plain;
      with_terms.relative.rows = Tensor::Full({139}, 0, DType::kI32).To(CheckedDevice());
      with_terms.relative.bias = Tensor::Zeros({1, 2}, DType::kF32, CheckedDevice());
      const Outcome host = RunOn({}, DType::kF64, dtype, 16, cu, 2, plain);
      const Outcome device = RunOn(CheckedDevice(), dtype, dtype, 16, cu, 2, with_terms);
      const double limit = dtype == DType::kF32 ? 1e-5 : dtype == DType::kBF16 ? 0.02 : 0.003;
      ExpectNear(device.out, host.out, limit, "out");
      ExpectNear(device.dq, host.dq, limit, "dq");
      ExpectNear(device.dkv, host.dkv, limit, "dkv");
    }
  }
}

// Values and all gradients of a call with all terms, on the device.
std::vector<std::vector<double>> RunAll(DType dtype, bool recorded) {
  const std::vector<int32_t> cu = WithLengths({70, 5, 130});
  const Variant variant = {.name = "", .bias = true, .keys = true, .queries = true, .head_dim = 16};
  const PackedSequences packed = Packed(cu);
  int seed = 0;
  const auto draw = [&](Shape shape, DType type) {
    std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]));
    for (float& value : values) value = std::sin(static_cast<float>(++seed));
    return Tensor::FromVector(values, shape).To(type).To(CheckedDevice()).SetRequiresGrad(true);
  };
  const Tensors x = {draw({cu.back(), 32}, dtype), draw({2 * cu.back(), 32}, dtype),
                     draw({kTableRows, 2}, DType::kF32), draw({kTableRows, 32}, dtype),
                     draw({kTableRows, 32}, dtype)};
  AttentionOptions options = OptionsOf(variant, x, packed.max_seqlen);
  options.dropout = Options(2, false, 0.2).dropout;
  const PackedSequences there = At(x[0], packed);
  // The gradients outlive recorded work, so they are made before it.
  Tensors gradients;
  for (Tensor input : x) gradients.push_back(input.MaterializeGrad());
  Tensor out;
  const auto work = [&] {
    for (Tensor& gradient : gradients) gradient.Fill(0);
    out = PackedAttention(x[0], x[1], there, options);
    Backward(out, x[0].Detach());
  };
  DeviceBackend& backend = BackendOf(CheckedDevice());
  const std::shared_ptr<DeviceMemoryPool> memory = backend.NewMemoryPool();
  std::unique_ptr<RecordedWork> graph;
  std::vector<std::vector<double>> results;
  const DeviceMemoryPoolScope scope(backend, memory);
  if (recorded) {
    graph = backend.Record(work);
    graph->Launch();
    graph->Launch();  // the scratch memory starts with zeros each time
  } else {
    work();
  }
  results.push_back(out.To(DType::kF64).ToVector<double>());
  for (const Tensor& input : x) results.push_back(input.grad().To(DType::kF64).ToVector<double>());
  return results;
}

TEST(AttentionTerms, RepeatsItselfAlsoWhenRecorded) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto first = RunAll(dtype, false);
    EXPECT_EQ(RunAll(dtype, false), first);
    EXPECT_EQ(RunAll(dtype, true), first);
  }
}

// A row outside the tables gives NaN, where the host would throw.
TEST(AttentionTerms, RowsOutOfRangeGiveNaN) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  const Tensor q = Tensor::Full({3, 4}, 1).To(CheckedDevice());
  const Tensor kv = Tensor::Full({6, 4}, 1).To(CheckedDevice());
  AttentionOptions options;
  options.relative.rows = Tensor::FromVector<int32_t>({0, 0, 0, 0, 1}).To(CheckedDevice());
  options.relative.bias = Tensor::Full({1, 1}, 2).To(CheckedDevice());
  const std::vector<float> out =
      PackedAttention(q, kv, At(q, Packed({0, 3})), options).ToVector<float>();
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[4], 1);
  EXPECT_TRUE(std::isnan(out[8]));  // the last query has offset 2 from the first key
}

// The library never serves such a call, even if it is asked for and could serve it without terms.
TEST(AttentionTerms, NoLibrary) {
  if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
  ASSERT_EQ(setenv("LATHE_ATTENTION", "cudnn", 1), 0);
  const int64_t before = GetAttentionCounts().library;
  const Tensor q = Tensor::Full({9, 16}, 1, DType::kBF16).To(CheckedDevice());
  const Tensor kv = Tensor::Full({18, 16}, 1, DType::kBF16).To(CheckedDevice());
  AttentionOptions options;
  options.window = 2;
  PackedAttention(q, kv, At(q, Packed({0, 9})), options);
  EXPECT_EQ(GetAttentionCounts().why_not_library,
            "only Lathe's own kernels compute windows and relative terms");
  options.window = -1;
  options.relative.rows = Tensor::Full({17}, 0, DType::kI32).To(CheckedDevice());
  options.relative.bias = Tensor::Zeros({1, 1}, DType::kF32, CheckedDevice());
  PackedAttention(q, kv, At(q, Packed({0, 9})), options);
  EXPECT_EQ(GetAttentionCounts().library, before);
  ASSERT_EQ(unsetenv("LATHE_ATTENTION"), 0);
}

TEST(AttentionTermsShape, FitsEveryDevice) {
  EXPECT_EQ(TermsBytes(kManyQueries, true), 87792u);
  EXPECT_LE(TermsBytes(kManyQueries, true), size_t{99} << 10);  // sm_86
  EXPECT_EQ(TermsBytes(kFewQueries, false), 26752u);
}

TEST(AttentionTermsShape, SlotsAreBounded) {
  const OffsetSpan all = {.max_seqlen = 512, .window = 512};
  const OffsetSums none = ShapeOfOffsetSums(all, 0, 256);
  EXPECT_EQ(none.slots, 256);
  const OffsetSums tables = ShapeOfOffsetSums(all, 2 * 768, 256);
  EXPECT_EQ(tables.first, -511);
  EXPECT_EQ(tables.count, 1023);
  EXPECT_EQ(tables.slots, 21);
  EXPECT_EQ(ShapeOfOffsetSums(all, 12, 256).slots, 64);
  EXPECT_EQ(ShapeOfOffsetSums(all, 12, 5).slots, 5);
  EXPECT_EQ(ShapeOfOffsetSums({.max_seqlen = 1 << 20, .window = 1 << 20}, 768, 256).slots, 1);
  const OffsetSums window =
      ShapeOfOffsetSums({.max_seqlen = 512, .window = 64, .first_query_only = true}, 12, 256);
  EXPECT_EQ(window.first, -64);
  EXPECT_EQ(window.count, 65);
}

}  // namespace
}  // namespace lathe::cuda
