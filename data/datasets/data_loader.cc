#include "lathe/data/datasets/data_loader.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lathe/core/ops/losses.h"

namespace lathe {

std::vector<int64_t> SampleOrder(const TokenizedDataset& dataset, const DataLoaderOptions& options,
                                 int64_t epoch) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; NeedsLengths(options) && i < dataset.size(); ++i)
    lengths.push_back(dataset.length(i));
  return SampleOrder(dataset.size(), lengths, options, epoch);
}

Batch Collate(const TokenizedDataset& dataset, const std::vector<int64_t>& indices) {
  std::vector<std::vector<int32_t>> sequences, token_types;
  std::vector<int64_t> classes;
  std::vector<float> scores;
  const int64_t width = dataset.kind == LabelKind::kMultiLabel ? dataset.num_labels : 1;
  for (int64_t i : indices) {
    Check(i >= 0 && i < dataset.size(), "collate", "sample ", i,
          " does not exist; the dataset has ", dataset.size(), " samples");
    TokenizedRow row = dataset.Row(i);
    sequences.push_back(std::move(row.input_ids));
    token_types.push_back(std::move(row.token_type_ids));
    if (!dataset.has_labels) continue;
    if (dataset.kind == LabelKind::kSingleLabel) {
      classes.push_back(dataset.classes[i]);
    } else {
      scores.insert(scores.end(), row.scores.begin(), row.scores.end());
    }
  }
  Tensor labels;
  if (dataset.has_labels) {
    const int64_t rows = static_cast<int64_t>(indices.size());
    labels = dataset.kind == LabelKind::kSingleLabel  ? Tensor::FromVector(classes)
             : dataset.kind == LabelKind::kRegression ? Tensor::FromVector(scores)
                                                      : Tensor::FromVector(scores, {rows, width});
  }
  Batch batch = Batch::Pack(sequences, token_types, std::move(labels));
  batch.indices = indices;
  if (!dataset.sample_weights.empty()) {
    std::vector<float> weights;
    for (const int64_t i : indices) weights.push_back(dataset.sample_weights[i]);
    batch.sample_weights = Tensor::FromVector(weights);
  }
  return batch;
}

namespace {

// Returns what divides a mean loss of these samples (Batch::Share::weight).
double WeightOf(const TokenizedDataset& dataset, const std::vector<float>& class_weights,
                std::span<const int64_t> indices) {
  const bool has_classes = dataset.has_labels && dataset.kind == LabelKind::kSingleLabel;
  double sum = 0;
  for (const int64_t i : indices) {
    double weight = 1;
    if (has_classes) {
      const int64_t label = dataset.classes[static_cast<size_t>(i)];
      if (label == kIgnoreIndex) continue;
      if (!class_weights.empty()) weight = class_weights.at(static_cast<size_t>(label));
    }
    if (!dataset.sample_weights.empty()) weight *= dataset.sample_weights[static_cast<size_t>(i)];
    sum += weight;
  }
  return sum;
}

Tensor RowsOf(const Tensor& table, std::span<const int64_t> indices) {
  const Tensor rows = Tensor::Empty({std::ssize(indices), table.dim(1)}, DType::kF32);
  const auto width = static_cast<size_t>(table.dim(1));
  float* to = rows.data<float>();
  for (const int64_t i : indices)
    to = std::copy_n(table.data<float>() + static_cast<size_t>(i) * width, width, to);
  return rows;
}

class TextSource : public BatchSource {
 public:
  TextSource(std::shared_ptr<const TokenizedDataset> dataset, std::vector<float> class_weights,
             Tensor encoded)
      : dataset_(std::move(dataset)),
        class_weights_(std::move(class_weights)),
        encoded_(std::move(encoded)) {}

  int64_t size() const override { return dataset_->size(); }
  int64_t Length(int64_t i) const override { return dataset_->length(i); }
  double Weight(std::span<const int64_t> indices) const override {
    return WeightOf(*dataset_, class_weights_, indices);
  }
  std::shared_ptr<const void> Make(const BatchInfo& info, const StreamSamples&) const override {
    auto batch = std::make_shared<Batch>(Collate(*dataset_, info.indices));
    if (encoded_.defined()) batch->encoded = RowsOf(encoded_, info.indices);
    SetBatchInfo(*batch, info);
    return batch;
  }

 private:
  std::shared_ptr<const TokenizedDataset> dataset_;
  std::vector<float> class_weights_;
  Tensor encoded_;  // undefined if there is none
};

std::shared_ptr<const BatchSource> MakeTextSource(std::shared_ptr<const TokenizedDataset> dataset,
                                                  const DataLoaderOptions& options) {
  Check(dataset != nullptr, "data_loader", "the dataset is null");
  Check(dataset->sample_weights.empty() || std::ssize(dataset->sample_weights) == dataset->size(),
        "data_loader", "the dataset has ", dataset->size(), " samples but ",
        dataset->sample_weights.size(), " sample weights");
  Check(options.class_weights.empty() || std::ssize(options.class_weights) == dataset->num_labels,
        "data_loader", "the dataset has ", dataset->num_labels, " classes but class_weights has ",
        options.class_weights.size(), " elements");
  return std::make_shared<const TextSource>(std::move(dataset), options.class_weights, Tensor());
}

}  // namespace

DataLoader<Batch>::DataLoader(std::shared_ptr<const TokenizedDataset> dataset,
                              DataLoaderOptions options)
    : LoaderOf<Batch>(MakeTextSource(dataset, options), options), dataset_(std::move(dataset)) {}

DataLoader<Batch>::DataLoader(TokenizedDataset dataset, DataLoaderOptions options)
    : DataLoader(std::make_shared<const TokenizedDataset>(std::move(dataset)), std::move(options)) {
}

const TokenizedDataset& DataLoader<Batch>::dataset() const {
  Check(has_dataset(), "data_loader", "this loader has no TokenizedDataset");
  return *dataset_;
}

void DataLoader<Batch>::SetEncoded(Tensor rows) {
  Check(has_dataset() && rows.ndim() == 2 && rows.dim(0) == num_samples() &&
            rows.dtype() == DType::kF32 && rows.device().is_cpu(),
        "data_loader", "encoded rows must be float32 on the host, one for each of ", num_samples(),
        " samples");
  SetSource(std::make_shared<const TextSource>(dataset_, options().class_weights, std::move(rows)));
}

}  // namespace lathe
