#include "lathe/apps/finetune/summary.h"

#include <omp.h>

#include <sstream>
#include <string>
#include <vector>

#include "lathe/apps/options/idle_options.h"
#include "lathe/core/base/gemm_options.h"
#include "lathe/core/device_backend.h"
#include "lathe/models/config/problem_type.h"
#include "lathe/train/parameters/trained_parameters.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr size_t kWidth = 12;                  // of a name and the spaces behind it
constexpr size_t kColumnOfValue = 2 + kWidth;  // where values begin

std::string Row(const std::string& name, const std::string& value) {
  return "  " + name + std::string(name.size() < kWidth ? kWidth - name.size() : 1, ' ') + value;
}

void PrintRow(std::ostream& out, const std::string& name, const std::string& value) {
  out << Row(name, value) << '\n';
}

// Prints the kind of labels and the first names. A narrow terminal gets several lines.
void PrintLabels(std::ostream& out, const Task& task) {
  std::string kind = ProblemType(task.labels.kind());
  if (task.labels.kind() == LabelKind::kRegression) return PrintRow(out, "labels", kind);
  constexpr size_t kMostNames = 10;
  std::vector<std::string> parts = {
      Row("labels", kind + ", " + std::to_string(task.labels.num_labels()) + ":")};
  for (size_t i = 0; i < task.label_names.size() && i < kMostNames; ++i)
    parts.push_back(task.label_names[i]);
  if (task.label_names.size() > kMostNames) parts.push_back("...");
  out << FoldedLine(parts, " ", kColumnOfValue, ColumnsOfOutput()) << '\n';
}

void PrintData(std::ostream& out, const std::string& name, const TaskData& data,
               int64_t max_length) {
  if (data.dataset == nullptr) return;
  const TokenizedDataset& dataset = *data.dataset;
  const double mean = dataset.size() > 0 ? static_cast<double>(dataset.num_tokens()) /
                                               static_cast<double>(dataset.size())
                                         : 0;
  PrintRow(out, name,
           FormatCount(dataset.size()) + " samples, " + FormatNumber("%.1f", mean) +
               " tokens on average, " + FormatCount(dataset.num_truncated) + " cut to " +
               std::to_string(max_length) + " (" + data.path + ")");
}

}  // namespace

void PrintSummary(std::ostream& out, const FinetuneArguments& options, const Task& task,
                  const Trainer* trainer, int num_processes, Device device) {
  PrintRow(out, "model",
           task.model->config().model_type() + ", " + FormatCount(task.model->NumParameters()) +
               " parameters");
  PrintLabels(out, task);
  const TextColumns& columns = task.text_columns;
  PrintRow(out, "texts", columns.first + (columns.second.empty() ? "" : " and " + columns.second));
  PrintData(out, "train", task.train, task.max_length);
  PrintData(out, "validation", task.validation, task.max_length);
  PrintData(out, "test", task.test, task.max_length);
  if (trainer != nullptr) PrintRow(out, "steps", trainer->Plan());
  if (trainer != nullptr && !options.freeze_layers.empty())
    PrintRow(out, "frozen", DescribeFrozen(*task.model));
  if (trainer != nullptr && options.early_stopping_patience) {
    PrintRow(out, "stops early",
             "after " + FormatCount(*options.early_stopping_patience) +
                 (*options.early_stopping_patience == 1 ? " evaluation" : " evaluations in a row") +
                 " without a better " + BestModelMetric(options));
    if (!options.load_best_model_at_end) {
      PrintRow(out, "note",
               "the last model is saved, not the best one; --load_best_model_at_end saves that");
    }
  }
  const bool goes_on = trainer != nullptr && !trainer->resumed_from().empty();
  if (goes_on) {
    PrintRow(out, "goes on",
             "after step " + FormatCount(trainer->state().global_step) + ", from " +
                 trainer->resumed_from());
  }
  if (!device.is_cpu()) {
    PrintRow(out, "device",
             BackendOf(device).Describe(device.index) +
                 (num_processes > 1 ? ", one for each process" : ""));
    if (GetGemmOptions().deterministic) PrintRow(out, "products", "deterministic");
  }
  PrintRow(out, "threads",
           std::to_string(omp_get_max_threads()) + (num_processes > 1 ? " each" : ""));
  if (num_processes > 1) PrintRow(out, "processes", std::to_string(num_processes));
  if (options.mixed_precision != "no") PrintRow(out, "precision", options.mixed_precision);
  PrintRow(out, "output", options.output_dir);
  if (!goes_on) {
    std::istringstream lines(task.weights_note);
    for (std::string line; std::getline(lines, line);) PrintRow(out, "note", line);
  }
  for (const std::string& note : task.notes) PrintRow(out, "note", note);
  if (trainer != nullptr) {
    for (const std::string& note : IdleOptions(options)) PrintRow(out, "note", note);
    for (const std::string& note : IdleRates(*task.model, options)) PrintRow(out, "note", note);
    for (const std::string& note : trainer->notes()) PrintRow(out, "note", note);
  }
  out << std::flush;
}

}  // namespace lathe
