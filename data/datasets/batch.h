// Batch: a packed mini-batch. There is no padding: tokens of all sequences follow each other, and
// cu_seqlens says where each starts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

struct PackedInputs;  // data/datasets/packed_inputs.h

struct Batch {
  Tensor input_ids;       // [T] i32
  Tensor token_type_ids;  // [T] i32; zeros where the tokenizer makes none
  Tensor position_ids;    // [T] i32: 0, 1, ... in each sequence, or columns (FromPadded)
  Tensor cu_seqlens;      // [B+1] i32: sequence b is rows cu_seqlens[b] .. cu_seqlens[b+1]
  Tensor sample_ids;      // [B] i32: the sample's place in the global batch; keys its dropout masks
  Tensor labels;          // [B] i64 classes, [B] f32 scores, [B, num_labels] f32, or undefined
  std::vector<int64_t> indices;  // [B] place of each sample in the dataset; may be empty
  int64_t max_seqlen = 0;
  // What a loader says of a batch that processes share. B and T are of this process's share.
  struct Whole {
    int64_t size = 0, num_tokens = 0;  // of all shares
    // Samples that count in a mean loss (those whose class is not -100): in this share, in all.
    double weight = 0, total_weight = 0;
    // The share is empty, and a sample of another process's stands in for it, with weight 0: what
    // the loop does on all processes is done here, too, and counts nowhere.
    bool stand_in = false;
  };
  std::optional<Whole> whole;  // not set by Pack and FromPadded
  int64_t step =
      -1;  // number of the batch since training began, keys dropout; -1: the model counts

  // The same where the model computes. Models take what is here; where there is nothing, they copy.
  std::shared_ptr<const PackedInputs> inputs = {};

  int64_t size() const { return cu_seqlens.dim(0) - 1; }   // B
  int64_t num_tokens() const { return input_ids.dim(0); }  // T, real ones: there are no others

  // Packs padded tensors: input_ids, attention_mask (nonzero keeps; padding anywhere) and
  // token_type_ids (may be undefined) are [B, S], i32 or i64. A token's position is its column, as
  // in Transformers' BERT. Throws if a row keeps no token.
  static Batch FromPadded(const Tensor& input_ids, const Tensor& attention_mask,
                          const Tensor& token_type_ids = {}, const Tensor& labels = {});

  // Packs sequences given one by one; token_types may be empty (all 0).
  static Batch Pack(const std::vector<std::vector<int32_t>>& sequences,
                    const std::vector<std::vector<int32_t>>& token_types = {}, Tensor labels = {});
};

}  // namespace lathe
