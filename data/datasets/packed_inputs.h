// The numbers of a batch where a model computes: copied there at once, filled up to a number of
// rows.
#pragma once

#include <cstdint>
#include <memory>

#include "lathe/data/datasets/batch.h"

namespace lathe {

struct PackedInputs {
  // All on one device, in one buffer. Rows from T on are zeros and belong to no sequence, or to
  // surplus sequences: those from B on to S, of one row each, whose class is -100 or whose other
  // labels are zeros.
  Tensor input_ids, token_type_ids;   // [rows] i32
  Tensor row_positions, row_samples;  // [rows] i32: the token's position; its Batch::sample_ids
  Tensor cu_seqlens;                  // [S+1] i32
  Tensor sample_ids;                  // [S] i32
  Tensor first_positions;             // [S] i32, zeros: those of first tokens
  Tensor num_sequences;               // [1] i32: B
  Tensor step;                        // [1] i32: keys dropout
  Tensor grad_seed;                   // [] f32: the gradient of the loss, for recorded passes
  Tensor labels;                      // as in the batch, but integers are i64; or undefined
  int64_t max_seqlen = 0;             // at least the batch's

  // The last loss that was computed from these with surplus sequences left out, if one was.
  mutable std::weak_ptr<const TensorImpl> loss_without_surplus;

  // sequences: at least B; 0: B. rows: at least T, and one more for each surplus sequence.
  static PackedInputs Make(const Batch& batch, int64_t rows, Device device, uint32_t step,
                           int64_t sequences = 0);
  // Whether Fill takes this batch.
  bool Fits(const Batch& batch) const;
  // The same tensors for another batch of up to as many sequences and the like labels. The copy is
  // made beside the device's work and takes effect behind it.
  void Fill(const Batch& batch, uint32_t step, float grad_seed = 1);

 private:
  Tensor buffer_;  // [bytes] u8
};

}  // namespace lathe
