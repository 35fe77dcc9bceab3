#include "lathe/data/datasets/data_loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/core/ops/losses.h"

namespace lathe {

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

}  // namespace

// Takes samples from long to short. Each goes to the share with the fewest tokens so far.
std::vector<int> SplitByTokens(const std::vector<int64_t>& lengths, int parts) {
  std::vector<size_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<int64_t> tokens(static_cast<size_t>(parts));
  std::vector<int> share(lengths.size());
  for (const size_t i : by_length) {
    const auto least = std::min_element(tokens.begin(), tokens.end());
    share[i] = static_cast<int>(least - tokens.begin());
    *least += lengths[i];
  }
  return share;
}

// One epoch's batches, made in order on a thread that stays at most `prefetch` batches ahead. If
// making a batch throws, the caller gets the exception in place of that batch.
struct DataLoader::Iterator::Epoch {
  std::shared_ptr<const TokenizedDataset> dataset;
  std::vector<int64_t> order;
  std::vector<float> class_weights;
  Tensor encoded;
  int64_t batch_size = 0, num_batches = 0, first_step = 0;
  int rank = 0, world_size = 1;
  size_t prefetch = 0;
  int64_t first_batch = 0;
  int64_t taken = 0;    // batches made, if there is no thread
  int64_t yielded = 0;  // batches that the caller has received or skipped
  std::shared_ptr<LoaderPasses> passes;
  std::shared_ptr<LoaderPasses::Entry> entry;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<const Batch>> ready;
  std::exception_ptr error;
  bool done = false;     // the thread makes no more batches
  bool stopped = false;  // the epoch is being destroyed
  std::thread thread;

  ~Epoch() {
    {
      std::lock_guard lock(mutex);
      stopped = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    Withdraw();
  }

  void Withdraw() {
    if (passes == nullptr) return;
    std::erase(passes->entries, entry);
    if (passes->changed && std::uncaught_exceptions() == 0) passes->changed();
    passes = nullptr;
  }

  std::shared_ptr<const Batch> Make(int64_t number) const {
    const int64_t begin = number * batch_size;
    const int64_t end = std::min(begin + batch_size, static_cast<int64_t>(order.size()));
    const std::span<const int64_t> all(order.data() + begin, static_cast<size_t>(end - begin));
    Batch::Share share{.global_size = end - begin,
                       .global_weight = WeightOf(*dataset, class_weights, all)};
    std::vector<int64_t> lengths;
    for (const int64_t i : all) {
      lengths.push_back(dataset->length(i));
      share.global_num_tokens += lengths.back();
    }
    const std::vector<int> rank_of = SplitByTokens(lengths, world_size);
    std::vector<int64_t> mine;
    std::vector<int32_t> places;
    for (size_t i = 0; i < rank_of.size(); ++i) {
      if (rank_of[i] != rank) continue;
      mine.push_back(all[i]);
      places.push_back(static_cast<int32_t>(i));
    }
    share.weight = WeightOf(*dataset, class_weights, mine);
    share.stand_in = mine.empty();
    if (share.stand_in) {
      mine = {all[0]};
      places = {0};
    }
    auto batch = std::make_shared<Batch>(Collate(*dataset, mine));
    if (encoded.defined()) batch->encoded = RowsOf(encoded, mine);
    batch->sample_ids = Tensor::FromVector(places);
    batch->share = share;
    batch->step = first_step + number;
    return batch;
  }

  void Run() {
    std::exception_ptr caught;
    try {
      for (int64_t number = first_batch; number < num_batches; ++number) {
        auto batch = Make(number);
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopped || ready.size() < prefetch; });
        if (stopped) return;
        ready.push_back(std::move(batch));
        changed.notify_all();
      }
    } catch (...) {
      caught = std::current_exception();
    }
    std::lock_guard lock(mutex);
    error = caught;
    done = true;
    changed.notify_all();
  }

  // Returns null after the last batch.
  std::shared_ptr<const Batch> Next() {
    if (prefetch == 0) {
      if (taken == num_batches) return nullptr;
      const int64_t number = taken;
      taken = num_batches;  // if Make throws, the epoch is over, as it is with a thread
      auto batch = Make(number);
      taken = number + 1;
      return batch;
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done || !ready.empty(); });
    if (!ready.empty()) {
      auto batch = std::move(ready.front());
      ready.pop_front();
      changed.notify_all();
      return batch;
    }
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    return nullptr;
  }
};

void DataLoader::Iterator::Take() {
  batch_ = nullptr;
  if (epoch_ == nullptr) return;
  if (epoch_->passes != nullptr && epoch_->passes->before_batch) epoch_->passes->before_batch();
  batch_ = epoch_->Next();
  if (batch_ != nullptr) ++epoch_->yielded;
  if (epoch_->entry == nullptr) return;
  epoch_->entry->batch = batch_;
  if (epoch_->passes != nullptr) epoch_->entry->last_batch_at = ++epoch_->passes->clock;
  epoch_->entry->batches_left = epoch_->num_batches - epoch_->yielded;
  if (batch_ == nullptr) epoch_->Withdraw();
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  Take();
  return *this;
}

DataLoader::DataLoader(std::shared_ptr<const TokenizedDataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(std::move(options)),
      global_batch_size_(options.batch_size) {
  Check(dataset_ != nullptr, "data_loader", "the dataset is null");
  Check(options_.batch_size > 0, "data_loader", "batch_size must be positive but is ",
        options_.batch_size);
  Check(!options_.even_tokens || (!options_.shuffle && !options_.group_by_length), "data_loader",
        "even_tokens cannot be combined with shuffle or group_by_length");
  Check(options_.prefetch >= 0, "data_loader", "prefetch must not be negative but is ",
        options_.prefetch);
  Check(
      dataset_->sample_weights.empty() || std::ssize(dataset_->sample_weights) == dataset_->size(),
      "data_loader", "the dataset has ", dataset_->size(), " samples but ",
      dataset_->sample_weights.size(), " sample weights");
  Check(
      options_.class_weights.empty() || std::ssize(options_.class_weights) == dataset_->num_labels,
      "data_loader", "the dataset has ", dataset_->num_labels, " classes but class_weights has ",
      options_.class_weights.size(), " elements");
  Check(!options_.drop_last || dataset_->size() >= options_.batch_size, "data_loader",
        "drop_last leaves no batch, because the dataset has ", dataset_->size(),
        " samples and batch_size is ", options_.batch_size);
}

DataLoader::DataLoader(TokenizedDataset dataset, DataLoaderOptions options)
    : DataLoader(std::make_shared<const TokenizedDataset>(std::move(dataset)), options) {}

DataLoader::~DataLoader() {
  if (passes_ != nullptr) std::erase(passes_->loaders, this);
}

void DataLoader::Shard(int rank, int world_size, bool split_batches,
                       std::shared_ptr<LoaderPasses> passes) {
  Check(world_size >= 1 && rank >= 0 && rank < world_size, "data_loader", "expected a rank in [0, ",
        world_size, ") but got ", rank);
  const int64_t global_batch_size =
      split_batches ? options_.batch_size : options_.batch_size * world_size;
  Check(!options_.drop_last || dataset_->size() >= global_batch_size, "data_loader",
        "drop_last leaves no batch, because the dataset has ", dataset_->size(),
        " samples and the batch of all ranks has ", global_batch_size);
  rank_ = rank;
  world_size_ = world_size;
  global_batch_size_ = global_batch_size;
  if (passes_ != nullptr) std::erase(passes_->loaders, this);
  passes_ = std::move(passes);
  if (passes_ != nullptr) passes_->loaders.push_back(this);
}

void DataLoader::SetEncoded(Tensor rows) {
  Check(rows.ndim() == 2 && rows.dim(0) == num_samples() && rows.dtype() == DType::kF32 &&
            rows.device().is_cpu(),
        "data_loader", "encoded rows must be float32 on the host, one for each of ", num_samples(),
        " samples");
  encoded_ = std::move(rows);
}

void DataLoader::SkipFirstBatches(int64_t n) {
  Check(n >= 0 && n <= size(), "data_loader", "cannot skip ", n, " of ", size(), " batches");
  skip_ = n;
}

lathe::StateDict DataLoader::StateDict() const {
  int64_t epoch = epoch_, batches = skip_;
  if (const auto pass = pass_.lock(); pass != nullptr && pass->yielded < pass->num_batches) {
    epoch = pass->first_step / std::max<int64_t>(1, pass->num_batches);
    batches = pass->yielded;
  }
  lathe::StateDict state;
  state.values = {
      {"epoch", epoch}, {"batches", batches}, {"samples", batches * global_batch_size_}};
  return state;
}

void DataLoader::LoadStateDict(const lathe::StateDict& state) {
  const int64_t epoch = state.Get<int64_t>("data_loader", "epoch");
  const int64_t samples = state.Get<int64_t>("data_loader", "samples");
  constexpr int64_t kMost = int64_t{1} << 40;  // so that no product overflows
  Check(epoch >= 0 && epoch <= kMost && samples >= 0 && samples <= kMost, "data_loader",
        "the state's place is after ", epoch, " epochs and ", samples, " samples");
  Check(samples % global_batch_size_ == 0, "data_loader", "the state's place is after ", samples,
        " samples, which are no whole number of batches of ", global_batch_size_);
  SkipFirstBatches(samples / global_batch_size_);
  SetEpoch(epoch);
}

int64_t DataLoader::size() const {
  const int64_t n = num_samples(), b = global_batch_size_;
  return options_.drop_last ? n / b : (n + b - 1) / b;
}

DataLoader::Iterator DataLoader::begin() {
  const int64_t number = epoch_++;
  auto epoch = std::make_shared<Iterator::Epoch>();
  epoch->dataset = dataset_;
  DataLoaderOptions options = options_;
  options.batch_size = global_batch_size_;
  epoch->order = SampleOrder(*dataset_, options, number);
  epoch->class_weights = options_.class_weights;
  epoch->encoded = encoded_;
  epoch->batch_size = global_batch_size_;
  epoch->rank = rank_;
  epoch->world_size = world_size_;
  epoch->num_batches = size();
  epoch->first_step = number * size();
  epoch->first_batch = epoch->taken = epoch->yielded = std::exchange(skip_, 0);
  if (passes_ != nullptr) {
    epoch->passes = passes_;
    epoch->entry = std::make_shared<LoaderPasses::Entry>();
    epoch->entry->began_at = ++passes_->clock;
    passes_->entries.push_back(epoch->entry);
    if (passes_->changed) passes_->changed();
  }
  epoch->prefetch = static_cast<size_t>(options_.prefetch);
  if (epoch->prefetch > 0) epoch->thread = std::thread([&p = *epoch] { p.Run(); });
  pass_ = epoch;
  Iterator iterator;
  iterator.epoch_ = std::move(epoch);
  iterator.Take();
  return iterator;
}

}  // namespace lathe
