#include "lathe/train/frozen_encoder.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lathe/data/datasets/data_loader.h"
#include "lathe/train/checkpoint/available_memory.h"
#include "lathe/train/support/interrupt.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

constexpr int64_t kBatchSize = 32;

// Returns the samples from long to short, so that those of a batch have similar lengths.
std::vector<int64_t> ByLength(const TokenizedDataset& dataset) {
  std::vector<int64_t> order(static_cast<size_t>(dataset.size()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return dataset.length(a) > dataset.length(b); });
  return order;
}

// Returns whether any rank says yes.
bool AnyRank(Accelerator& accelerator, bool yes) {
  return accelerator.Reduce(Tensor::FromVector<int64_t>({yes ? 1 : 0})).Item() != 0;
}

// Returns the bytes that the rows may take in this process. Others may run on the same machine.
int64_t MostBytes(const Accelerator& accelerator, int64_t most_bytes) {
  return most_bytes >= 0 ? most_bytes : AvailableMemory() / 4 / accelerator.num_processes();
}

const std::string kRunsInEachEpoch = "note: the frozen encoder runs in each epoch, because ";

std::string NeedsMemory(int64_t bytes) {
  return FormatNumber("its outputs would take %.3g GB of memory", static_cast<double>(bytes) / 1e9);
}

// Returns a note if dropout alone makes the samples' rows differ from pass to pass; else "".
std::string NoteOnDropout(SequenceClassifier& model, const std::vector<int64_t>& samples,
                          const TokenizedDataset& dataset) {
  model.Eval();
  const bool same_without = model.Encode(Collate(dataset, samples)).defined();
  model.Train();
  return same_without ? kRunsInEachEpoch +
                            "its dropout is active; rates of 0 in the model's configuration "
                            "(config_overrides) let it run once for all epochs"
                      : "";
}

}  // namespace

EncodedSamples EncodeSamples(Accelerator& accelerator, SequenceClassifier& model,
                             const TokenizedDataset& dataset, const EncodeOptions& options) {
  EncodedSamples result;
  if (dataset.size() == 0) return result;
  const std::vector<int64_t> order = ByLength(dataset);
  const int64_t num_batches = (dataset.size() + kBatchSize - 1) / kBatchSize;
  const int64_t world = accelerator.num_processes(), rank = accelerator.process_index();
  const int64_t rounds = (num_batches + world - 1) / world;
  for (int64_t round = 0; round < rounds; ++round) {
    // In the last round, ranks without a batch compute the last one, too.
    const int64_t begin = std::min(round * world + rank, num_batches - 1) * kBatchSize;
    const int64_t end = std::min(begin + kBatchSize, dataset.size());
    const std::vector<int64_t> samples(order.begin() + begin, order.begin() + end);
    const Tensor encoded = model.Encode(Collate(dataset, samples));
    if (!encoded.defined()) {  // all ranks find the same
      result.note = NoteOnDropout(model, samples, dataset);
      return result;
    }
    if (round == 0) {
      const int64_t bytes = dataset.size() * encoded.dim(1) * SizeOf(DType::kF32);
      if (AnyRank(accelerator, bytes > MostBytes(accelerator, options.most_bytes))) {
        result.note = kRunsInEachEpoch + NeedsMemory(bytes);
        return result;
      }
      result.rows = Tensor::Empty({dataset.size(), encoded.dim(1)}, DType::kF32);
      if (options.on_begin) options.on_begin(rounds);
    }
    const Tensor rows = accelerator.Gather(encoded.To(Device{}));
    const Tensor places = accelerator.Gather(Tensor::FromVector(samples));
    const auto width = static_cast<size_t>(rows.dim(1));
    for (int64_t i = 0; i < places.numel(); ++i) {
      std::copy_n(
          rows.data<float>() + static_cast<size_t>(i) * width, width,
          result.rows.data<float>() + static_cast<size_t>(places.data<int64_t>()[i]) * width);
    }
    if (options.on_batch) options.on_batch();
    if (AnyRank(accelerator, Interrupted())) return {.rows = {}, .interrupted = true, .note = {}};
  }
  return result;
}

void KeptEncodings::Begin(const Accelerator& accelerator,
                          std::shared_ptr<const TokenizedDataset> dataset, int64_t batch_size) {
  const bool are_the_same = dataset_ == dataset && batch_size_ == batch_size;
  accelerator_ = &accelerator;
  dataset_ = std::move(dataset);
  batch_size_ = batch_size;
  next_ = 0;
  if (is_whole_ && are_the_same) return;
  batches_.clear();
  keeps_ = true;
  is_whole_ = false;
}

bool KeptEncodings::HasRoomFor(const Tensor& encoded) {
  const int64_t world = accelerator_->num_processes();
  const int64_t rows = (dataset_->size() + world - 1) / world;  // about as many for each rank
  const int64_t bytes = rows * encoded.dim(1) * SizeOf(DType::kF32);
  if (bytes <= MostBytes(*accelerator_, most_bytes_)) return true;
  note_ = "note: the frozen encoder runs in each evaluation, because " + NeedsMemory(bytes);
  return false;
}

Batch KeptEncodings::Complete(SequenceClassifier& model, const Batch& batch) {
  const size_t number = next_++;
  Batch completed = batch;
  if (is_whole_) {
    if (number < batches_.size()) completed.encoded = batches_[number];
    return completed;
  }
  if (!keeps_) return completed;
  const Tensor encoded = model.Encode(batch);
  keeps_ = encoded.defined() && (number > 0 || HasRoomFor(encoded));
  if (!keeps_) return completed;
  // A copy, because the tensor may be a small part of its memory.
  batches_.push_back(encoded.device().is_cpu() ? encoded.Clone() : encoded.To(Device{}));
  completed.encoded = batches_.back();
  return completed;
}

}  // namespace lathe
