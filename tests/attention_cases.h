// Batches for tests of attention, and comparisons of the device's results with the host's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/ops/attention.h"
#include "lathe/tests/check_op.h"

namespace lathe {

inline PackedSequences Packed(const std::vector<int32_t>& cu_seqlens) {
  PackedSequences packed;
  packed.cu_seqlens = Tensor::FromVector(cu_seqlens);
  std::vector<int32_t> samples;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    samples.push_back(static_cast<int32_t>(i));
    packed.max_seqlen = std::max<int64_t>(packed.max_seqlen, cu_seqlens[i + 1] - cu_seqlens[i]);
  }
  packed.sample_ids = Tensor::FromVector(samples);
  return packed;
}

// Returns the same batch on x's device.
inline PackedSequences At(const Tensor& x, PackedSequences packed) {
  if (x.device() == packed.cu_seqlens.device()) return packed;
  packed.num_tokens = packed.cu_seqlens.values<int32_t>().back();
  packed.cu_seqlens = packed.cu_seqlens.To(x.device());
  packed.sample_ids = packed.sample_ids.To(x.device());
  return packed;
}

// Returns why the checked device can't be used; empty if it can.
inline std::string WhyNoDevice() {
  if (CheckedDevice().is_cpu()) return "";
  DeviceBackend* backend = FindDeviceBackend();
  if (backend == nullptr) return "built without CUDA";
  return backend->Count() > 0 ? "" : "no GPU: " + backend->UnavailableReason();
}

// Attention's result and its gradients.
struct Outcome {
  std::vector<double> out, dq, dkv;
};

// Runs attention and its backward pass on `device`. The random numbers are the same for all dtypes,
// rounded to `rounded_to`.
inline Outcome RunOn(Device device, DType dtype, DType rounded_to, int64_t head_dim,
                     const std::vector<int32_t>& cu_seqlens, int64_t surplus,
                     const AttentionOptions& options) {
  const int64_t H = options.num_heads * head_dim, rows = cu_seqlens.back() + surplus;
  const int64_t q_rows = options.first_query_only ? std::ssize(cu_seqlens) - 1 : rows;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n * H));
    for (float& value : values) value = normal(random);
    return Tensor::FromVector(values, {n, H}).To(rounded_to).To(dtype).To(device);
  };
  PackedSequences packed = Packed(cu_seqlens);
  for (int32_t& sample : packed.sample_ids.values<int32_t>()) sample = sample * 7 + 3;
  const Tensor q = draw(q_rows).SetRequiresGrad(true), kv = draw(2 * rows).SetRequiresGrad(true);
  PackedSequences there = At(q, packed);
  AttentionOptions own = options;
  if (!device.is_cpu()) {  // its kernels read both from device memory
    there.num_tokens = -1;
    const auto step = static_cast<int32_t>(std::exchange(own.dropout.key.step, 99));
    own.dropout.device_step = Tensor::FromVector<int32_t>({step}).To(device);
  }
  const Tensor out = PackedAttention(q, kv, there, own);
  Backward(out, draw(q_rows));
  const auto values = [](const Tensor& x) { return x.To(DType::kF64).ToVector<double>(); };
  return {values(out), values(q.grad()), values(kv.grad())};
}

inline void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                       double limit, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 1;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), limit * largest)
        << what << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

inline double MaxDifference(const Tensor& actual, const std::vector<double>& expected) {
  const std::vector<double> values = actual.To(DType::kF64).ToVector<double>();
  EXPECT_EQ(values.size(), expected.size());
  double difference = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    difference = std::max(difference, std::fabs(values[i] - expected[i]));
  }
  return difference;
}

// Expects the checked device's results to be the host's. With dropout, one wrong bit of a mask is
// an error of the size of a probability.
inline void CompareWithHost(int64_t head_dim, const std::vector<int32_t>& cu_seqlens,
                            int64_t surplus, const AttentionOptions& options,
                            const std::vector<DType>& dtypes = {DType::kF32, DType::kBF16,
                                                                DType::kF16}) {
  for (const DType dtype : dtypes) {
    const double limit = dtype == DType::kF32 ? 1e-5 : dtype == DType::kBF16 ? 0.02 : 0.003;
    SCOPED_TRACE(std::string(ToString(dtype)) + ", head_dim " + std::to_string(head_dim) +
                 (options.first_query_only ? ", first queries" : "") +
                 (options.dropout.p > 0 ? ", dropout" : ""));
    const Outcome host = RunOn({}, DType::kF64, dtype, head_dim, cu_seqlens, surplus, options);
    const Outcome device =
        RunOn(CheckedDevice(), dtype, dtype, head_dim, cu_seqlens, surplus, options);
    ExpectNear(device.out, host.out, limit, "out");
    ExpectNear(device.dq, host.dq, limit, "dq");
    ExpectNear(device.dkv, host.dkv, limit, "dkv");
  }
}

inline std::vector<int32_t> WithLengths(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> cu = {0};
  for (const int32_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

inline AttentionOptions Options(int64_t heads, bool first, double p) {
  AttentionOptions options;
  options.num_heads = heads;
  options.first_query_only = first;
  options.dropout.p = p;
  options.dropout.key = {.seed = (uint64_t{5} << 33) + 1, .step = 6, .site = 0xA0000001};
  return options;
}

// All scores are equal, and the values and the output's gradient are the identity. So out[i][j] and
// dV[j][i] are 0 where dropout takes key j from query i, and nowhere else.
struct MaskCase {
  Tensor q, kv;  // q: zeros
  Tensor identity;
};
inline MaskCase MaskCaseOf(const PackedSequences& packed, int64_t heads, int64_t dim) {
  const std::vector<int32_t> cu = packed.cu_seqlens.ToVector<int32_t>();
  const int64_t rows = cu.back(), H = heads * dim;
  std::vector<float> identity(rows * H);
  for (int64_t s = 0; s < packed.size(); ++s) {
    for (int64_t i = 0; i < cu[s + 1] - cu[s]; ++i) {
      for (int64_t h = 0; h < heads; ++h) identity[(cu[s] + i) * H + h * dim + i] = 1;
    }
  }
  std::vector<float> keys_and_values(rows * H, 1);
  keys_and_values.insert(keys_and_values.end(), identity.begin(), identity.end());
  return {Tensor::Zeros({rows, H}), Tensor::FromVector(keys_and_values, {2 * rows, H}),
          Tensor::FromVector(identity, {rows, H})};
}

// Returns which elements of the output and of the values' gradient are kept, row by row.
inline std::vector<bool> Kept(const MaskCase& mask, const PackedSequences& packed,
                              const AttentionOptions& options, DType dtype, Device device) {
  const auto leaf = [&](const Tensor& x) { return x.To(dtype).To(device).SetRequiresGrad(true); };
  const Tensor q = leaf(mask.q), kv = leaf(mask.kv);
  const Tensor out = PackedAttention(q, kv, At(q, packed), options);
  Backward(out, mask.identity.To(dtype).To(device));
  std::vector<bool> kept;
  const int64_t rows = mask.q.dim(0);
  for (const Tensor& x : {out, kv.grad().Slice(rows, 2 * rows)}) {
    for (const float value : x.To(DType::kF32).ToVector<float>()) kept.push_back(value != 0);
  }
  return kept;
}

}  // namespace lathe
