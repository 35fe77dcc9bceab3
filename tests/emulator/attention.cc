#include "lathe/tests/emulator/attention.h"

#include <absl/status/status.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "lathe/core/base/error.h"
#include "lathe/tests/emulator/emulator.h"

namespace lathe::emulator {
namespace {

using cuda::AttentionOperands;
using cuda::AttentionProblem;

template <typename T>
class Pass {
 public:
  Pass(const AttentionProblem& problem, const AttentionOperands& o)
      : p_(problem), o_(o), width_(p_.heads * p_.head_dim) {}

  void Run() {
    if (p_.threshold > 0) TheStandInAttention().seeds.push_back(*o_.seed);
    for (int64_t b = 0; b < p_.batch; ++b) {
      Expect(o_.row_offsets[b + 1] >= o_.row_offsets[b] && o_.row_offsets[b] % width_ == 0 &&
                 o_.lse_offsets[b] == o_.row_offsets[b] / p_.head_dim,
             "offsets that don't fit");
      Expect(o_.lengths[b] >= 0 && o_.lengths[b] <= p_.max_seqlen, "a length out of range");
      Expect(o_.row_offsets[b] + o_.lengths[b] * width_ <= o_.row_offsets[p_.batch],
             "a sequence behind the end");
      for (int64_t h = 0; h < p_.heads; ++h) Sequence(b, h, o_.lengths[b]);
    }
    Spoil();
  }

 private:
  static void Expect(bool ok, const char* what) {
    if (!ok) throw Error(absl::StatusCode::kInternal, std::string("[stand-in attention] ") + what);
  }
  int64_t At(int64_t b, int64_t h, int64_t row, int64_t column) const {
    return o_.row_offsets[b] + row * width_ + h * p_.head_dim + column;
  }
  static double Get(const void* from, int64_t at) {
    return static_cast<float>(static_cast<const T*>(from)[at]);
  }
  static void Put(void* to, int64_t at, double value) {
    static_cast<T*>(to)[at] = T(static_cast<float>(value));
  }
  // Returns the dot product of row i of x and row j of y.
  double Dot(const void* x, int64_t i, const void* y, int64_t j, int64_t b, int64_t h) const {
    double sum = 0;
    for (int64_t c = 0; c < p_.head_dim; ++c) {
      sum += Get(x, At(b, h, i, c)) * Get(y, At(b, h, j, c));
    }
    return sum;
  }

  void Sequence(int64_t b, int64_t h, int64_t n) {
    const int64_t d = p_.head_dim;
    const double scale = o_.scale;
    const double keep = 1 - p_.threshold * 0x1p-32;
    std::seed_seq seeds = {p_.threshold > 0 ? *o_.seed : 0, b, h};
    std::mt19937 random(seeds);
    std::vector<double> dk(static_cast<size_t>(n * d)), dv(dk.size());
    for (int64_t i = 0; i < n; ++i) {
      std::vector<double> p(static_cast<size_t>(n)), m(p.size(), 1), out(static_cast<size_t>(d)),
          dq(out.size());
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        p[j] = Dot(o_.q, i, o_.k, j, b, h) * scale;
        largest = std::fmax(largest, p[j]);
        if (p_.threshold > 0) m[j] = random() < p_.threshold ? 0 : 1 / keep;
      }
      for (const double x : p) sum += std::exp(x - largest);
      float& lse = o_.lse[o_.lse_offsets[b] + i * p_.heads + h];
      if (!p_.backward) lse = static_cast<float>(largest + std::log(sum));
      for (double& x : p) x = std::exp(x - lse);
      if (!p_.backward) {
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t c = 0; c < d; ++c) out[c] += m[j] * p[j] * Get(o_.v, At(b, h, j, c));
        }
        for (int64_t c = 0; c < d; ++c) Put(o_.out, At(b, h, i, c), out[c]);
        continue;
      }
      const double dots = Dot(o_.dout, i, o_.out, i, b, h);
      for (int64_t j = 0; j < n; ++j) {
        const double ds = p[j] * (m[j] * Dot(o_.dout, i, o_.v, j, b, h) - dots) * scale;
        for (int64_t c = 0; c < d; ++c) {
          dv[j * d + c] += m[j] * p[j] * Get(o_.dout, At(b, h, i, c));
          dk[j * d + c] += ds * Get(o_.q, At(b, h, i, c));
          dq[c] += ds * Get(o_.k, At(b, h, j, c));
        }
      }
      for (int64_t c = 0; c < d; ++c) Put(o_.dq, At(b, h, i, c), dq[c]);
    }
    for (int64_t i = 0; i < n * d && p_.backward; ++i) {
      Put(o_.dk, At(b, h, i / d, i % d), dk[i]);
      Put(o_.dv, At(b, h, i / d, i % d), dv[i]);
    }
  }

  // Overwrites rows behind the last sequence, as a library that works in tiles may.
  void Spoil() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const int64_t rows = TheStandInAttention().spoiled_rows, end = o_.row_offsets[p_.batch];
    for (int64_t i = 0; i < rows * p_.heads && p_.backward; ++i) {
      const float lse = o_.lse[o_.lse_offsets[p_.batch] + i];
      Expect(lse == 0, "lse behind the last sequence is not 0");
    }
    for (int64_t i = 0; i < rows * width_; ++i) {
      if (!p_.backward) Put(o_.out, end + i, nan);
      for (void* to : {o_.dq, o_.dk, o_.dv}) {
        if (p_.backward) Put(to, end + i, nan);
      }
    }
  }

  const AttentionProblem& p_;
  const AttentionOperands& o_;
  const int64_t width_;
};

class Plan : public cuda::AttentionPlan {
 public:
  explicit Plan(const AttentionProblem& problem) : problem_(problem) {}
  int64_t workspace_bytes() const override { return TheStandInAttention().workspace_bytes; }
  void Run(const AttentionOperands& operands) override {
    if (TheStandInAttention().fails) {
      throw Error(absl::StatusCode::kInternal, "[stand-in attention] it fails");
    }
    DoOrRecord([problem = problem_, operands, bytes = workspace_bytes()] {
      const DeviceAccess access;
      StandInAttention& stand_in = TheStandInAttention();
      ++stand_in.runs;
      PassMicroseconds(stand_in.microseconds);
      std::memset(operands.workspace, 0xff, static_cast<size_t>(bytes));
      if (problem.dtype == DType::kBF16) {
        Pass<BFloat16>(problem, operands).Run();
      } else {
        Pass<Float16>(problem, operands).Run();
      }
    });
  }

 private:
  const AttentionProblem problem_;
};

class Library : public cuda::AttentionLibrary {
 public:
  std::string Name() const override { return "stand-in 1.0"; }
  std::unique_ptr<cuda::AttentionPlan> Build(const AttentionProblem& problem,
                                             std::string* why) override {
    StandInAttention& stand_in = TheStandInAttention();
    if (IsRecording()) {
      throw Error(absl::StatusCode::kInternal, "[stand-in attention] built while work is recorded");
    }
    stand_in.built.push_back(problem);
    if (problem.head_dim <= stand_in.largest_head_dim) return std::make_unique<Plan>(problem);
    *why = "stand-in 1.0: heads of " + std::to_string(problem.head_dim) + " columns";
    return nullptr;
  }
};

}  // namespace

StandInAttention& TheStandInAttention() {
  static auto* stand_in = new StandInAttention;
  return *stand_in;
}

}  // namespace lathe::emulator

namespace lathe::cuda {

AttentionLibrary* FindAttentionLibrary(std::string* why) {
  static auto* library = new emulator::Library;
  *why = emulator::TheStandInAttention().missing;
  return why->empty() ? library : nullptr;
}

}  // namespace lathe::cuda
