// Times training steps of a BERT with random weights and prints where the time goes.
//
//   training_step [--size base|minilm] [--precision no|bf16] [--batch 32] [--length N] [--steps 10]
//                 [--gradient_checkpointing true]
//
// Without --length the texts are about as long as SST-2's (27 tokens on average). The ceiling is
// what this machine's products reach alone, at the shapes of the model's dense layers, in the same
// run.
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/gemm.h"
#include "lathe/core/philox.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/bert.h"
#include "lathe/optim/optimizer.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::string size = "base";
  std::string precision = "no";
  int64_t batch = 32, length = 0, steps = 10;
  bool gradient_checkpointing = false;
};

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--size") {
      o.size = value;
    } else if (name == "--precision") {
      o.precision = value;
    } else if (name == "--gradient_checkpointing") {
      o.gradient_checkpointing = value == "true";
    } else if (name == "--batch") {
      o.batch = std::atoll(argv[i + 1]);
    } else if (name == "--length") {
      o.length = std::atoll(argv[i + 1]);
    } else if (name == "--steps") {
      o.steps = std::atoll(argv[i + 1]);
    } else {
      throw InvalidArgument("unknown argument " + name);
    }
  }
  if (argc % 2 == 0) throw InvalidArgument("each argument needs a value");
  return o;
}

PretrainedConfig Config(const std::string& size) {
  nlohmann::json json = {{"model_type", "bert"}, {"num_labels", 2}};
  if (size == "minilm") {
    json.update({{"hidden_size", 384}, {"intermediate_size", 1536}, {"num_hidden_layers", 6}});
  } else if (size != "base") {
    throw InvalidArgument("--size must be base or minilm but is " + size);
  }
  return PretrainedConfig::FromJson(std::move(json));
}

// Lengths spread about as SST-2's sentences: from 4 to 61 tokens, 27 on average.
Batch RandomBatch(const Options& o, int64_t step) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> labels;
  for (int64_t b = 0; b < o.batch; ++b) {
    const PhiloxBlock block =
        Philox4x32({{static_cast<uint32_t>(b), static_cast<uint32_t>(step), 0, 0}}, 1, 2);
    const double u = block.v[0] * 0x1p-32;
    const int64_t length =
        o.length > 0 ? o.length : 4 + static_cast<int64_t>(58 * u * std::sqrt(u));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<int32_t>((block.v[1] + i * 7919u) % 30522u));
    }
    sequences.push_back(std::move(ids));
    labels.push_back(block.v[2] & 1);
  }
  return Batch::Pack(sequences, {}, Tensor::FromVector(labels));
}

// Operations of the products in one step over T tokens in B texts: forward and twice that backward;
// of the last layer only keys and values for all tokens. Attention's own products are not counted.
double ProductOperations(const PretrainedConfig& config, double T, double B) {
  const double H = static_cast<double>(config.GetInt("hidden_size", 768));
  const double I = static_cast<double>(config.GetInt("intermediate_size", 3072));
  const double L = static_cast<double>(config.GetInt("num_hidden_layers", 12));
  const double layer = 4 * H * H + 2 * H * I;
  return 6 * (T * ((L - 1) * layer + 2 * H * H) + B * (2 * H * H + 2 * H * I));
}

// Operations a second of one layer's products alone: forward, input and weight gradients.
template <typename T>
double ProductCeiling(const PretrainedConfig& config, int64_t rows) {
  const int64_t H = config.GetInt("hidden_size", 768), I = config.GetInt("intermediate_size", 3072);
  struct Layer {
    int64_t in, out;
  };
  const std::vector<Layer> layers = {{H, H}, {H, 2 * H}, {H, H}, {H, I}, {I, H}};
  const DType dtype = DTypeOf<T>::value;
  const Tensor x = Tensor::Zeros({rows, I}, dtype), y = Tensor::Zeros({rows, I}, dtype);
  const Tensor w = Tensor::Zeros({I, H}, dtype), dw = Tensor::Zeros({I, H});
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    double operations = 0;
    const Clock::time_point start = Clock::now();
    for (const Layer& l : layers) {
      Gemm(false, true, rows, l.out, l.in, x.data<T>(), l.in, w.data<T>(), l.in, 0.0f, y.data<T>(),
           l.out);
      Gemm(false, false, rows, l.in, l.out, y.data<T>(), l.out, w.data<T>(), l.in, 0.0f,
           x.data<T>(), l.in);
      Gemm(true, false, l.out, l.in, rows, y.data<T>(), l.out, x.data<T>(), l.in, 1.0f,
           dw.data<float>(), l.in);
      operations += 6.0 * static_cast<double>(rows * l.in * l.out);
    }
    best = std::max(best, operations / SecondsSince(start));
  }
  return best;
}

void PrintProfile(const OpProfile& profile, double total, int64_t steps) {
  std::printf("%-26s %8s %10s %10s %7s\n", "op", "calls", "forward", "backward", "share");
  std::vector<std::pair<double, std::string>> order;
  double known = 0;
  for (const auto& [name, e] : profile.ops) {
    order.push_back({e.forward + e.backward, name});
    known += e.forward + e.backward;
  }
  std::sort(order.rbegin(), order.rend());
  const double n = static_cast<double>(steps);
  for (const auto& [seconds, name] : order) {
    const OpProfile::Entry& e = profile.ops.at(name);
    std::printf("%-26s %8lld %7.2f ms %7.2f ms %6.1f%%\n", name.c_str(),
                static_cast<long long>(e.calls / steps), e.forward / n * 1e3, e.backward / n * 1e3,
                100 * seconds / total);
  }
  std::printf("%-26s %8s %21.2f ms %6.1f%%\n", "engine, sums of gradients", "",
              (total - known) / n * 1e3, 100 * (total - known) / total);
}

int Main(int argc, char** argv) {
  const Options o = Parse(argc, argv);
  BertForSequenceClassification model(Config(o.size));
  model.Initialize(42);
  AdamW optimizer(DecayGroups(model.Parameters(), 0), {.lr = 1e-5, .weight_decay = 0});
  Accelerator accelerator({.mixed_precision = o.precision});
  accelerator.Prepare(model, optimizer);
  model.Train();
  model.SetGradientCheckpointing(o.gradient_checkpointing);

  OpProfile profile;
  std::map<std::string, double> phases;
  double total = 0, tokens = 0, operations = 0;
  const int64_t warm_up = 3;
  for (int64_t step = -warm_up; step < o.steps; ++step) {
    Batch batch = RandomBatch(o, step < 0 ? -step - 1 : step);
    const bool timed = step >= 0;
    SetOpProfile(timed ? &profile : nullptr);
    const Clock::time_point start = Clock::now();
    const SequenceClassifierOutput outputs = model.Forward(batch);
    accelerator.Backward(outputs.loss);
    SetOpProfile(nullptr);
    const double passes = SecondsSince(start);
    ClipGradNorm(optimizer, 1.0);
    const double clipped = SecondsSince(start);
    optimizer.Step();
    const double stepped = SecondsSince(start);
    optimizer.ZeroGrad();
    const double all = SecondsSince(start);
    if (!timed) continue;
    phases["passes"] += passes;
    phases["clip"] += clipped - passes;
    phases["adamw"] += stepped - clipped;
    phases["zero"] += all - stepped;
    total += all;
    const double T = static_cast<double>(batch.num_tokens());
    tokens += T;
    operations += ProductOperations(model.config(), T, static_cast<double>(o.batch));
  }
  const int64_t rows = static_cast<int64_t>(tokens) / o.steps;
  const int64_t whole = (rows + 63) / 64 * 64;  // other numbers of rows may be slower
  const double ceiling = o.precision == "bf16" ? ProductCeiling<BFloat16>(model.config(), whole)
                                               : ProductCeiling<float>(model.config(), whole);
  const double n = static_cast<double>(o.steps);
  std::printf("%s, %s, batch %lld, %lld tokens a batch, %d threads\n", o.size.c_str(),
              o.precision == "no" ? "f32" : "bf16", static_cast<long long>(o.batch),
              static_cast<long long>(rows), omp_get_max_threads());
  std::printf("step %.1f ms: passes %.1f, clip %.1f, AdamW %.1f, zero %.1f\n", total / n * 1e3,
              phases["passes"] / n * 1e3, phases["clip"] / n * 1e3, phases["adamw"] / n * 1e3,
              phases["zero"] / n * 1e3);
  std::printf(
      "%.0f tokens/s, %.1f samples/s; products %.1f of %.1f GFLOP/s: %.1f %% of the ceiling\n",
      tokens / total, static_cast<double>(o.batch) * n / total, operations / total / 1e9,
      ceiling / 1e9, 100 * operations / total / ceiling);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("peak memory %.2f GB\n", static_cast<double>(usage.ru_maxrss) * 1024e-9);
  PrintProfile(profile, phases["passes"], o.steps);
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
