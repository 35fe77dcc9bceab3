// Times training steps of a model with random weights and prints where the time goes.
//
//   training_step [--device cpu|cuda] [--size base|large|minilm|tiny | --config_name DIR]
//                 [--precision no|bf16|fp16] [--batch 32] [--length N] [--steps 10]
//                 [--gradient_checkpointing true]
//
// --size gives a BERT; --config_name gives the model of DIR/config.json.
//
// Without --length the texts are about as long as SST-2's (27 tokens on average). The ceiling is
// the rate of this machine's products alone, at the shapes of the model's dense layers. On the CPU
// they run between the steps.
//
// On a GPU those products run after the steps. The clock is read before the first step and after
// the last one's work is done. The time of each op is not known there.
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lathe/core/autograd.h"
#include "lathe/core/base/philox.h"
#include "lathe/core/device_backend.h"
#include "lathe/core/gemm.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/pretrained.h"
#include "lathe/optim/optimizer.h"
#include "lathe/tests/benchmarks/layer_products.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::string size = "base", config_name;
  std::string precision = "no", device = "cpu";
  int64_t batch = 32, length = 0, steps = 10;
  bool gradient_checkpointing = false;
};

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--size") {
      o.size = value;
    } else if (name == "--config_name") {
      o.config_name = value;
    } else if (name == "--device") {
      o.device = value;
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
  if (o.precision != "no" && o.precision != "bf16" && o.precision != "fp16") {
    throw InvalidArgument("--precision must be no, bf16 or fp16 but is " + o.precision);
  }
  if (o.device != "cpu" && !o.device.starts_with("cuda")) {
    throw InvalidArgument("--device must be cpu or cuda but is " + o.device);
  }
  if (o.batch < 1 || o.steps < 1) throw InvalidArgument("--batch and --steps must be at least 1");
  if (argc % 2 == 0) throw InvalidArgument("each argument needs a value");
  return o;
}

DType TypeOf(const Options& o) {
  return o.precision == "fp16" ? DType::kF16 : o.precision == "bf16" ? DType::kBF16 : DType::kF32;
}

PretrainedConfig Config(const Options& o) {
  if (!o.config_name.empty()) return AutoConfig::FromPretrained(o.config_name);
  const std::string& size = o.size;
  nlohmann::json json = {{"model_type", "bert"}, {"num_labels", 2}};
  if (size == "minilm") {
    json.update({{"hidden_size", 384}, {"intermediate_size", 1536}, {"num_hidden_layers", 6}});
  } else if (size == "large") {
    json.update({{"hidden_size", 1024},
                 {"intermediate_size", 4096},
                 {"num_hidden_layers", 24},
                 {"num_attention_heads", 16}});
  } else if (size == "tiny") {
    json.update({{"hidden_size", 64},
                 {"intermediate_size", 256},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2}});
  } else if (size != "base") {
    throw InvalidArgument("--size must be base, large, minilm or tiny but is " + size);
  }
  return PretrainedConfig::FromJson(std::move(json));
}

std::string Name(const Options& o) { return o.config_name.empty() ? o.size : o.config_name; }

// Returns a word of a vocabulary of 30,522. The k-th word comes about 1/k as often as the first
// (Zipf's law).
int32_t Word(uint32_t random) {
  return static_cast<int32_t>(std::pow(30522.0, random * 0x1p-32)) % 30522;
}

// Returns sequences about as long as SST-2's sentences: from 4 to 61 tokens, 27 on average.
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
    for (int64_t i = 0; i < length; ++i) ids.push_back(Word(block.v[1] + i * 2654435769u));
    sequences.push_back(std::move(ids));
    labels.push_back(block.v[2] & 1);
  }
  return Batch::Pack(sequences, {}, Tensor::FromVector(labels));
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

// The work that was done in `seconds`.
struct Work {
  double seconds = 0, steps = 0, tokens = 0, operations = 0;
};

void Count(const Batch& batch, const LayerShape& shape, Work& work) {
  const double T = static_cast<double>(batch.num_tokens());
  ++work.steps;
  work.tokens += T;
  work.operations += ProductOperations(shape, T, static_cast<double>(batch.size()));
}

void PrintSpeed(const Options& o, const Work& work, double ceiling) {
  std::printf(
      "%.0f tokens/s, %.1f samples/s; products %.1f of %.1f GFLOP/s: %.1f %% of the ceiling\n",
      work.tokens / work.seconds, static_cast<double>(o.batch) * work.steps / work.seconds,
      work.operations / work.seconds / 1e9, ceiling / 1e9,
      100 * work.operations / work.seconds / ceiling);
}

struct Training {
  explicit Training(const Options& o)
      : whole(AutoModelForSequenceClassification::FromConfig(Config(o))),
        model(*whole),
        shape(ShapeOf(model.config())),
        accelerator({.mixed_precision = o.precision, .device = o.device}) {
    optimizer.emplace(DecayGroups(model.Parameters(), 0),
                      AdamWOptions{.lr = 1e-5, .weight_decay = 0});
    accelerator.Prepare(model, *optimizer);
    model.Train();
    model.SetGradientCheckpointing(o.gradient_checkpointing);
  }
  std::shared_ptr<SequenceClassifier> whole;
  SequenceClassifier& model;
  LayerShape shape;
  Accelerator accelerator;
  std::optional<AdamW> optimizer;
};

void TimeOnHost(const Options& o) {
  Training training(o);
  SequenceClassifier& model = training.model;
  auto& accelerator = training.accelerator;
  auto& optimizer = training.optimizer;
  OpProfile profile;
  std::map<std::string, double> phases;
  Work work;
  // Products alone run between the steps, so that other load of the machine affects both.
  const int64_t most_rows = o.batch * std::max<int64_t>(o.length, 64);
  const LayerProducts products(training.shape, most_rows, TypeOf(o), Device{});
  double product_operations = 0, product_seconds = 0;
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
    ClipGradNorm(*optimizer, 1.0);
    const double clipped = SecondsSince(start);
    optimizer->Step();
    const double stepped = SecondsSince(start);
    optimizer->ZeroGrad();
    const double all = SecondsSince(start);
    if (!timed) continue;
    phases["passes"] += passes;
    phases["clip"] += clipped - passes;
    phases["adamw"] += stepped - clipped;
    phases["zero"] += all - stepped;
    work.seconds += all;
    Count(batch, training.shape, work);
    const int64_t whole = std::max<int64_t>(batch.num_tokens() / 64 * 64, 64);
    products.Run(whole);  // fills the caches
    const Clock::time_point products_start = Clock::now();
    product_operations += products.Run(whole);
    product_seconds += SecondsSince(products_start);
  }
  const int64_t rows = static_cast<int64_t>(work.tokens) / o.steps;
  const double ceiling = product_operations / product_seconds, n = work.steps;
  std::printf("%s, %s, batch %lld, %lld tokens a batch, %d threads\n", Name(o).c_str(),
              o.precision == "no" ? "f32" : "bf16", static_cast<long long>(o.batch),
              static_cast<long long>(rows), omp_get_max_threads());
  std::printf("step %.1f ms: passes %.1f, clip %.1f, AdamW %.1f, zero %.1f\n",
              work.seconds / n * 1e3, phases["passes"] / n * 1e3, phases["clip"] / n * 1e3,
              phases["adamw"] / n * 1e3, phases["zero"] / n * 1e3);
  PrintSpeed(o, work, ceiling);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("peak memory %.2f GB\n",
              (static_cast<double>(usage.ru_maxrss) * 1024 - products.bytes()) * 1e-9);
  PrintProfile(profile, phases["passes"], o.steps);
}

void TimeOnDevice(const Options& o) {
  Training training(o);
  auto& model = training.model;
  auto& accelerator = training.accelerator;
  auto& optimizer = training.optimizer;
  const Device device = accelerator.device();
  DeviceBackend& backend = BackendOf(device);
  std::vector<Batch> batches;
  Work work;
  for (int64_t step = 0; step < o.steps; ++step) {
    batches.push_back(RandomBatch(o, step));
    batches.back().step = step;
    Count(batches.back(), training.shape, work);
  }
  const auto train = [&](const Batch& batch) {
    accelerator.Backward(model, batch, [&](const Batch& b) { return model.Forward(b).loss; });
    accelerator.ClipGradNorm(*optimizer, 1.0);
    optimizer->Step();
    optimizer->ZeroGrad();
  };
  // All shapes come up before the clock starts: first to run eagerly, then to be recorded.
  for (int round = 0; round < 2; ++round) {
    for (const Batch& batch : batches) train(batch);
  }
  backend.Synchronize();
  backend.ResetPeakMemory(device.index);
  const Clock::time_point start = Clock::now();
  for (const Batch& batch : batches) train(batch);
  backend.Synchronize();
  work.seconds = SecondsSince(start);
  const double peak = static_cast<double>(backend.Memory(device.index).peak);
  const int64_t rows = static_cast<int64_t>(work.tokens) / o.steps;
  const int64_t whole = (rows + 127) / 128 * 128;  // the model fills up its rows in the same way
  const double ceiling = ProductCeiling(training.shape, whole, TypeOf(o), device);
  std::printf("%s, %s, batch %lld, %lld tokens a batch, %s\n", Name(o).c_str(),
              o.precision == "no" ? "f32" : o.precision.c_str(), static_cast<long long>(o.batch),
              static_cast<long long>(rows), backend.Describe(device.index).c_str());
  std::printf("step %.3f ms\n", work.seconds / work.steps * 1e3);
  PrintSpeed(o, work, ceiling);
  std::printf("peak memory of tensors %.2f GB\n", peak * 1e-9);
}

int Main(int argc, char** argv) {
  const Options o = Parse(argc, argv);
  o.device == "cpu" ? TimeOnHost(o) : TimeOnDevice(o);
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
