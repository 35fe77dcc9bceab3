#include "lathe/apps/lathe/estimate_memory_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/hub_flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/apps/lathe/estimate_memory.h"
#include "lathe/core/base/error.h"
#include "lathe/core/hub/hub_names.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr char kUsage[] =
    "Estimates the memory that a model takes in training with AdamW and in inference.\n"
    "MODEL_DIR needs a config.json, but no weights. It may be a name on the Hub, as\n"
    "owner/name.\n"
    "\n"
    "Usage:\n"
    "  lathe estimate-memory MODEL_DIR [options]\n";

struct EstimateFlags {
  std::string model_dir, mixed_precision, device = "cpu", help_text;
  int64_t batch_size = 8, num_processes = 1;
  std::optional<int64_t> max_seq_length;
  bool gradient_checkpointing = false, shard_optimizer = true, help = false;
  HubOptions hub;
};

EstimateFlags ParseEstimateFlags(const std::vector<std::string>& args) {
  constexpr int64_t kMost = 1 << 20;
  EstimateFlags o;
  FlagTable flags(kUsage);
  flags.Group("Options");
  flags.Add("batch_size", &o.batch_size, "number of texts in a batch of each process")
      .Min(1)
      .Max(kMost);
  flags
      .Add("max_seq_length", &o.max_seq_length,
           "number of tokens in each text (default: 128, or the model's limit if that is lower)")
      .Min(1);
  flags.Add("mixed_precision", &o.mixed_precision, "show only this precision (default: all)")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("device", &o.device, "what computes: the CPU or a GPU").Choices({"cpu", "cuda"});
  flags.Add("gradient_checkpointing", &o.gradient_checkpointing,
            "keep only the input of each layer for the backward pass and compute the rest again");
  flags
      .Add("num_processes", &o.num_processes,
           "number of processes that train together, on one machine")
      .Min(1)
      .Max(kMost);
  flags.Add("shard_optimizer", &o.shard_optimizer,
            "each process keeps only its part of AdamW's moments, as with finetune");
  AddHubFlags(flags, &o.hub);
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  const std::vector<std::string> positional = flags.Parse(args);
  if (o.help) return o;
  if (positional.empty()) {
    throw InvalidArgument("MODEL_DIR is missing",
                          "usage: lathe estimate-memory MODEL_DIR [options]");
  }
  if (positional.size() > 1) throw InvalidArgument("unknown argument \"" + positional[1] + "\"");
  o.model_dir = positional[0];
  if (o.mixed_precision == "fp16" && o.device == "cpu") {
    throw InvalidArgument("--mixed_precision fp16 needs a GPU", "add --device cuda, or use bf16");
  }
  if (o.device == "cuda") o.shard_optimizer = false;  // with GPUs each process has all moments
  return o;
}

std::string FormatBytes(int64_t bytes) {
  constexpr double kMebibyte = 1 << 20, kGibibyte = 1 << 30;
  const auto value = static_cast<double>(bytes);
  if (bytes == 0) return "-";
  return value < kGibibyte ? FormatNumber("%.1f MiB", value / kMebibyte)
                           : FormatNumber("%.2f GiB", value / kGibibyte);
}

// Prints a table with a column for each precision.
class Table {
 public:
  explicit Table(std::vector<MemoryEstimate> columns) : columns_(std::move(columns)) {}

  void Title(const std::string& name, const std::vector<std::string>& precisions) const {
    std::cout << Cell(name, kNameWidth);
    for (const std::string& precision : precisions) std::cout << Right(precision);
    std::cout << '\n';
  }
  template <typename Get>
  void Row(const std::string& name, Get get) const {
    const bool any = std::any_of(columns_.begin(), columns_.end(),
                                 [&](const MemoryEstimate& column) { return get(column) != 0; });
    if (!any) return;
    std::cout << Cell("  " + name, kNameWidth);
    for (const MemoryEstimate& column : columns_) std::cout << Right(FormatBytes(get(column)));
    std::cout << '\n';
  }

 private:
  static constexpr size_t kNameWidth = 42, kWidth = 12;
  static std::string Cell(const std::string& text, size_t width) {
    return text + std::string(width - std::min(text.size(), width), ' ');
  }
  static std::string Right(const std::string& text) {
    return ' ' + std::string(kWidth - std::min(text.size(), kWidth), ' ') + text;
  }

  std::vector<MemoryEstimate> columns_;
};

// The estimates of a model, one for each precision.
struct Estimates {
  std::vector<std::string> precisions;
  std::vector<MemoryEstimate> as_asked, with_checkpointing;
};

Estimates EstimatePrecisions(const std::string& mixed_precision, const SequenceClassifier& model,
                             const MemoryOptions& options) {
  struct Precision {
    const char *option, *name;
    DType dtype;
  };
  Estimates estimates;
  for (const Precision& precision : {Precision{"no", "float32", DType::kF32},
                                     {"bf16", "bfloat16", DType::kBF16},
                                     {"fp16", "float16", DType::kF16}}) {
    if (mixed_precision.empty() ? precision.dtype == DType::kF16 && !options.on_gpu
                                : mixed_precision != precision.option) {
      continue;
    }
    estimates.precisions.push_back(precision.name);
    MemoryOptions column = options;
    column.compute_dtype = precision.dtype;
    estimates.as_asked.push_back(EstimateMemory(model, column));
    column.gradient_checkpointing = true;
    estimates.with_checkpointing.push_back(EstimateMemory(model, column));
  }
  return estimates;
}

using Estimate = MemoryEstimate;

void PrintTraining(const Estimates& estimates, const MemoryOptions& options) {
  const Table table(estimates.as_asked);
  const bool several = options.num_processes > 1;
  table.Title(std::string(options.gradient_checkpointing ? "training, checkpointing"
                                                         : "training with AdamW") +
                  (several ? ", per process" : ""),
              estimates.precisions);
  table.Row("weights", [](const Estimate& e) { return e.weights; });
  table.Row("gradients", [](const Estimate& e) { return e.gradients; });
  table.Row(several && options.shard_optimizer ? "AdamW's moments, its share" : "AdamW's moments",
            [](const Estimate& e) { return e.moments; });
  table.Row("16-bit copies of weights", [](const Estimate& e) { return e.low_precision; });
  table.Row("kept for the backward pass", [](const Estimate& e) { return e.kept; });
  table.Row("largest temporaries", [](const Estimate& e) { return e.temporary; });
  table.Row("exchange of gradients", [](const Estimate& e) { return e.exchange; });
  table.Row("workspace of products", [](const Estimate& e) { return e.workspace; });
  table.Row("together", [](const Estimate& e) { return e.Training(); });
  if (!options.on_gpu) {
    table.Row("with a --save_strategy",
              [](const Estimate& e) { return e.Training() + e.checkpoint_copy; });
  }
  if (options.gradient_checkpointing) return;
  Table(estimates.with_checkpointing).Row("with --gradient_checkpointing", [](const Estimate& e) {
    return e.Training();
  });
}

void PrintInference(const Estimates& estimates, const MemoryOptions& options) {
  const Table table(estimates.as_asked);
  table.Title(options.num_processes > 1 ? "inference, per process" : "inference",
              estimates.precisions);
  table.Row("weights", [](const Estimate& e) { return e.weights; });
  table.Row("16-bit copies of weights", [](const Estimate& e) { return e.low_precision; });
  table.Row("activations", [](const Estimate& e) { return e.inference; });
  table.Row("workspace of products", [](const Estimate& e) { return e.workspace; });
  table.Row("together", [](const Estimate& e) { return e.Inference(); });
}

void PrintAllProcesses(const Estimates& estimates, const MemoryOptions& options) {
  const Table table(estimates.as_asked);
  const int64_t n = options.num_processes;
  table.Title("all " + FormatCount(n) + " processes", estimates.precisions);
  // Processes of one machine share one copy of the weights if they divide the updates.
  const int64_t spared = options.shard_optimizer && !options.on_gpu ? n - 1 : 0;
  table.Row(spared > 0 ? "training, on one machine" : "training", [=](const Estimate& e) {
    return n * e.Training() - spared * (e.weights + e.low_precision);
  });
  table.Row("inference", [n](const Estimate& e) { return n * e.Inference(); });
}

void PrintEstimate(const EstimateFlags& flags, const SequenceClassifier& model,
                   const MemoryOptions& options) {
  const Estimates estimates = EstimatePrecisions(flags.mixed_precision, model, options);
  const bool several = options.num_processes > 1;
  std::cout << flags.model_dir << ": " << model.config().model_type() << ", "
            << FormatCount(model.NumParameters()) << " parameters\n"
            << "batches of " << FormatCount(options.batch_size) << " texts of "
            << options.max_seq_length << " tokens" << (several ? " in each process" : "") << ", on "
            << (options.on_gpu ? "a GPU" : "the CPU") << "\n\n";
  PrintTraining(estimates, options);
  std::cout << '\n';
  PrintInference(estimates, options);
  if (several) {
    std::cout << '\n';
    PrintAllProcesses(estimates, options);
  }
  std::cout
      << "\nThese are upper limits for such batches. Nothing is padded, so shorter texts take "
         "less.\n"
      << (options.on_gpu ? "What CUDA and NCCL themselves take of the GPU's memory comes on "
                           "top.\n"
                         : "Gradients and moments of a word take memory only once the word "
                           "has come up.\n"
                           "The program with its libraries takes about 100 MiB more, and the "
                           "data comes on top.\n")
      << "--load_best_model_at_end without a --save_strategy keeps another copy of the weights.\n";
}

int EstimateFor(const EstimateFlags& flags) {
  std::error_code code;
  const bool exists = std::filesystem::exists(flags.model_dir, code);
  if (exists ? !std::filesystem::is_directory(flags.model_dir, code)
             : !IsModelName(flags.model_dir)) {
    throw NotFound(flags.model_dir + " is not a folder",
                   "give a folder with the config.json of a model, or its name on the Hub");
  }
  const auto model = AutoModelForSequenceClassification::WithoutValues(
      AutoConfig::FromPretrained(flags.model_dir, flags.hub));
  MemoryOptions options = {.batch_size = flags.batch_size,
                           .gradient_checkpointing = flags.gradient_checkpointing,
                           .on_gpu = flags.device == "cuda",
                           .num_processes = flags.num_processes,
                           .shard_optimizer = flags.shard_optimizer};
  options.max_seq_length =
      flags.max_seq_length.value_or(std::min(options.max_seq_length, model->max_length()));
  if (options.max_seq_length > model->max_length()) {
    throw UsageError("--max_seq_length is " + std::to_string(options.max_seq_length) +
                     " but the model takes at most " + std::to_string(model->max_length()) +
                     " tokens (max_position_embeddings)");
  }
  PrintEstimate(flags, *model, options);
  return 0;
}

}  // namespace

int RunEstimateMemory(const std::vector<std::string>& args) {
  EstimateFlags flags;
  if (const auto code = ParseOrEnd(&flags, ParseEstimateFlags, args)) return *code;
  return EstimateFor(flags);
}

}  // namespace lathe
