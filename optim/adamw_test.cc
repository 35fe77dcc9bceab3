#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/ops/cast.h"
#include "lathe/core/ops/elementwise.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/reduce.h"
#include "lathe/nn/layers.h"
#include "lathe/optim/optimizer.h"
#include "lathe/optim/optimizer_testing.h"

namespace lathe {
namespace {

// Threads divide parameters of all sizes among them. Each is updated as if it were alone.
TEST(AdamW, ManyParametersAreAsEachAlone) {
  const std::vector<int64_t> sizes = {5, 40'000, 1, 33'000, 16'384, 16'385, 700};
  const auto values = [](size_t which, int64_t n, float step) {
    std::vector<float> v;
    for (int64_t i = 0; i < n; ++i)
      v.push_back(std::sin(step * static_cast<float>(i) + static_cast<float>(which)));
    return v;
  };
  const auto two_steps = [&](const std::vector<size_t>& which) {
    std::vector<Parameter> parameters;
    for (const size_t i : which)
      parameters.push_back(
          MakeParameter("p" + std::to_string(i), values(i, sizes[i], 1), {sizes[i]}));
    AdamW optimizer(parameters, {.lr = 0.1});
    for (const float step : {0.3f, 0.7f}) {
      optimizer.arena().grads();
      for (size_t i = 0; i < which.size(); ++i)
        SetGrad(parameters[i], values(which[i], sizes[which[i]], step));
      optimizer.Step();
    }
    std::vector<std::vector<float>> results;
    for (const Parameter& p : parameters) results.push_back(p.tensor.ToVector<float>());
    return results;
  };
  std::vector<std::vector<float>> alone;
  std::vector<size_t> all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    alone.push_back(two_steps({i})[0]);
    all.push_back(i);
  }
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 3, 7}) {
    omp_set_num_threads(count);
    EXPECT_EQ(two_steps(all), alone) << count << " threads";
  }
  omp_set_num_threads(threads);
}

// A step writes a parameter's bfloat16 copy together with its values, so products
// need not convert them.
TEST(AdamW, WritesTheLowPrecisionCopy) {
  const Parameter with = MakeParameter("with", {1, -2, 3.3f}, {3});
  const Parameter without = MakeParameter("without", {5, 6}, {2});
  const Parameter frozen = MakeParameter("frozen", {7, 8}, {2});
  AdamW optimizer({with, without, frozen}, {.lr = 0.1});
  Tensor(frozen.tensor).SetRequiresGrad(false);
  const Tensor copy = LowPrecisionCopy(with.tensor, DType::kBF16);
  LowPrecisionCopy(frozen.tensor, DType::kBF16);
  optimizer.arena().grads();
  SetGrad(with, {1, 2, -3});
  optimizer.Step();
  const std::vector<float> rounded = with.tensor.To(DType::kBF16).To(DType::kF32).ToVector<float>();
  EXPECT_EQ(copy.To(DType::kF32).ToVector<float>(), rounded);
  EXPECT_NE(rounded[0], 1);
  EXPECT_EQ(with.tensor.impl()->low_precision_version, with.tensor.impl()->storage->version());
  EXPECT_EQ(frozen.tensor.impl()->low_precision_version, frozen.tensor.impl()->storage->version());
  // A copy that is made after the step is right, too.
  EXPECT_EQ(LowPrecisionCopy(without.tensor, DType::kBF16).To(DType::kF32).ToVector<float>(),
            without.tensor.To(DType::kBF16).To(DType::kF32).ToVector<float>());
}

// AdamW passes over parts of a parameter that never had a gradient. The result is still that of the
// plain rule, whenever a part gets its first gradient, even if decay starts later.
TEST(AdamW, PassesOverWhatNeverHadAGradient) {
  constexpr int64_t kSize = 1000;  // several blocks, the last one not whole
  std::vector<float> start(kSize);
  for (int64_t i = 0; i < kSize; ++i) start[i] = std::sin(static_cast<float>(i));
  const Parameter p = MakeParameter("p", start, {kSize});
  const double decay = 0.1, eps = 1e-8;
  AdamW optimizer({p}, {.lr = 0, .weight_decay = decay});
  std::vector<double> values(start.begin(), start.end()), m(kSize), v(kSize);
  for (int step = 1; step <= 6; ++step) {
    const double lr = step <= 3 ? 0 : 0.01;  // nothing decays at rate 0
    optimizer.SetLr(0, lr);
    optimizer.arena().grads();
    std::vector<float> g(kSize);
    if (step != 2) g[step * 150] = 0.5f;
    SetGrad(p, g);
    optimizer.Step();
    for (int64_t i = 0; i < kSize; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      values[i] -= lr * decay * values[i];
      values[i] -= lr / (1 - std::pow(0.9, step)) * m[i] /
                   (std::sqrt(v[i] / (1 - std::pow(0.999, step))) + eps);
    }
  }
  for (int64_t i = 0; i < kSize; ++i) EXPECT_NEAR(p.tensor.data<float>()[i], values[i], 1e-6) << i;
}

// The norm, clipping and AdamW pass over rows that are known to have no gradient. Without this
// knowledge the same steps give the same result.
TEST(AdamW, KnownRowsChangeNothing) {
  const auto train = [](bool known) {
    nn::Embedding table(200, 24, 0.02);  // rows don't end where blocks do
    table.Initialize(7);
    AdamW optimizer(table.Parameters(), {.lr = 0.01, .weight_decay = 0});
    std::vector<float> norms;
    for (int32_t step = 0; step < 6; ++step) {
      optimizer.ZeroGrad();
      const Tensor ids = Tensor::FromVector<int32_t>({step * 31, 5, 199, step * 31});
      const Tensor y = EmbeddingSum({ids}, {table.weight});
      Backward(Sum(Mul(y, y)));
      if (!known) table.weight.MaterializeGrad();
      EXPECT_EQ(table.weight.impl()->gradient().rows.has_value(), known);
      norms.push_back(ClipGradNorm(optimizer, 0.01).data<float>()[0]);
      optimizer.Step();
    }
    auto end = table.weight.ToVector<float>();
    end.insert(end.end(), norms.begin(), norms.end());
    return end;
  };
  const std::vector<float> plain = train(false), with_rows = train(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_FLOAT_EQ(plain[i], with_rows[i]) << i;
}

void Reload(Optimizer& optimizer) {
  StateDict state;
  CopyState(optimizer.StateDict(), state);
  optimizer.LoadStateDict(state);
}

// A scalar has no rows and an empty parameter no elements, whatever is known of gradients' rows.
TEST(AdamW, ScalarsAndEmptyParameters) {
  const auto train = [](const Shape& shape, double lr, double weight_decay, int unused) {
    const Parameter w = MakeParameter("w", {1, 2, 3, 4}, {4});
    Parameter p = {.name = "p", .tensor = Tensor::Full(shape, 0.5).SetRequiresGrad(true)};
    AdamW optimizer({w, p}, {.lr = lr, .weight_decay = weight_decay});
    for (int step = 0; step < 4; ++step) {
      Tensor loss = Sum(Mul(w.tensor, w.tensor));
      if (step % 2 != unused) loss = Add(loss, Sum(Mul(p.tensor, p.tensor)));
      Backward(loss);
      ClipGradNorm(optimizer, 1);
      optimizer.Step();
      optimizer.ZeroGrad();
      if (step == 1) Reload(optimizer);
    }
    std::vector<float> values = w.tensor.ToVector<float>();
    const std::vector<float> more = p.tensor.ToVector<float>();
    values.insert(values.end(), more.begin(), more.end());
    return values;
  };
  for (const double lr : {0.0, 0.1}) {
    for (const double decay : {0.0, 0.1}) {
      for (const int unused : {0, 1}) {
        SCOPED_TRACE(std::to_string(lr) + " " + std::to_string(decay));
        const std::vector<float> vector = train({1}, lr, decay, unused);
        EXPECT_EQ(train({}, lr, decay, unused), vector);
        const std::vector<float> empty = train({0, 3}, lr, decay, unused);
        EXPECT_EQ(empty.size(), 4);
        EXPECT_EQ(train({0}, lr, decay, unused), empty);
        EXPECT_EQ(vector[4] == 0.5f, lr == 0);
      }
    }
  }
}

TEST(AdamW, AnEmptyTable) {
  const Parameter w = MakeParameter("w", {1, 2, 3, 4}, {4});
  const Parameter table = {.name = "table",
                           .tensor = Tensor::Zeros({0, 8}).SetRequiresGrad(true),
                           .init = {},
                           .decays = true,
                           .is_table = true};
  AdamW optimizer({w, table}, {.lr = 0.1, .weight_decay = 0});
  for (int step = 0; step < 3; ++step) {
    Backward(Sum(w.tensor));
    optimizer.Step();
    optimizer.ZeroGrad();
    Reload(optimizer);
  }
  EXPECT_EQ(optimizer.step_count(), 3);
}

}  // namespace
}  // namespace lathe
