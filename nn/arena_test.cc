#include "lathe/nn/arena.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/module.h"
#include "lathe/nn/network_testing.h"

namespace lathe {
namespace {

using Floats = std::vector<float>;

TEST(Arena, ParametersAreViewsInReverseOrder) {
  Network network;
  const std::vector<Parameter> parameters = network.Parameters();
  const auto arena = ParameterArena::FindOrCreate(parameters);
  ASSERT_EQ(arena->entries().size(), 4u);
  EXPECT_EQ(arena->entries()[0].parameter.name, "second.bias");
  EXPECT_EQ(arena->entries()[3].parameter.name, "first.weight");
  EXPECT_EQ(arena->values().numel(), 4 * 16);  // each padded to a cache line
  for (const ParameterArena::Entry& entry : arena->entries()) {
    EXPECT_EQ(entry.offset % 16, 0);
    EXPECT_EQ(entry.parameter.tensor.raw_data(), arena->values().data<float>() + entry.offset);
  }
  Tensor(network.first->weight).Fill(3);
  EXPECT_EQ(arena->values().data<float>()[arena->entries()[3].offset + 14], 3);
  EXPECT_EQ(arena->values().data<float>()[arena->entries()[3].offset + 15], 0);  // the gap
}

TEST(Arena, KeepsValuesAndGradientsOfAllocatedParameters) {
  Network network;
  network.Initialize(7);
  const Floats before = network.second->weight.ToVector<float>();
  const auto part = ParameterArena::FindOrCreate(network.second->Parameters());
  EXPECT_EQ(network.second->weight.ToVector<float>(), before);
  network.second->bias.SetGrad(Tensor::Full({2}, 4));
  EXPECT_EQ(part->grads().data<float>()[part->entries()[0].offset], 4);
  part->ZeroGrads();
  EXPECT_FALSE(network.second->bias.grad().defined());
  EXPECT_EQ(network.second->bias.MaterializeGrad().ToVector<float>(), (Floats{0, 0}));
}

// Zeroing only marks gradients as stale. Code that needs them or adds to them finds zeros all the
// same.
TEST(Arena, ZeroedGradientsAreZeroForEverybody) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const auto pass = [&](nn::Linear& layer) { Backward(Sum(layer.Forward(x))); };
  nn::Linear layer(3, 2, Init::Normal(0.02));
  layer.Initialize(7);
  const auto arena = ParameterArena::FindOrCreate(layer.Parameters());
  arena->grads();
  const Floats once = {5, 7, 9, 5, 7, 9}, twice = {10, 14, 18, 10, 14, 18};
  pass(layer);
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), once);
  pass(layer);
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), twice);
  arena->ZeroGrads();
  pass(layer);  // overwrites
  EXPECT_EQ(layer.weight.grad().ToVector<float>(), once);
  EXPECT_EQ(layer.bias.grad().ToVector<float>(), (Floats{2, 2}));
  arena->ZeroGrads();
  EXPECT_EQ(layer.weight.MaterializeGrad().ToVector<float>(), Floats(6, 0));
  arena->ZeroGrads();
  for (const float g : arena->grads().ToVector<float>()) EXPECT_EQ(g, 0);
  arena->ZeroGrads();
  Backward(Sum(Mul(layer.bias, layer.bias)));  // an op that doesn't know stale buffers
  EXPECT_EQ(layer.bias.grad().data<float>()[0], 2 * layer.bias.data<float>()[0]);
}

TEST(Arena, RowsWithoutGradientAreKnown) {
  nn::Embedding table(10, 2, 0.02);
  table.Initialize(7);
  const auto arena = ParameterArena::FindOrCreate(table.Parameters());
  const auto rows = [&] { return table.weight.impl()->gradient().rows; };
  const auto pass = [&](const std::vector<int32_t>& ids) {
    Backward(Sum(EmbeddingSum({Tensor::FromVector(ids)}, {table.weight})));
  };
  const auto grad_of = [&] { return table.weight.grad().ToVector<float>(); };
  arena->GradsToRead();
  EXPECT_EQ(rows(), std::vector<int32_t>{});
  pass({1, 4});
  EXPECT_EQ(rows(), (std::vector<int32_t>{1, 4}));
  arena->grads();  // the caller may write anywhere
  EXPECT_EQ(rows(), std::nullopt);
  pass({1, 4});
  EXPECT_EQ(rows(), std::nullopt);
  arena->ZeroGrads();
  pass({7, 4, 7});
  EXPECT_EQ(rows(), (std::vector<int32_t>{4, 7}));
  Floats expected(20, 0);
  expected[8] = expected[9] = 1;
  expected[14] = expected[15] = 2;
  EXPECT_EQ(grad_of(), expected);
  pass({0});
  EXPECT_EQ(rows(), (std::vector<int32_t>{0, 4, 7}));
  arena->ZeroGrads();
  arena->GradsToRead();
  EXPECT_EQ(rows(), std::vector<int32_t>{});
  EXPECT_EQ(grad_of(), Floats(20, 0));
  pass({3});
  arena->ZeroGrads();
  pass({9});
  EXPECT_EQ(rows(), std::vector<int32_t>{9});
  EXPECT_EQ(table.weight.grad().data<float>()[18], 1);
  EXPECT_EQ(rows(), std::vector<int32_t>{9});  // reading changes nothing
  EXPECT_EQ(table.weight.MaterializeGrad().data<float>()[18], 1);
  EXPECT_EQ(rows(), std::nullopt);  // the caller may write anywhere
  pass({9});
  EXPECT_EQ(table.weight.grad().data<float>()[18], 2);
}

TEST(Arena, TwiceSharesTheBuffers) {
  Network network;
  network.Initialize(7);
  const auto a = ParameterArena::FindOrCreate(network.Parameters());
  a->grads();
  const auto b = ParameterArena::FindOrCreate(network.Parameters());
  EXPECT_EQ(a->values().raw_data(), b->values().raw_data());
  EXPECT_EQ(a->grads().raw_data(), b->grads().raw_data());
  EXPECT_EQ(network.first->bias.grad().raw_data(),
            a->grads().data<float>() + a->entries()[2].offset);
  EXPECT_NE(ParameterArena::FindOrCreate(network.first->Parameters())->values().raw_data(),
            a->values().raw_data());
}

TEST(Arena, Errors) {
  EXPECT_THROW(ParameterArena::FindOrCreate({}), Error);
  const Parameter parameter{"x", Tensor::Zeros({2}, DType::kF64), Init::Zeros()};
  EXPECT_THROW(ParameterArena::FindOrCreate({parameter}), Error);
}

}  // namespace
}  // namespace lathe
