// Measures the kernels of a BERT's training step on a GPU. Products are reported in FLOP/s. Other
// kernels are reported in bytes that must be moved a second, also as a share of a copy's rate in
// this run.
//
//   device_kernels [--device cuda] [--tokens 4096] [--hidden 768] [--copy_mib 512]
//                  [--parameters 110000000] [--milliseconds 100]
//
// Attention is measured with Lathe's own kernels and, where they serve, with cuDNN's
// (LATHE_ATTENTION=cudnn), with and without dropout. Each kernel is queued again and again for
// about --milliseconds. The best of three times counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lathe/core/attention_counts.h"
#include "lathe/core/autograd.h"
#include "lathe/core/base/error.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/core/ops/attention.h"
#include "lathe/core/ops/embedding.h"
#include "lathe/core/ops/layer_norm.h"
#include "lathe/core/ops/linear.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

struct Options {
  std::string device = "cuda";
  int64_t tokens = 4096, hidden = 768, copy_mib = 512, parameters = 110'000'000, milliseconds = 100;
};

Options Parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, int64_t*> numbers[] = {{"--tokens", &o.tokens},
                                                      {"--hidden", &o.hidden},
                                                      {"--copy_mib", &o.copy_mib},
                                                      {"--parameters", &o.parameters},
                                                      {"--milliseconds", &o.milliseconds}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const auto number = std::find_if(std::begin(numbers), std::end(numbers),
                                     [&](const auto& n) { return n.first == name; });
    if (number == std::end(numbers) && name != "--device") {
      throw InvalidArgument("unknown argument " + name);
    }
    if (i + 1 == argc) throw InvalidArgument(name + " needs a value");
    if (name == "--device") {
      o.device = argv[i + 1];
    } else {
      *number->second = std::atoll(argv[i + 1]);
    }
  }
  constexpr int64_t kHeadDim = 64;
  if (o.tokens < kHeadDim || o.copy_mib < 1 || o.parameters < 1 || o.milliseconds < 0) {
    throw InvalidArgument("--tokens must be at least 64, --copy_mib and --parameters above 0");
  }
  if (o.hidden < kHeadDim || o.hidden % kHeadDim != 0) {
    throw InvalidArgument("--hidden must be a multiple of 64");
  }
  return o;
}

class Bench {
 public:
  Bench(const Options& options, Device device)
      : options_(options), device_(device), backend_(BackendOf(device)) {}

  void Run() {
    Copy();
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Gelu(dtype);
      Norm(dtype);
      Attention(dtype);
    }
    Embedding();
    Optimizer();
    Products<float>();
    Products<BFloat16>();
    Products<Float16>();
  }

 private:
  // Returns the seconds that one `body` takes, including the work that it queues.
  double Time(const std::function<void()>& body) {
    using Clock = std::chrono::steady_clock;
    const auto run = [&](int64_t n) {
      backend_.Synchronize();
      const Clock::time_point start = Clock::now();
      for (int64_t i = 0; i < n; ++i) body();
      backend_.Synchronize();
      return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(n);
    };
    run(1);
    const double target = 1e-3 * static_cast<double>(options_.milliseconds);
    int64_t n = 1;
    for (double once = run(1); once * static_cast<double>(n) < target && n < 1 << 16;) {
      n *= 2;
      if (n >= 16) once = run(n / 4);  // short bodies need many runs to be timed
    }
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) best = std::min(best, run(n));
    return best;
  }

  void ReportBytes(const std::string& name, double bytes, const std::function<void()>& body) {
    const double seconds = Time(body), rate = bytes / seconds;
    if (copy_ == 0) copy_ = rate;
    std::printf("%-62s %10.1f us %9.1f GB/s %6.1f %% of a copy\n", name.c_str(), seconds * 1e6,
                rate * 1e-9, 100 * rate / copy_);
  }
  void ReportOperations(const std::string& name, double operations,
                        const std::function<void()>& body) {
    const double seconds = Time(body);
    std::printf("%-62s %10.1f us %9.3f TFLOP/s\n", name.c_str(), seconds * 1e6,
                operations / seconds * 1e-12);
  }

  // Returns numbers that are spread, because a GPU's clock depends on them.
  Tensor Spread(const Shape& shape, DType dtype) const {
    std::vector<float> values(static_cast<size_t>(NumElements(shape)));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(static_cast<uint32_t>(i * 2654435761u) >> 8) * 0x1p-24f - 0.5f;
    }
    return Tensor::FromVector(values, shape).To(dtype).To(device_);
  }
  Tensor Leaf(const Shape& shape, DType dtype) const {
    Tensor leaf = Spread(shape, dtype);
    leaf.SetRequiresGrad(true);
    return leaf;
  }
  static std::string Of(DType dtype, const std::string& name) {
    return std::string(dtype == DType::kF32    ? "f32  "
                       : dtype == DType::kBF16 ? "bf16 "
                                               : "f16  ") +
           name;
  }

  // Reports the forward pass, and both passes over `leaves`.
  void ReportPasses(const std::string& name, double forward, double both,
                    const std::function<Tensor()>& op, const Tensor& dy, std::vector<Tensor> leaves,
                    bool operations) {
    const auto report = [&](const std::string& what, double amount,
                            const std::function<void()>& body) {
      operations ? ReportOperations(what, amount, body) : ReportBytes(what, amount, body);
    };
    report(name + ", forward", forward, [&] {
      const NoGradGuard no_grad;
      op();
    });
    report(name + ", both passes", both, [&] {
      Backward(op(), dy);
      for (Tensor& leaf : leaves) leaf.SetGrad({});
    });
  }

  void Copy() {
    const Shape shape = {options_.copy_mib << 18};
    const Tensor from = Tensor::Full(shape, 0.5, DType::kF32, device_);
    const Tensor to = Tensor::Full(shape, 0, DType::kF32, device_);
    ReportBytes("copy of " + std::to_string(options_.copy_mib) + " MiB",
                2.0 * static_cast<double>(from.bytes()),
                [&] { backend_.CopyOnDevice(to.raw_data(), from.raw_data(), from.bytes()); });
  }

  void Gelu(DType dtype) {
    const Shape shape = {options_.tokens, 4 * options_.hidden};
    const Tensor x = Leaf(shape, dtype), dy = Spread(shape, dtype);
    const double bytes = static_cast<double>(x.bytes());
    ReportPasses(
        Of(dtype, "GELU"), 2 * bytes, 5 * bytes,
        [&] { return Activation(x, ActivationKind::kGelu); }, dy, {x}, false);
  }

  void Norm(DType dtype) {
    const Shape shape = {options_.tokens, options_.hidden};
    const Tensor x = Leaf(shape, dtype), residual = Leaf(shape, dtype), dy = Spread(shape, dtype);
    const Tensor weight = Leaf({options_.hidden}, DType::kF32),
                 bias = Leaf({options_.hidden}, DType::kF32);
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < options_.tokens; ++i) rows.push_back(static_cast<int32_t>(i));
    const Tensor places = Tensor::FromVector(rows).To(device_);
    for (const double p : {0.0, 0.1}) {
      const DropoutSpec dropout = {
          .p = p, .key = {.seed = 1}, .row_samples = places, .row_positions = places};
      // Each pass reads two tensors and writes two. Without dropout the backward pass writes one.
      const double bytes = static_cast<double>(x.bytes());
      ReportPasses(
          Of(dtype, p > 0 ? "dropout, sum, layer norm" : "sum, layer norm"), 4 * bytes,
          (p > 0 ? 8 : 7) * bytes,
          [&] { return DropoutAddLayerNorm(x, residual, weight, bias, 1e-12, dropout); }, dy,
          {x, residual, weight, bias}, false);
    }
  }

  void Attention(DType dtype) {
    for (const int64_t length : {int64_t{128}, int64_t{512}}) {
      for (const double dropout : {0.1, 0.0}) {
        Attention(dtype, length, dropout, "own");
        if (dtype != DType::kF32) Attention(dtype, length, dropout, "cudnn");
      }
    }
  }

  // `kernels` is a value of LATHE_ATTENTION.
  void Attention(DType dtype, int64_t length, double dropout, const char* kernels) {
    const int64_t H = options_.hidden, batch = std::max<int64_t>(options_.tokens / length, 1);
    const int64_t each = std::min(length, options_.tokens), T = batch * each;
    std::vector<int32_t> cu, samples;
    for (int64_t b = 0; b <= batch; ++b) cu.push_back(static_cast<int32_t>(b * each));
    for (int64_t b = 0; b < batch; ++b) samples.push_back(static_cast<int32_t>(b));
    const PackedSequences packed = {.cu_seqlens = Tensor::FromVector(cu).To(device_),
                                    .sample_ids = Tensor::FromVector(samples).To(device_),
                                    .max_seqlen = each,
                                    .num_tokens = T};
    AttentionOptions attention;
    attention.num_heads = H / 64;
    attention.dropout = {.p = dropout, .key = {.seed = 1}};
    const Tensor q = Leaf({T, H}, dtype), kv = Leaf({2 * T, H}, dtype), dy = Spread({T, H}, dtype);
    const double product = 2.0 * static_cast<double>(T * each * H);
    const bool own = kernels == std::string_view("own");
    const std::string name = Of(dtype, own ? "attention" : "attention of cuDNN") +
                             (dropout > 0 ? ", " : " without dropout, ") + std::to_string(each) +
                             " tokens";
    setenv("LATHE_ATTENTION", kernels, 1);
    try {
      if (!own) {
        const int64_t before = GetAttentionCounts().own;
        Backward(PackedAttention(q, kv, packed, attention), dy);
        for (Tensor leaf : {q, kv}) leaf.SetGrad({});
        if (GetAttentionCounts().own > before) throw NotFound(GetAttentionCounts().why_not_library);
      }
      ReportPasses(
          name, 2 * product, 7 * product, [&] { return PackedAttention(q, kv, packed, attention); },
          dy, {q, kv}, true);
    } catch (const Error& e) {
      if (own) throw;
      std::printf("%-62s not measured: %s\n", name.c_str(), e.message().c_str());
    }
    unsetenv("LATHE_ATTENTION");
  }

  void Embedding() {
    constexpr int64_t kWords = 30522;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < options_.tokens; ++i) {
      ids.push_back(static_cast<int32_t>(i * 7919 % kWords));
    }
    const Tensor table = Spread({kWords, options_.hidden}, DType::kF32);
    const Tensor words = Tensor::FromVector(ids).To(device_);
    const NoGradGuard no_grad;
    ReportBytes("f32  embedding, forward",
                2.0 * static_cast<double>(options_.tokens * options_.hidden * 4),
                [&] { EmbeddingSum({words}, {table}); });
  }

  void Optimizer() {
    Tensor p = Tensor::Full({options_.parameters}, 0.5, DType::kF32, device_);
    p.SetRequiresGrad(true);
    AdamW optimizer({Parameter{.name = "p", .tensor = p}}, {.lr = 1e-9});
    p.SetGrad(Tensor::Full({options_.parameters}, 1e-3, DType::kF32, device_));
    const double bytes = 4.0 * static_cast<double>(options_.parameters);
    ReportBytes("f32  AdamW", 7 * bytes, [&] { optimizer.Step(); });
    ReportBytes("f32  norm of gradients", bytes, [&] { GradNorm(optimizer); });
  }

  template <typename T>
  void Products() {
    const DType dtype = DTypeOf<T>::value;
    const int64_t n = options_.tokens, H = options_.hidden;
    for (const auto& [in, out] : {std::pair(H, H), std::pair(H, 4 * H), std::pair(4 * H, H)}) {
      const Tensor x = Spread({n, in}, dtype), w = Spread({out, in}, dtype),
                   y = Spread({n, out}, dtype), result = Spread({n, out}, dtype),
                   dx = Spread({n, in}, dtype), dw = Spread({out, in}, DType::kF32);
      const std::string shape = " " + std::to_string(in) + " to " + std::to_string(out);
      const double operations = 2.0 * static_cast<double>(n * in * out);
      const auto report = [&](const std::string& name, const std::function<void()>& body) {
        ReportOperations(Of(dtype, name + shape), operations, body);
      };
      report("product", [&, in = in, out = out] {
        Gemm(device_, {.b = true}, n, out, in, x.data<T>(), in, w.data<T>(), in, 0.0,
             result.data<T>(), out);
      });
      report("weight gradient", [&, in = in, out = out] {
        Gemm(device_, {.a = true}, out, in, n, y.data<T>(), out, x.data<T>(), in, 1.0,
             dw.data<float>(), in);
      });
      report("input gradient", [&, in = in, out = out] {
        Gemm(device_, {}, n, in, out, y.data<T>(), out, w.data<T>(), in, 0.0, dx.data<T>(), in);
      });
    }
  }

  const Options& options_;
  Device device_;
  DeviceBackend& backend_;
  double copy_ = 0;  // a copy's bytes a second
};

int Main(int argc, char** argv) {
  const Options o = Parse(argc, argv);
  const Device device = ChooseDevice(o.device);
  if (device.is_cpu()) {
    throw InvalidArgument("--device must be a GPU", "`kernels` is the same for the CPU");
  }
  std::printf("%s; %lld tokens, hidden size %lld\n",
              BackendOf(device).Describe(device.index).c_str(), static_cast<long long>(o.tokens),
              static_cast<long long>(o.hidden));
  Bench(o, device).Run();
  return 0;
}

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) {
  try {
    return lathe::Main(argc, argv);
  } catch (const lathe::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
