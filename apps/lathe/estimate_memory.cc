#include "lathe/apps/lathe/estimate_memory.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>
#include <utility>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/core/base/error.h"
#include "lathe/models/architecture.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr int64_t kFloat = 4;

constexpr int64_t kGpuWorkspace = int64_t{32} << 20;  // cuBLASLt's (core/cuda/gemm/gemm_plan.h)

}  // namespace

MemoryEstimate EstimateMemory(const SequenceClassifier& model, const MemoryOptions& options) {
  const Architecture& architecture = ArchitectureOf(model.config());
  if (architecture.pass_memory == nullptr) {
    throw Error(absl::StatusCode::kUnimplemented,
                model.config().path() + ": the memory of \"" + architecture.model_type +
                    "\" models can't be estimated yet",
                "train a few steps with finetune: train_results.json has peak_rss_bytes");
  }
  const PassMemory passes = architecture.pass_memory(model, options);
  MemoryEstimate estimate;
  estimate.weights = estimate.gradients = model.NumParameters() * kFloat;
  const int64_t n = options.shard_optimizer && !options.on_gpu ? options.num_processes : 1;
  estimate.moments = 2 * ((estimate.weights + n - 1) / n);
  estimate.workspace = options.on_gpu ? kGpuWorkspace : 0;
  estimate.low_precision = passes.low_precision;
  estimate.kept = passes.kept;
  estimate.temporary = passes.temporary;
  estimate.inference = passes.inference;
  if (options.num_processes > 1 && !options.on_gpu) {  // NCCL sums gradients in place
    // The rows of the word table that any process has used, unless these are most of the rows.
    const int64_t used = options.num_processes * options.batch_size * options.max_seq_length;
    estimate.exchange = std::min(used, passes.word_rows / 2) * passes.word_columns * kFloat;
  }
  return estimate;
}

namespace {

constexpr char kUsage[] =
    "Estimates the memory that a model takes in training with AdamW and in inference,\n"
    "from the config.json in MODEL_DIR; weights are not needed.\n"
    "\n"
    "Usage:\n"
    "  lathe estimate-memory MODEL_DIR [options]\n";

struct EstimateFlags {
  std::string model_dir, mixed_precision, device = "cpu", help_text;
  int64_t batch_size = 8, num_processes = 1;
  std::optional<int64_t> max_seq_length;
  bool gradient_checkpointing = false, shard_optimizer = true, help = false;
};

EstimateFlags ParseEstimateFlags(const std::vector<std::string>& args) {
  constexpr int64_t kMost = 1 << 20;
  EstimateFlags o;
  FlagTable flags(kUsage);
  flags.Group("Options");
  flags.Add("batch_size", &o.batch_size, "texts in a batch of each process").Min(1).Max(kMost);
  flags
      .Add("max_seq_length", &o.max_seq_length,
           "tokens of each text (default: 128, or what the model takes if that is less)")
      .Min(1);
  flags.Add("mixed_precision", &o.mixed_precision, "show only this one (default: all)")
      .Choices({"no", "bf16", "fp16"});
  flags.Add("device", &o.device, "what computes; fp16 needs cuda").Choices({"cpu", "cuda"});
  flags.Add("gradient_checkpointing", &o.gradient_checkpointing,
            "keep only what enters each layer for the backward pass");
  flags.Add("num_processes", &o.num_processes, "processes that train together, on one machine")
      .Min(1)
      .Max(kMost);
  flags.Add("shard_optimizer", &o.shard_optimizer,
            "they share AdamW's moments out, as finetune's do");
  flags.Add("help", &o.help, "show this text");
  o.help_text = flags.Help();
  const std::vector<std::string> positional = flags.Parse(args);
  if (o.help) return o;
  if (positional.empty()) {
    throw InvalidArgument("MODEL_DIR is missing", "lathe estimate-memory MODEL_DIR [options]");
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

void PrintEstimate(const EstimateFlags& flags, const SequenceClassifier& model,
                   const MemoryOptions& options) {
  std::vector<std::string> precisions;
  std::vector<MemoryEstimate> columns, checkpointing;
  struct Precision {
    const char *option, *name;
    DType dtype;
  };
  for (const Precision& precision : {Precision{"no", "float32", DType::kF32},
                                     {"bf16", "bfloat16", DType::kBF16},
                                     {"fp16", "float16", DType::kF16}}) {
    if (flags.mixed_precision.empty() ? precision.dtype == DType::kF16 && !options.on_gpu
                                      : flags.mixed_precision != precision.option) {
      continue;
    }
    precisions.push_back(precision.name);
    MemoryOptions column = options;
    column.compute_dtype = precision.dtype;
    columns.push_back(EstimateMemory(model, column));
    column.gradient_checkpointing = true;
    checkpointing.push_back(EstimateMemory(model, column));
  }
  std::cout << flags.model_dir << ": " << model.config().model_type() << ", "
            << FormatCount(model.NumParameters()) << " parameters\n"
            << "batches of " << FormatCount(options.batch_size) << " texts of "
            << options.max_seq_length << " tokens"
            << (options.num_processes > 1 ? " in each process" : "") << ", on "
            << (options.on_gpu ? "a GPU" : "the CPU") << "\n\n";

  using Estimate = MemoryEstimate;
  const Table table(columns);
  const bool several = options.num_processes > 1;
  const std::string each = several ? ", per process" : "";
  table.Title(
      (options.gradient_checkpointing ? "training, checkpointing" : "training with AdamW") + each,
      precisions);
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
  if (!options.gradient_checkpointing) {
    Table(checkpointing).Row("with --gradient_checkpointing", [](const Estimate& e) {
      return e.Training();
    });
  }
  std::cout << '\n';
  table.Title("inference" + each, precisions);
  table.Row("weights", [](const Estimate& e) { return e.weights; });
  table.Row("16-bit copies of weights", [](const Estimate& e) { return e.low_precision; });
  table.Row("activations", [](const Estimate& e) { return e.inference; });
  table.Row("workspace of products", [](const Estimate& e) { return e.workspace; });
  table.Row("together", [](const Estimate& e) { return e.Inference(); });
  if (const int64_t n = options.num_processes; n > 1) {
    std::cout << '\n';
    table.Title("all " + FormatCount(n) + " processes", precisions);
    // Processes of one machine share one copy of the weights if they divide the updates.
    const int64_t spared = options.shard_optimizer && !options.on_gpu ? n - 1 : 0;
    table.Row(spared > 0 ? "training, on one machine" : "training", [=](const Estimate& e) {
      return n * e.Training() - spared * (e.weights + e.low_precision);
    });
    table.Row("inference", [n](const Estimate& e) { return n * e.Inference(); });
  }
  std::cout
      << "\nThis is the most that such batches take: nothing is padded, so shorter texts take\n"
      << (options.on_gpu
              ? "less. What CUDA and NCCL themselves take of the GPU's memory comes on top.\n"
              : "less, and tables of words take memory for gradients and moments as words "
                "come up.\n"
                "The program itself, with its libraries, comes on top: about 100 MiB, and "
                "the data.\n")
      << "--load_best_model_at_end keeps another copy of the weights.\n";
}

int EstimateFor(const EstimateFlags& flags) {
  if (std::error_code code; !std::filesystem::is_directory(flags.model_dir, code)) {
    throw NotFound(flags.model_dir + " is not a folder",
                   "give a folder with the config.json of a model");
  }
  const auto model = AutoModelForSequenceClassification::WithoutValues(
      PretrainedConfig::FromPretrained(flags.model_dir));
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
  const int usage = ReportErrors(kUsageExitCode, [&] {
    flags = ParseEstimateFlags(args);
    return 0;
  });
  if (usage != 0) return usage;
  if (flags.help) {
    std::cout << flags.help_text;
    return 0;
  }
  return EstimateFor(flags);
}

}  // namespace lathe
