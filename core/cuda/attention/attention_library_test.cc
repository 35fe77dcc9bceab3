// Compares a library's attention on cuda:0 with the host's. The library is cuDNN on a GPU and a
// stand-in on the emulated device. Skipped without a device or a library.
#include "lathe/core/cuda/attention/attention_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "lathe/core/attention_counts.h"
#include "lathe/tests/attention_cases.h"

namespace lathe {
namespace {

const std::vector<DType> kNarrow = {DType::kBF16, DType::kF16};

class LibraryAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoDevice(); !why.empty()) GTEST_SKIP() << why;
    std::string why;
    Tensor::Zeros({1}, DType::kF32, CheckedDevice());  // opens the process's device
    if (cuda::FindAttentionLibrary(&why) == nullptr) GTEST_SKIP() << why;
    setenv("LATHE_ATTENTION", "cudnn", 1);
    before_ = GetAttentionCounts();
  }
  // Expects that the library ran all passes but `own` of them.
  void ExpectServed(int64_t own = 0) {
    const AttentionCounts now = GetAttentionCounts();
    EXPECT_GT(now.library, before_.library) << now.why_not_library;
    EXPECT_EQ(now.own - before_.own, own) << now.why_not_library;
  }
  void TearDown() override { unsetenv("LATHE_ATTENTION"); }

 private:
  AttentionCounts before_;
};

// The library's attention passes the same cases as Lathe's own kernels. The float32 cases run on
// Lathe's kernels.
TEST_F(LibraryAttention, IsAnOpLikeTheOwn) {
  const PackedSequences packed = Packed({0, 3, 4, 9, 81});
  AttentionOptions options;
  options.num_heads = 2;
  CheckOp(
      {.name = "library_attention",
       .op =
           [=](const Tensors& x) { return PackedAttention(x[0], x[1], At(x[0], packed), options); },
       .composed =
           [=](const Tensors& x) { return PackedAttentionComposed(x[0], x[1], packed, options); },
       .shapes = {{{81, 64}, {162, 64}}, {{81, 128}, {162, 128}}},
       .activations = {0, 1}});
  EXPECT_GT(GetAttentionCounts().library, 0);
}

TEST_F(LibraryAttention, HeadDims) {
  for (const int64_t head_dim : {32, 64, 128}) {
    CompareWithHost(head_dim, WithLengths({3, 70, 1}), 2, Options(2, false, 0), kNarrow);
  }
  ExpectServed();
}

// The lengths are a single token, and whole tiles of 64 and 128 with one token more or less. Some
// batches have rows behind the last sequence.
TEST_F(LibraryAttention, Lengths) {
  for (const int32_t length : {1, 2, 63, 64, 65, 127, 128, 129, 192, 193, 320, 448, 511, 512}) {
    SCOPED_TRACE(length);
    CompareWithHost(64, WithLengths({length}), length % 3, Options(1, false, 0), kNarrow);
  }
  ExpectServed();
}

TEST_F(LibraryAttention, EveryLengthUpTo130) {
  std::vector<int32_t> lengths;
  for (int32_t length = 1; length <= 130; ++length) lengths.push_back(length);
  CompareWithHost(32, WithLengths(lengths), 0, Options(1, false, 0), kNarrow);
  CompareWithHost(64, WithLengths(lengths), 5, Options(2, false, 0), {DType::kBF16});
  ExpectServed();
}

// Rows behind the last sequence do no harm. The batches of recorded graphs have up to a sixteenth
// of such rows.
TEST_F(LibraryAttention, ManySurplusRows) {
  CompareWithHost(64, WithLengths({130, 64, 17}), 45, Options(2, false, 0), kNarrow);
  ExpectServed();
}

TEST_F(LibraryAttention, RepeatsItselfBitForBit) {
  for (const DType dtype : kNarrow) {
    const auto run = [&] {
      return RunOn(CheckedDevice(), dtype, dtype, 64, WithLengths({130, 7, 512}), 3,
                   Options(3, false, 0));
    };
    const Outcome a = run(), b = run();
    EXPECT_EQ(a.out, b.out);
    EXPECT_EQ(a.dq, b.dq);
    EXPECT_EQ(a.dkv, b.dkv);
  }
  ExpectServed();
}

// The library may serve either pass alone, because lse means the same to it and to Lathe's kernels.
TEST_F(LibraryAttention, PassesMixWithTheOwn) {
  const std::vector<int32_t> cu = WithLengths({70, 3});
  const auto run = [&](const char* forward, const char* backward) {
    const PackedSequences packed = Packed(cu);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t rows) {
      std::vector<float> values(static_cast<size_t>(rows * 64));
      for (float& value : values) value = normal(random);
      return Tensor::FromVector(values, {rows, 64}).To(DType::kBF16).To(CheckedDevice());
    };
    const Tensor q = draw(75).SetRequiresGrad(true), kv = draw(150).SetRequiresGrad(true);
    setenv("LATHE_ATTENTION", forward, 1);
    const Tensor out = PackedAttention(q, kv, At(q, packed), Options(1, false, 0));
    setenv("LATHE_ATTENTION", backward, 1);
    Backward(out, draw(75));
    return kv.grad().To(DType::kF64).ToVector<double>();
  };
  const std::vector<double> own = run("own", "own");
  ExpectNear(run("own", "cudnn"), own, 0.02, "backward by the library");
  ExpectNear(run("cudnn", "own"), own, 0.02, "forward by the library");
}

// The library's masks differ from step to step and agree between the two passes. They have as many
// zeros as the probability asks for.
TEST_F(LibraryAttention, Dropout) {
  constexpr int64_t kN = 128, kHeads = 2, kH = 128 * kHeads;
  std::vector<float> identity(kN * kH);
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t h = 0; h < kHeads; ++h) identity[static_cast<size_t>(i * kH + h * 128 + i)] = 1;
  }
  std::vector<float> ones_and_identity(kN * kH, 1);
  ones_and_identity.insert(ones_and_identity.end(), identity.begin(), identity.end());
  const PackedSequences packed = Packed({0, kN});
  // All scores are equal, and the values and the gradient are the identity. So out[i][j] and
  // dV[j][i] are 0 exactly if key j is dropped for query i.
  const auto kept = [&](int32_t step) {
    const Tensor q = Tensor::Zeros({kN, kH}, DType::kBF16, CheckedDevice()).SetRequiresGrad(true);
    const Tensor kv = Tensor::FromVector(ones_and_identity, {2 * kN, kH})
                          .To(DType::kBF16)
                          .To(CheckedDevice())
                          .SetRequiresGrad(true);
    AttentionOptions options = Options(kHeads, false, 0.25);
    options.dropout.device_step = Tensor::FromVector<int32_t>({step}).To(CheckedDevice());
    const Tensor out = PackedAttention(q, kv, At(q, packed), options);
    Backward(out, Tensor::FromVector(identity, {kN, kH}).To(DType::kBF16).To(CheckedDevice()));
    const auto o = out.To(DType::kF32).ToVector<float>();
    const auto dv = kv.grad().Slice(kN, 2 * kN).To(DType::kF32).ToVector<float>();
    std::vector<bool> mask;
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kN; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          const float forward = o[static_cast<size_t>(i * kH + h * 128 + j)];
          EXPECT_EQ(forward != 0, dv[static_cast<size_t>(j * kH + h * 128 + i)] != 0);
          EXPECT_TRUE(forward == 0 || std::fabs(forward - 1 / 0.75 / kN) < 1e-4) << forward;
          mask.push_back(forward != 0);
        }
      }
    }
    return mask;
  };
  const std::vector<bool> first = kept(1);
  EXPECT_EQ(kept(1), first);
  const std::vector<bool> second = kept(2);
  const auto share = [](const std::vector<bool>& mask) {
    return static_cast<double>(std::count(mask.begin(), mask.end(), true)) /
           static_cast<double>(mask.size());
  };
  EXPECT_NEAR(share(first), 0.75, 0.02);
  EXPECT_NEAR(share(second), 0.75, 0.02);
  double same = 0;
  for (size_t i = 0; i < first.size(); ++i) same += first[i] == second[i];
  EXPECT_NEAR(same / static_cast<double>(first.size()), 0.75 * 0.75 + 0.25 * 0.25, 0.02);
  ExpectServed();
}

// Lathe's own kernels serve the calls that the library can't serve.
TEST_F(LibraryAttention, LeavesTheRest) {
  CompareWithHost(64, WithLengths({3, 70, 1}), 2, Options(2, true, 0), kNarrow);
  EXPECT_EQ(GetAttentionCounts().why_not_library,
            "only Lathe's own kernels compute one query per sequence");
  CompareWithHost(20, WithLengths({3, 70, 1}), 2, Options(2, false, 0), kNarrow);
  EXPECT_EQ(GetAttentionCounts().why_not_library,
            "heads have 20 columns, which is not a multiple of 8");
  CompareWithHost(64, WithLengths({3}), 0, Options(2, false, 0), {DType::kF32});
  EXPECT_EQ(GetAttentionCounts().why_not_library, "only Lathe's own kernels compute float32");
}

}  // namespace
}  // namespace lathe
