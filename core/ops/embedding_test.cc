#include "lathe/core/ops/embedding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/shape.h"
#include "lathe/tests/check_op.h"

namespace lathe {
namespace {

TEST(Embedding, Sum) {
  const Tensor words = Tensor::FromVector<int32_t>({3, 0, 3, 1});
  const Tensor types = Tensor::FromVector<int32_t>({0, 1, 1, 0});
  CheckOp(
      {.name = "embedding_sum",
       .op =
           [&](const Tensors& x) {
             const Device device = x[0].device();
             return EmbeddingSum({words.To(device), types.To(device)}, {x[0], x[1]});
           },
       .composed =
           [&](const Tensors& x) { return Add(GatherRows(x[0], words), GatherRows(x[1], types)); },
       .shapes = {{{4, 8}, {2, 8}}, {{5, 33}, {3, 33}}}});
  const Tensor none = Tensor::Empty({0}, DType::kI32);
  CheckOp({.name = "embedding_of_nothing",
           .op = [&](const Tensors& x) { return EmbeddingSum({none.To(x[0].device())}, {x[0]}); },
           .composed = [&](const Tensors& x) { return GatherRows(x[0], none); },
           .shapes = {{{4, 8}}}});
}

TEST(Embedding, PaddingRowGetsNoGradient) {
  Tensor table = Tensor::Full({3, 2}, 1).SetRequiresGrad(true);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 1, 0, 2, 2});
  Backward(EmbeddingSum({ids}, {table}, {0}), Tensor::Full({5, 2}, 1));
  EXPECT_EQ(table.grad().ToVector<float>(), (std::vector<float>{0, 0, 1, 1, 2, 2}));
}

// The device agrees with the host on five tables, small and large, with rare and frequent ids.
// There are more rows than one chunk of the sums has.
TEST(Embedding, ManyRowsOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  for (const int32_t n : {1, 3, 36, 132, 300}) {
    SCOPED_TRACE(std::to_string(n) + " columns");
    constexpr int32_t kRows = 700;
    std::vector<Tensor> ids;
    std::vector<Tensor> tables;
    for (const int32_t size : {1, 2, 50, 1000, 9}) {
      std::vector<int32_t> of_table;
      for (int32_t r = 0; r < kRows; ++r) {
        of_table.push_back(static_cast<int32_t>(int64_t{r} * r * 7919 % (size + 13) % size));
      }
      ids.push_back(Tensor::FromVector(of_table));
      tables.push_back(Tensor::Empty({size, n}));
      for (int64_t i = 0; i < tables.back().numel(); ++i) {
        tables.back().data<float>()[i] = std::sin(static_cast<float>(i + size));
      }
    }
    Tensor dy = Tensor::Empty({kRows, n});
    for (int64_t i = 0; i < dy.numel(); ++i) {
      dy.data<float>()[i] = std::cos(static_cast<float>(i));
    }
    const std::vector<int64_t> padding = {-1, -1, 3, 0, -1};
    const auto run = [&](Device on, Device ids_on) {
      std::vector<Tensor> leaves, indices;
      for (const Tensor& table : tables) leaves.push_back(table.Clone().To(on));
      for (Tensor& leaf : leaves) leaf.SetRequiresGrad(true);
      for (const Tensor& i : ids) indices.push_back(i.To(ids_on));
      const Tensor y = EmbeddingSum(indices, leaves, padding);
      Backward(y, dy.To(on));
      std::vector<std::vector<float>> result = {y.ToVector<float>()};
      for (const Tensor& leaf : leaves) result.push_back(leaf.grad().ToVector<float>());
      return result;
    };
    const auto expected = run({}, {}), actual = run(device, device);
    EXPECT_EQ(actual[0], expected[0]);
    for (size_t t = 1; t < expected.size(); ++t) {
      for (size_t i = 0; i < expected[t].size(); ++i) {
        ASSERT_NEAR(actual[t][i], expected[t][i], 1e-3) << "table " << t - 1 << ", element " << i;
      }
    }
    EXPECT_EQ(run(device, Device{}), actual);  // the op copies these ids itself
  }
}

constexpr double kEps = 1e-5;

DropoutSpec Spec(double p, int64_t rows, Device device) {
  std::vector<int32_t> samples, positions;
  for (int32_t i = 0; i < rows; ++i) {
    samples.push_back(i / 3);
    positions.push_back(i % 3);
  }
  return {.p = p,
          .key = {.seed = 5, .step = 3, .site = 9},
          .row_samples = Tensor::FromVector(samples).To(device),
          .row_positions = Tensor::FromVector(positions).To(device)};
}

TEST(EmbeddingLayerNorm, Op) {
  const Tensor words = Tensor::FromVector<int32_t>({3, 0, 3, 1, 2, 3, 0});
  const Tensor types = Tensor::FromVector<int32_t>({0, 1, 1, 0, 0, 0, 1});
  for (const double p : {0.0, 0.3}) {
    const auto spec = [=](Device device) { return Spec(p, 7, device); };
    CheckOp({.name = "embedding_layer_norm",
             .op =
                 [&](const Tensors& x) {
                   const Device device = x[0].device();
                   return EmbeddingLayerNorm({words.To(device), types.To(device)}, {x[0], x[1]}, {},
                                             x[2], x[3], kEps, spec(device), x[0].dtype());
                 },
             .composed =
                 [&](const Tensors& x) {
                   return EmbeddingLayerNormComposed({words, types}, {x[0], x[1]}, {}, x[2], x[3],
                                                     kEps, spec({}), x[0].dtype());
                 },
             .shapes = {{{4, 8}, {2, 8}, {8}, {8}},
                        {{5, 33}, {3, 33}, {33}, {33}},
                        {{4, 64}, {2, 64}, {64}, {64}}},
             .nan_check = p == 0});  // NaN may be dropped
  }
  CheckOp({.name = "embedding_layer_norm_without_bias",
           .op =
               [&](const Tensors& x) {
                 return EmbeddingLayerNorm({words.To(x[0].device())}, {x[0]}, {}, x[1], {}, kEps,
                                           {}, x[0].dtype());
               },
           .composed =
               [&](const Tensors& x) {
                 return EmbeddingLayerNormComposed({words}, {x[0]}, {}, x[1], {}, kEps, {},
                                                   x[0].dtype());
               },
           .shapes = {{{4, 8}, {8}}, {{5, 33}, {33}}}});
  const Tensor none = Tensor::Empty({0}, DType::kI32);
  CheckOp({.name = "embedding_layer_norm_of_nothing",
           .op =
               [&](const Tensors& x) {
                 return EmbeddingLayerNorm({none.To(x[0].device())}, {x[0]}, {}, x[1], x[2], kEps,
                                           {}, x[0].dtype());
               },
           .shapes = {{{4, 8}, {8}, {8}}}});
}

// The fused op agrees with the single ops on the same device, for three tables and every dtype.
// Some rows fit a warp, others need a block, and one case has more rows than are summed together.
TEST(EmbeddingLayerNorm, SizesAndTypesOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  const auto wave = [](Shape shape, double step) {
    Tensor x = Tensor::Empty(std::move(shape));
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.data<float>()[i] = static_cast<float>(std::sin(step * static_cast<double>(i)));
    }
    return x;
  };
  const struct {
    int32_t rows;
    int64_t columns;
  } sizes[] = {{1, 3},    {40, 7},   {37, 64},  {9, 768},  {2, 1024},
               {3, 1030}, {5, 1152}, {1, 8208}, {1, 9001}, {2300, 16}};
  for (const auto& [rows, n] : sizes) {
    std::vector<Tensor> ids;
    for (const int32_t table_rows : {11, 2, 57}) {
      std::vector<int32_t> of_table;
      for (int32_t r = 0; r < rows; ++r) of_table.push_back((r * 7 + r / 5) % table_rows);
      ids.push_back(Tensor::FromVector(of_table).To(device));
    }
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const double p : {0.0, 0.25}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(n) + ", " +
                     ToString(dtype) + ", dropout " + std::to_string(p));
        const auto run = [&, rows = rows, n = n](auto op) {
          std::vector<Tensor> x = {wave({11, n}, 0.7), wave({2, n}, 1.3), wave({57, n}, 0.1),
                                   wave({n}, 0.9), wave({n}, 0.3)};
          for (Tensor& leaf : x) (leaf = leaf.To(device)).SetRequiresGrad(true);
          const Tensor y = op(ids, {x[0], x[1], x[2]}, {0, -1, -1}, x[3], x[4], kEps,
                              Spec(p, rows, device), dtype);
          EXPECT_EQ(y.dtype(), dtype);
          Backward(y, wave({rows, n}, 0.45).To(dtype).To(device));
          std::vector<std::vector<float>> result = {y.To(DType::kF32).ToVector<float>()};
          for (const Tensor& leaf : x) result.push_back(leaf.grad().ToVector<float>());
          return result;
        };
        const auto actual = run(EmbeddingLayerNorm), expected = run(EmbeddingLayerNormComposed);
        for (size_t i = 0; i < expected.size(); ++i) {
          float largest = 1;
          for (const float v : expected[i]) largest = std::max(largest, std::fabs(v));
          // The formula is the same, so only rounding to a narrow dtype may differ.
          const float off = i > 0 || dtype == DType::kF32 ? 1e-5f : 8e-3f;
          for (size_t k = 0; k < expected[i].size(); ++k) {
            ASSERT_NEAR(actual[i][k], expected[i][k], off * largest) << i << ", element " << k;
          }
        }
      }
    }
  }
}

TEST(EmbeddingLayerNorm, FrozenTablesOrFrozenNorm) {
  if (const std::string why = WhyNoCheckedDevice(); !why.empty()) GTEST_SKIP() << why;
  const Device device = CheckedDevice();
  const Tensor ids = Tensor::FromVector<int32_t>({0, 2, 1, 2}).To(device);
  const auto run = [&](bool table_needs, bool weight_needs, bool bias_needs) {
    Tensor table = Tensor::FromVector<float>({1, 2, 4, 3, -1, 0, 5, 2, 2}, {3, 3}).To(device);
    Tensor weight = Tensor::Full({3}, 2, DType::kF32, device);
    Tensor bias = Tensor::Full({3}, 1, DType::kF32, device);
    table.SetRequiresGrad(table_needs);
    weight.SetRequiresGrad(weight_needs);
    bias.SetRequiresGrad(bias_needs);
    const Tensor y = EmbeddingLayerNorm({ids}, {table}, {}, weight, bias, kEps, {}, DType::kF32);
    EXPECT_EQ(y.requires_grad(), table_needs || weight_needs || bias_needs);
    if (y.requires_grad()) Backward(y, y.Detach());
    std::vector<std::vector<float>> grads;
    for (const Tensor& x : {table, weight, bias}) {
      grads.push_back(x.grad().defined() ? x.grad().ToVector<float>() : std::vector<float>());
    }
    return grads;
  };
  const auto all = run(true, true, true);
  for (int needs = 0; needs < 8; ++needs) {
    const auto some = run(needs & 1, needs & 2, needs & 4);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(some[i], (needs >> i & 1) != 0 ? all[i] : std::vector<float>()) << needs;
    }
  }
}

TEST(EmbeddingLayerNorm, BadNumbersAndErrorsOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  Tensor table = Tensor::FromVector<float>({1, 2, 3, 4, 5, 7}, {3, 2}).To(device);
  table.SetRequiresGrad(true);
  const Tensor weight = Tensor::Full({2}, 1, DType::kF32, device);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 3, -1, 2});
  const auto op = [&](const Tensor& numbers, const Tensor& scale, DType dtype = DType::kF32) {
    return EmbeddingLayerNorm({numbers}, {table}, {}, scale, weight, kEps, {}, dtype);
  };
  const Tensor y = op(ids.To(device), weight);
  const std::vector<float> values = y.ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i >= 2 && i < 6) << i;
  Backward(y, Tensor::Full({4, 2}, 1).To(device));
  for (const float g : table.grad().ToVector<float>()) EXPECT_TRUE(std::isfinite(g));
  EXPECT_THROW(op(ids, weight), Error);  // ids on the host are checked
  EXPECT_THROW(op(ids.To(device), Tensor::Full({3}, 1, DType::kF32, device)), Error);
  EXPECT_THROW(op(ids.To(device), Tensor::Full({2}, 1)), Error);
  EXPECT_THROW(op(ids.To(device), weight, DType::kI32), Error);
  // A change to the tables, which the backward pass reads again, is an error.
  const Tensor z = op(ids.To(device), weight);
  NoGradGuard no_grad;
  table.Fill(3);
  EXPECT_THROW(Backward(z, Tensor::Full({4, 2}, 1).To(device)), Error);
}

TEST(Embedding, IdOutsideItsTableOnDevice) {
  if (!HasCheckedDevice()) GTEST_SKIP() << "no device";
  const Device device = CheckedDevice();
  Tensor table = Tensor::Full({3, 2}, 1).To(device).SetRequiresGrad(true);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 3, -1, 2});
  const Tensor y = EmbeddingSum({ids.To(device)}, {table});
  const std::vector<float> values = y.ToVector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::isnan(values[i]), i >= 2 && i < 6);
  }
  Backward(y, Tensor::Full({4, 2}, 1).To(device));
  EXPECT_EQ(table.grad().ToVector<float>(), (std::vector<float>{1, 1, 0, 0, 1, 1}));
  EXPECT_THROW(EmbeddingSum({ids}, {table}), Error);
}

TEST(Embedding, IdOutsideItsTable) {
  const Tensor table = Tensor::Zeros({3, 2});
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({0, 3})}, {table}), Error);
  EXPECT_THROW(EmbeddingSum({Tensor::FromVector<int32_t>({-1})}, {table}), Error);
}

}  // namespace
}  // namespace lathe
