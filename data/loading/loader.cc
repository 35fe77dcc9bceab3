#include "lathe/data/loading/loader.h"

#include <algorithm>

#include "lathe/core/base/error.h"
#include "lathe/core/checkpoint/state_dict.h"
#include "lathe/data/loading/dataset_source.h"
#include "lathe/data/loading/sample_order.h"

namespace lathe {
namespace {

constexpr int64_t kStreamSteps = int64_t{1} << 20;  // of an epoch
constexpr int64_t kMostSamples = int64_t{1} << 40;  // of an epoch, so that no sum overflows
constexpr int kMostWorkers = 1024;

using Order = decltype(Sampler::order);

// Returns a function that does what `order` does, and whose errors name the sampler and the epoch.
Order NamingSampler(Order order) {
  return [order = std::move(order)](uint64_t seed, int64_t epoch) {
    try {
      return order(seed, epoch);
    } catch (...) {
      RethrowAbout("[sampler] the order of epoch " + std::to_string(epoch));
    }
  };
}

}  // namespace

Loader::Loader(std::shared_ptr<const BatchSource> source, DataLoaderOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      global_batch_size_(options_.batch_size) {
  const bool sampler = options_.sampler.order != nullptr;
  const bool orders = options_.shuffle || options_.group_by_length || options_.even_tokens;
  CheckBatchSize("data_loader", options_.batch_size);
  Check(!options_.even_tokens || (!options_.shuffle && !options_.group_by_length), "data_loader",
        "even_tokens cannot be combined with shuffle or group_by_length");
  Check(options_.prefetch >= 0, "data_loader", "prefetch must not be negative but is ",
        options_.prefetch);
  Check(options_.num_workers >= 0 && options_.num_workers <= kMostWorkers, "data_loader",
        "num_workers must be from 0 to ", kMostWorkers, " but is ", options_.num_workers);
  Check(!sampler || !orders, "data_loader",
        "a sampler cannot be combined with shuffle, group_by_length or even_tokens");
  Check(!sampler || options_.sampler.num_samples >= 0, "data_loader",
        "the sampler's num_samples must not be negative but is ", options_.sampler.num_samples);
  Check(options_.shuffle_buffer >= 0, "data_loader", "shuffle_buffer must not be negative but is ",
        options_.shuffle_buffer);
  if (!has_size()) {
    Check(!sampler && !orders, "data_loader",
          "a stream comes in its own order, so it takes no sampler and no shuffle, "
          "group_by_length or even_tokens; shuffle_buffer shuffles it");
    return;
  }
  Check(source_->size() <= kMostSamples && EpochSamples() <= kMostSamples, "data_loader",
        "an epoch may have up to ", kMostSamples, " samples but has ",
        std::max(source_->size(), EpochSamples()));
  Check(options_.shuffle_buffer == 0, "data_loader",
        "shuffle_buffer is for streams; shuffle orders a data set of known size");
  Check(!options_.drop_last || EpochSamples() >= options_.batch_size, "data_loader",
        "drop_last leaves no batch, because the dataset has ", EpochSamples(),
        " samples and batch_size is ", options_.batch_size);
}

Loader::~Loader() {
  if (passes_ != nullptr) std::erase(passes_->loaders, this);
}

int64_t Loader::EpochSamples() const {
  return options_.sampler.order ? options_.sampler.num_samples : source_->size();
}

int64_t Loader::num_samples() const {
  Check(has_size(), "data_loader", "a stream has no number of samples");
  return source_->size();
}

int64_t Loader::size() const {
  Check(has_size(), "data_loader", "a stream has no number of batches");
  const int64_t n = EpochSamples(), b = global_batch_size_;
  return options_.drop_last ? n / b : (n + b - 1) / b;
}

void Loader::Shard(int rank, int world_size, bool split_batches,
                   std::shared_ptr<LoaderPasses> passes) {
  Check(world_size >= 1 && rank >= 0 && rank < world_size, "data_loader", "expected a rank in [0, ",
        world_size, ") but got ", rank);
  const int64_t global_batch_size =
      split_batches ? options_.batch_size : options_.batch_size * world_size;
  Check(!options_.drop_last || !has_size() || EpochSamples() >= global_batch_size, "data_loader",
        "drop_last leaves no batch, because the dataset has ", has_size() ? EpochSamples() : 0,
        " samples and the batch of all ranks has ", global_batch_size);
  rank_ = rank;
  world_size_ = world_size;
  global_batch_size_ = global_batch_size;
  if (passes_ != nullptr) std::erase(passes_->loaders, this);
  passes_ = std::move(passes);
  if (passes_ != nullptr) passes_->loaders.push_back(this);
}

void Loader::SkipFirstBatches(int64_t n) {
  if (has_size()) {
    Check(n >= 0 && n <= size(), "data_loader", "cannot skip ", n, " of ", size(), " batches");
  }
  Check(n >= 0, "data_loader", "cannot skip ", n, " batches");
  skip_ = n;
}

void Loader::LeaveRestTo(Loader& rest, int64_t n) {
  rest.SkipFirstBatches(n);
  rest.rest_ = nullptr;
  given_rest_ = nullptr;
  rest.given_rest_ = std::make_shared<Rest>(Rest{.epoch = rest.epoch_, .batches = n});
  skip_ = 0;
  epoch_ = rest.epoch_ + 1;
  rest_ = rest.given_rest_;
}

lathe::StateDict Loader::StateDict() const {
  int64_t epoch = epoch_, batches = skip_;
  const bool rest_waits = rest_ != nullptr && !rest_->has_begun;
  const auto pass = rest_ != nullptr ? rest_->pass.lock() : pass_.lock();
  if (rest_waits) {
    epoch = rest_->epoch;
    batches = rest_->batches;
  } else if (pass != nullptr && pass->batches_left() > 0) {
    epoch = pass->epoch();
    batches = pass->given();
  } else if (rest_ != nullptr) {
    epoch = std::max(epoch, rest_->epoch + 1);  // the rest is over
  }
  lathe::StateDict state;
  state.values = {
      {"epoch", epoch}, {"batches", batches}, {"samples", batches * global_batch_size_}};
  return state;
}

void Loader::LoadStateDict(const lathe::StateDict& state) {
  const int64_t epoch = state.Get<int64_t>("data_loader", "epoch");
  const int64_t samples = state.Get<int64_t>("data_loader", "samples");
  constexpr int64_t kMost = int64_t{1} << 40;  // so that no product overflows
  Check(epoch >= 0 && epoch <= kMost && samples >= 0 && samples <= kMost, "data_loader",
        "the state's place is after ", epoch, " epochs and ", samples, " samples");
  Check(samples % global_batch_size_ == 0, "data_loader", "the state's place is after ", samples,
        " samples, which are no whole number of batches of ", global_batch_size_);
  SkipFirstBatches(samples / global_batch_size_);
  rest_ = nullptr;
  SetEpoch(epoch);
}

std::shared_ptr<LoaderPass> Loader::Begin() {
  const int64_t epoch = epoch_++;
  const bool known = has_size();
  LoaderPass::Plan plan{.source = source_,
                        .epoch = epoch,
                        .batch_size = global_batch_size_,
                        .first_batch = std::exchange(skip_, 0),
                        .first_step = epoch * (known ? size() : kStreamSteps),
                        .drop_last = options_.drop_last,
                        .shuffle = {options_.shuffle_buffer, options_.seed},
                        .rank = rank_,
                        .world_size = world_size_,
                        .prefetch = options_.prefetch,
                        .num_workers = options_.num_workers};
  if (known) {
    DataLoaderOptions options = options_;
    options.batch_size = global_batch_size_;
    if (options.sampler.order) options.sampler.order = NamingSampler(options.sampler.order);
    std::vector<int64_t> lengths;
    for (int64_t i = 0; NeedsLengths(options) && i < source_->size(); ++i)
      lengths.push_back(source_->Length(i));
    plan.order = SampleOrder(source_->size(), lengths, options, epoch);
    plan.num_batches = size();
  }
  const auto pass = std::make_shared<LoaderPass>(std::move(plan), passes_);
  pass_ = pass;
  rest_ = nullptr;
  if (given_rest_ != nullptr) {
    given_rest_->has_begun = true;
    given_rest_->pass = pass;
    given_rest_ = nullptr;
  }
  return pass;
}

}  // namespace lathe
