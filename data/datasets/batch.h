// Batch: a packed mini-batch. It has no padding: the tokens of all sequences follow each other, and
// cu_seqlens holds the row at which each sequence starts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lathe/core/tensor.h"
#include "lathe/data/loading/batch_info.h"

namespace lathe {

struct DeviceBatch;  // data/datasets/device_batch.h

// What a forward pass tells the code that runs it.
struct PassNotes {
  // The last loss that ClassificationLoss has returned in the pass, or null. It does not count
  // surplus sequences (DeviceBatch). BatchPasses checks whether the pass's loss is this one.
  std::weak_ptr<const TensorImpl> loss_without_surplus;
};

struct Batch {
  Tensor input_ids;            // [T] i32
  Tensor token_type_ids;       // [T] i32; zeros if the tokenizer makes none
  Tensor position_ids;         // [T] i32: 0, 1, ... in each sequence, or columns (FromPadded)
  Tensor cu_seqlens;           // [B+1] i32: sequence b is rows cu_seqlens[b] .. cu_seqlens[b+1]
  Tensor sample_ids;           // [B] i32: the sample's place in the global batch; keys its dropout
  Tensor labels;               // [B] i64 classes, [B] f32 scores, [B, num_labels] f32, or undefined
  Tensor sample_weights = {};  // [B] f32: how much each counts in the loss; undefined: all alike
  // [B, H] f32: what the head reads of each sequence (SequenceClassifier::Encode), if it is known
  // already; undefined: the model computes it.
  Tensor encoded = {};
  std::vector<int64_t> indices;  // [B] the place of each sample in the dataset; may be empty
  int64_t max_seqlen = 0;
  // B and T above count this rank's share of the global batch only. A DataLoader sets `share`.
  using Share = BatchShare;
  std::optional<Share> share;  // not set by Pack and FromPadded
  // The number of the batch since training began; keys dropout. If -1, the model counts by itself.
  int64_t step = -1;

  // The same batch on the device where the model computes. If it is null, the model copies this
  // one.
  std::shared_ptr<const DeviceBatch> on_device = {};
  // Where the pass over this batch leaves its notes; null if nobody reads them. A pass takes the
  // batch as const and writes to `notes` all the same.
  std::shared_ptr<PassNotes> notes = {};

  // Writes the sample_ids of the T rows to `rows`: each row gets that of its sequence.
  void FillRowSamples(int32_t* rows) const;

  // Returns the same batch with its tensors on the device, for models of one's own that read them.
  // Lathe's models take either, but they check the host's tensors, and copy them to the device in
  // one piece. So they first bring a batch back from a device, which makes the host wait.
  Batch To(Device device) const;
  // Returns true if all tensors lie on the host.
  bool is_on_host() const;
  // Loaders leave batches on the host.
  static constexpr bool kStaysOnHost = true;

  int64_t size() const { return cu_seqlens.dim(0) - 1; }   // B
  int64_t num_tokens() const { return input_ids.dim(0); }  // T; there is no padding

  // Packs padded tensors of shape [B, S], i32 or i64. Keeps the tokens whose attention_mask is not
  // zero; padding may be anywhere. token_type_ids may be undefined. A token's position is its
  // column, as in Transformers' BERT. Throws if a row keeps no token.
  static Batch FromPadded(const Tensor& input_ids, const Tensor& attention_mask,
                          const Tensor& token_type_ids = {}, const Tensor& labels = {});

  // Packs sequences that are given one by one. An empty token_types means type 0 for all tokens.
  static Batch Pack(const std::vector<std::vector<int32_t>>& sequences,
                    const std::vector<std::vector<int32_t>>& token_types = {}, Tensor labels = {});
};

// Sets what a loader knows: indices, share, step and sample_ids. If the batch has k sequences for
// each sample, those of the sample in place i get the sample_ids k * i to k * i + k - 1. If their
// number is no multiple of the samples', sample_ids stay as they are.
void SetBatchInfo(Batch& batch, const BatchInfo& info);

}  // namespace lathe
