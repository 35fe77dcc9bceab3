// The outputs of a frozen encoder, which are computed once for all epochs, and once for all
// evaluations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
// dataset alone. So the rows have the same bits in each run with the same number of threads a rank,
// whatever the number of ranks is. All ranks call it together; each computes a part and gets all
// rows.
EncodedSamples EncodeSamples(Accelerator& accelerator, SequenceClassifier& model,
                             const TokenizedDataset& dataset, const EncodeOptions& options = {});

// The encoder's outputs for the batches of an evaluation. The first evaluation keeps them, and
// later ones on the same data, in batches of the same size, use them. The batches are the same each
// time, so all evaluations have the bits that they have without this. Each rank decides by itself.
// For a model whose encoder is trained, this does nothing.
//
//   KeptEncodings encodings;
//   Evaluate(accelerator, model, dataset, {.encodings = &encodings});  // for each evaluation
class KeptEncodings {
 public:
  // `most_bytes` as in EncodeOptions.
  explicit KeptEncodings(int64_t most_bytes = -1) : most_bytes_(most_bytes) {}

  // Begins an evaluation, whose batches come from an unshuffled loader.
  void Begin(const Accelerator& accelerator, std::shared_ptr<const TokenizedDataset> dataset,
             int64_t batch_size);
  // Returns the evaluation's next batch, with Batch::encoded if the model can use it. The model is
  // in evaluation mode.
  Batch Complete(SequenceClassifier& model, const Batch& batch);
  // Ends an evaluation of all batches. One that ends earlier keeps nothing.
  void End() { is_whole_ = true; }
  // For people; says why nothing is kept although it could be. "" if there is nothing to say.
  const std::string& note() const { return note_; }

 private:
  // Decides by the first batch's rows whether there is room for those of all batches.
  bool HasRoomFor(const Tensor& encoded);

  int64_t most_bytes_;
  const Accelerator* accelerator_ = nullptr;  // of the present evaluation
  std::shared_ptr<const TokenizedDataset> dataset_;
  int64_t batch_size_ = 0;
  std::vector<Tensor> batches_;  // [B, H] f32 on the host, of this rank's batches
  size_t next_ = 0;              // the number of the batch that comes next
  bool is_whole_ = false;        // `batches_` has all that there are
  bool keeps_ = false;           // it may have more
  std::string note_;
};

}  // namespace lathe
