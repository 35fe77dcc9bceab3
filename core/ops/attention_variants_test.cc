// Attention with a scale, a window and relative positions, against the composed formula and finite
// differences.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/attention_cases.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

constexpr int64_t kHeads = 2;

// Returns the rows of offsets 1 - length to length - 1. Offsets up to 3 have rows of their own,
// two further ones share the next row, then four, and so on, as DeBERTa's do.
std::vector<int32_t> Buckets(int32_t length, int32_t* table_rows) {
  const auto bucket = [](int32_t distance) {
    if (distance <= 3) return distance;
    return 4 + static_cast<int32_t>(std::log2(static_cast<double>(distance - 2)));
  };
  const int32_t middle = bucket(length - 1);
  *table_rows = 2 * middle + 1;
  std::vector<int32_t> rows;
  for (int32_t offset = 1 - length; offset < length; ++offset)
    rows.push_back(middle + (offset < 0 ? -bucket(-offset) : bucket(offset)));
  return rows;
}

// Returns a row of its own for each offset up to `limit`; further ones share the last row.
std::vector<int32_t> Clamped(int32_t length, int32_t limit, int32_t* table_rows) {
  *table_rows = 2 * limit + 1;
  std::vector<int32_t> rows;
  for (int32_t offset = 1 - length; offset < length; ++offset)
    rows.push_back(std::clamp(offset, -limit, limit) + limit);
  return rows;
}

struct Variant {
  double scale = 0;
  int64_t window = -1;
  bool bias = false, keys = false, queries = false, shared = false, first = false;
  double dropout = 0;
};

std::string Describe(const Variant& v) {
  return "scale " + std::to_string(v.scale) + ", window " + std::to_string(v.window) +
         (v.bias ? ", bias" : "") + (v.keys ? ", keys" : "") + (v.queries ? ", queries" : "") +
         (v.shared ? ", shared" : "") + (v.first ? ", first" : "") + ", dropout " +
         std::to_string(v.dropout);
}

AttentionOptions OptionsOf(const Variant& v) {
  AttentionOptions options = Options(kHeads, v.first, v.dropout);
  options.scale = v.scale;
  options.window = v.window;
  return options;
}

// Returns the options with the rows and with tables from `x`, the op's inputs from number 2 on.
AttentionOptions WithTables(const Variant& v, const Tensors& x, const Tensor& rows) {
  AttentionOptions options = OptionsOf(v);
  size_t next = 2;
  if (v.bias) options.relative.bias = x[next++];
  if (v.keys) options.relative.keys = x[next++];
  if (v.queries) options.relative.queries = x[next++];
  if (next > 2) options.relative.rows = rows.To(x[0].device());
  return options;
}

// Checks the variant at these lengths, heads of `d` and these rows.
void CheckVariant(const Variant& v, const std::vector<int32_t>& lengths, int64_t d,
                  const std::vector<int32_t>& row_of, int32_t table_rows) {
  SCOPED_TRACE(Describe(v));
  const PackedSequences packed = Packed(WithLengths(lengths));
  const int64_t T = packed.cu_seqlens.ToVector<int32_t>().back(), H = kHeads * d;
  const int64_t table_width = v.shared ? d : H;
  const Tensor rows = Tensor::FromVector(row_of);
  std::vector<Shape> shapes = {{v.first ? packed.size() : T, H}, {2 * T, H}};
  std::vector<size_t> activations = {0, 1};
  if (v.bias) shapes.push_back({table_rows, kHeads});
  for (const bool there : {v.keys, v.queries}) {
    if (!there) continue;
    activations.push_back(shapes.size());
    shapes.push_back({table_rows, table_width});
  }
  OpCase op_case = {.name = "attention_variant",
                    .op =
                        [=](const Tensors& x) {
                          return PackedAttention(x[0], x[1], At(x[0], packed),
                                                 WithTables(v, x, rows));
                        },
                    .shapes = {shapes},
                    .nan_check = v.window < 0,
                    .activations = activations};
  if (v.dropout == 0) {
    op_case.composed = [=](const Tensors& x) {
      return PackedAttentionComposed(x[0], x[1], packed, WithTables(v, x, rows));
    };
  }
  CheckOp(op_case);
}

// Every combination of terms, with and without a window, at lengths that fill no whole lines.
TEST(AttentionVariants, Combinations) {
  int32_t table_rows = 0;
  const std::vector<int32_t> rows = Buckets(12, &table_rows);
  for (int bits = 0; bits < 64; ++bits) {
    Variant v = {.scale = bits % 3 == 0 ? 0.3 : 0,
                 .window = (bits & 1) != 0 ? bits % 5 : -1,
                 .bias = (bits & 2) != 0,
                 .keys = (bits & 4) != 0,
                 .queries = (bits & 8) != 0,
                 .shared = (bits & 16) != 0,
                 .first = (bits & 32) != 0};
    if (v.shared && !v.keys && !v.queries) continue;
    CheckVariant(v, {3, 1, 5}, 4, rows, table_rows);
  }
}

TEST(AttentionVariants, Dropout) {
  int32_t table_rows = 0;
  const std::vector<int32_t> rows = Buckets(12, &table_rows);
  CheckVariant({.bias = true, .keys = true, .queries = true, .dropout = 0.3}, {3, 6}, 4, rows,
               table_rows);
  CheckVariant({.window = 1, .keys = true, .dropout = 0.3}, {9}, 4, rows, table_rows);
}

// Returns the output and the gradients of q, kv and the tables for random numbers.
std::vector<std::vector<double>> RunVariant(const Variant& v, const std::vector<int32_t>& lengths,
                                            int64_t d, const std::vector<int32_t>& row_of,
                                            int32_t table_rows, DType dtype, bool composed,
                                            bool table_gradients = true) {
  const PackedSequences packed = Packed(WithLengths(lengths));
  const int64_t T = packed.cu_seqlens.ToVector<int32_t>().back(), H = kHeads * d;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n, int64_t columns, DType to) {
    std::vector<float> values(static_cast<size_t>(n * columns));
    for (float& value : values) value = BFloat16(normal(random));
    return Tensor::FromVector(values, {n, columns}).To(to);
  };
  const int64_t q_rows = v.first ? packed.size() : T;
  Tensors x = {draw(q_rows, H, dtype), draw(2 * T, H, dtype)};
  const Tensor dout = draw(q_rows, H, dtype);
  const DType math = dtype == DType::kBF16 ? DType::kF32 : dtype;
  if (v.bias) x.push_back(draw(table_rows, kHeads, math));
  for (const bool there : {v.keys, v.queries}) {
    if (there) x.push_back(draw(table_rows, v.shared ? d : H, dtype));
  }
  for (size_t i = 0; i < x.size(); ++i) x[i].SetRequiresGrad(i < 2 || table_gradients);
  const AttentionOptions options = WithTables(v, x, Tensor::FromVector(row_of));
  const Tensor out = composed ? PackedAttentionComposed(x[0], x[1], packed, options)
                              : PackedAttention(x[0], x[1], packed, options);
  Backward(out, dout);
  std::vector<std::vector<double>> results = {out.Detach().To(DType::kF64).ToVector<double>()};
  for (const Tensor& input : x) {
    if (input.requires_grad()) {
      results.push_back(input.grad().To(DType::kF64).ToVector<double>());
    }
  }
  return results;
}

const std::vector<Variant> kVariants = {
    {.window = 0},
    {.window = 1},
    {.window = 64},
    {.scale = 0.125, .bias = true},
    {.keys = true},
    {.queries = true},
    {.scale = 0.1, .bias = true, .keys = true, .queries = true},
    {.keys = true, .queries = true, .shared = true},
    {.window = 64, .bias = true, .keys = true, .queries = true},
    {.window = 5, .keys = true, .queries = true, .first = true},
    {.bias = true, .keys = true, .queries = true, .first = true},
};

void ExpectResults(const std::vector<std::vector<double>>& actual,
                   const std::vector<std::vector<double>>& expected, double limit) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ExpectNear(actual[i], expected[i], limit, i == 0 ? "output" : "gradient");
}

// Tiles of every kind: fewer queries than a tile, exactly one, and several.
TEST(AttentionVariants, LongSequences) {
  int32_t bucket_rows = 0, clamped_rows = 0;
  const std::vector<int32_t> buckets = Buckets(200, &bucket_rows),
                             clamped = Clamped(203, 90, &clamped_rows);
  for (const Variant& v : kVariants) {
    for (const int64_t d : {5, 16, 32}) {
      SCOPED_TRACE(Describe(v) + ", heads of " + std::to_string(d));
      const std::vector<int32_t> lengths = {1, 200, 64, 65, 17, 130};
      for (const bool of_buckets : {true, false}) {
        const auto run = [&](DType dtype, bool composed) {
          return of_buckets ? RunVariant(v, lengths, d, buckets, bucket_rows, dtype, composed)
                            : RunVariant(v, lengths, d, clamped, clamped_rows, dtype, composed);
        };
        const auto expected = run(DType::kF64, true);
        ExpectResults(run(DType::kF64, false), expected, 1e-12);
        ExpectResults(run(DType::kF32, false), expected, 1e-4);
        ExpectResults(run(DType::kBF16, false), expected, 0.03);
      }
    }
  }
}

TEST(AttentionVariants, EveryLength) {
  int32_t table_rows = 0;
  const std::vector<int32_t> rows = Buckets(140, &table_rows);
  for (int32_t length = 1; length <= 140; length += length < 40 ? 1 : 9) {
    SCOPED_TRACE(length);
    for (const int64_t window : {-1, 7}) {
      const Variant v = {.window = window, .bias = true, .keys = true, .queries = true};
      const auto expected = RunVariant(v, {length}, 8, rows, table_rows, DType::kF64, true);
      ExpectResults(RunVariant(v, {length}, 8, rows, table_rows, DType::kF64, false), expected,
                    1e-12);
      ExpectResults(RunVariant(v, {length}, 8, rows, table_rows, DType::kF32, false), expected,
                    1e-4);
    }
  }
}

TEST(AttentionVariants, TablesWithoutGradients) {
  int32_t table_rows = 0;
  const std::vector<int32_t> rows = Buckets(70, &table_rows);
  const Variant v = {.bias = true, .keys = true, .queries = true};
  const auto all = RunVariant(v, {70, 3}, 16, rows, table_rows, DType::kF32, false);
  const auto some = RunVariant(v, {70, 3}, 16, rows, table_rows, DType::kF32, false, false);
  ASSERT_EQ(some.size(), 3);
  for (size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i], all[i]) << i;
}

// A batch without sequences gives zeros, whether it has rows or not.
TEST(AttentionVariants, NoSequences) {
  const Variant all = {.bias = true, .keys = true, .queries = true};
  const Variant first = {.window = 2, .bias = true, .first = true};
  for (const Variant& v : {Variant(), all, first}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t rows : {0, 3}) {
        SCOPED_TRACE(Describe(v) + ", " + ToString(dtype) + ", " + std::to_string(rows) + " rows");
        constexpr int64_t kD = 32, kH = kHeads * kD;
        Tensors x = {Tensor::Full({v.first ? 0 : rows, kH}, 1, dtype),
                     Tensor::Full({2 * rows, kH}, 1, dtype)};
        if (v.bias) x.push_back(Tensor::Full({5, kHeads}, 1));
        for (const bool there : {v.keys, v.queries}) {
          if (there) x.push_back(Tensor::Full({5, kH}, 1, dtype));
        }
        for (Tensor& input : x) input.SetRequiresGrad(true);
        const AttentionOptions options =
            WithTables(v, x, Tensor::FromVector(std::vector<int32_t>{0, 1, 2, 3, 4}));
        const Tensor out = PackedAttention(x[0], x[1], Packed({0}), options);
        EXPECT_EQ(out.shape(), x[0].shape());
        Backward(out, Tensor::Full(out.shape(), 1, dtype));
        Tensors zeros = {out.Detach()};
        for (const Tensor& input : x) zeros.push_back(input.grad());
        for (const Tensor& zero : zeros) {
          ASSERT_TRUE(zero.defined());
          for (const double value : zero.To(DType::kF64).ToVector<double>()) ASSERT_EQ(value, 0);
        }
      }
    }
  }
}

TEST(AttentionVariants, ThreadsDontChangeBits) {
  int32_t table_rows = 0;
  const std::vector<int32_t> rows = Buckets(70, &table_rows);
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 20; ++i) lengths.push_back(1 + i * 37 % 70);
  const int threads = omp_get_max_threads();
  for (Variant v : kVariants) {
    v.dropout = 0.2;
    omp_set_num_threads(1);
    const auto one = RunVariant(v, lengths, 16, rows, table_rows, DType::kF32, false);
    omp_set_num_threads(3);
    const auto three = RunVariant(v, lengths, 16, rows, table_rows, DType::kF32, false);
    EXPECT_TRUE(one == three) << Describe(v);
  }
  omp_set_num_threads(threads);
}

// With a window, dropout takes the same keys among those that a query sees as without one.
TEST(AttentionVariants, WindowKeepsDropoutMasks) {
  const PackedSequences packed = Packed(WithLengths({1, 5, 64, 127, 128}));
  AttentionOptions options = Options(2, false, 0.4);
  const MaskCase mask = MaskCaseOf(packed, 2, 128);
  const std::vector<bool> all = Kept(mask, packed, options, DType::kF32, Device{});
  for (const int64_t window : {0, 3, 16, 64, 500}) {
    options.window = window;
    const std::vector<bool> kept = Kept(mask, packed, options, DType::kF32, Device{});
    const std::vector<int32_t> cu = packed.cu_seqlens.ToVector<int32_t>();
    size_t at = 0;  // the output's elements come first in `kept` and `all`
    for (int64_t s = 0; s < packed.size(); ++s) {
      for (int64_t i = 0; i < cu[s + 1] - cu[s]; ++i) {
        for (int64_t c = 0; c < 2 * 128; ++c, ++at) {
          const bool seen = std::abs(c % 128 - i) <= window;
          ASSERT_EQ(kept[at], seen && all[at]) << window << ": " << i << ", " << c;
        }
      }
    }
  }
}

TEST(AttentionVariants, SaysWhatDoesNotFit) {
  const auto error = [](auto change) -> std::string {
    const Tensor q = Tensor::Full({4, 8}, 1), kv = Tensor::Full({8, 8}, 1);
    AttentionOptions options;
    options.num_heads = 2;
    RelativePositions& relative = options.relative;
    relative.rows = Tensor::FromVector(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6});
    relative.bias = Tensor::Zeros({7, 2});
    relative.keys = Tensor::Zeros({7, 8});
    change(options);
    try {
      PackedAttention(q, kv, Packed({0, 4}), options);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  const auto with_rows = [&](std::vector<int32_t> rows) {
    return error([&](AttentionOptions& o) { o.relative.rows = Tensor::FromVector(rows); });
  };
  EXPECT_EQ(error([](AttentionOptions&) {}), "");
  EXPECT_EQ(error([](AttentionOptions& o) { o.scale = -1; }),
            "[attention] scale is -1 but must be positive, or 0 for 1 / sqrt(head size)");
  EXPECT_EQ(error([](AttentionOptions& o) { o.window = -2; }),
            "[attention] window is -2 but must be a number of tokens, or -1 for all");
  EXPECT_EQ(with_rows({0, 1, 2}),
            "[attention] relative.rows serves sequences of up to 2 tokens but the longest has 4");
  EXPECT_EQ(with_rows({0, 1, 2, 3, 2, 5, 6}),
            "[attention] relative.rows decreases from 3 to 2 at offset 1; with keys or queries it "
            "must not");
  EXPECT_EQ(with_rows({0, 1, 2, 3, 4, 5, 7}),
            "[attention] relative.rows has 7 for offset 3 but the tables have 7 rows");
  EXPECT_EQ(error([](AttentionOptions& o) { o.relative.rows = {}; }),
            "[attention] relative.rows must be int32 of shape [2 L - 1] but is undefined");
  EXPECT_EQ(error([](AttentionOptions& o) {
              o.relative.bias = Tensor::Zeros({7, 3});
            }),
            "[attention] relative.bias must have a column for each of 2 heads but has shape "
            "[7, 3]");
  EXPECT_EQ(error([](AttentionOptions& o) {
              o.relative.keys = Tensor::Zeros({6, 8});
            }),
            "[attention] relative.keys has shape [6, 8] but the tables must have the same number "
            "of rows");
  EXPECT_EQ(error([](AttentionOptions& o) {
              o.relative.keys = Tensor::Zeros({7, 5});
            }),
            "[attention] relative.keys must have 8 columns, or 4 for all heads, but has shape "
            "[7, 5]");
  EXPECT_EQ(error([](AttentionOptions& o) {
              o.relative.queries = Tensor::Zeros({7, 4});
            }),
            "[attention] relative.keys has shape [7, 8] but relative.queries has shape [7, 4]; "
            "both need the same width");
  EXPECT_EQ(error([](AttentionOptions& o) {
              o.relative.keys = Tensor::Zeros({7, 8}, DType::kF64);
            }),
            "[attention] relative.keys is float64 but q is float32");
}

}  // namespace
}  // namespace lathe
