// The numbers of a batch where a model computes: copied there at once, filled up to a number of
// rows.
#pragma once

#include <cstdint>

#include "lathe/data/batch.h"

namespace lathe {

struct PackedInputs {
  // All on one device, in one buffer. Rows from T on are zeros and belong to no sequence.
  Tensor input_ids, token_type_ids;   // [rows] i32
  Tensor row_positions, row_samples;  // [rows] i32: the token's position; its Batch::sample_ids
  Tensor cu_seqlens;                  // [B+1] i32
  Tensor sample_ids;                  // [B] i32
  Tensor first_positions;             // [B] i32, zeros: those of first tokens
  Tensor step;                        // [1] i32: keys dropout
  Tensor grad_seed;                   // [] f32: the gradient of the loss, for recorded passes
  Tensor labels;                      // as in the batch, but integers are i64; or undefined
  int64_t max_seqlen = 0;             // at least the batch's

  // rows: at least T.
  static PackedInputs Make(const Batch& batch, int64_t rows, Device device, uint32_t step);
  // Whether Fill takes this batch.
  bool Fits(const Batch& batch) const;
  // The same tensors for another batch of as many sequences and the like labels. The copy is made
  // beside the device's work and takes effect behind it.
  void Fill(const Batch& batch, uint32_t step, float grad_seed = 1);

 private:
  Tensor buffer_;  // [bytes] u8
};

}  // namespace lathe
