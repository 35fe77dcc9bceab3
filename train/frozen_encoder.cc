#include "lathe/train/frozen_encoder.h"

#include <algorithm>
#include <numeric>
#include <span>
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
int64_t MostBytes(const Accelerator& accelerator, const EncodeOptions& options) {
  return options.most_bytes >= 0 ? options.most_bytes
                                 : AvailableMemory() / 4 / accelerator.num_processes();
}

const std::string kRunsInEachEpoch = "note: the frozen encoder runs in each epoch, because ";

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
    if (!encoded.defined()) {  // so it is on all ranks
      result.note = NoteOnDropout(model, samples, dataset);
      return result;
    }
    if (round == 0) {
      const int64_t bytes = dataset.size() * encoded.dim(1) * SizeOf(DType::kF32);
      if (AnyRank(accelerator, bytes > MostBytes(accelerator, options))) {
        result.note = kRunsInEachEpoch + FormatNumber("its outputs would take %.3g GB of memory",
                                                      static_cast<double>(bytes) / 1e9);
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

}  // namespace lathe
