// The outputs of a frozen encoder, which are computed once for all epochs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lathe/data/datasets/dataset.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/models/sequence_classifier.h"

namespace lathe {

struct EncodeOptions {
  std::function<void(int64_t num_batches)> on_begin = {};
  std::function<void()> on_batch = {};  // called after each of num_batches batches
  // The most bytes that the rows may take in each process. -1: a quarter of what is free, divided
  // by the number of processes.
  int64_t most_bytes = -1;
};

struct EncodedSamples {
  // [n, H] f32 on the host: SequenceClassifier::Encode for each of the n samples. Undefined if no
  // pass could use them, if they take too much memory, or if a signal has come.
  Tensor rows;
  bool interrupted = false;
  std::string note;  // for people; says why there are no rows although there could be
};

// Encodes all samples of a model that is training. Which samples share a batch follows from the
// dataset alone. So the rows have the same bits in each run, whatever the number of ranks is. All
// ranks call it together; each computes a part and gets all rows.
EncodedSamples EncodeSamples(Accelerator& accelerator, SequenceClassifier& model,
                             const TokenizedDataset& dataset, const EncodeOptions& options = {});

}  // namespace lathe
