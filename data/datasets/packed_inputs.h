// PackedInputs: the tensors of a batch on the device where the model computes. One copy brings them
// there, filled up to a number of rows.
#pragma once

#include <cstdint>
#include <memory>

#include "lathe/data/datasets/batch.h"

namespace lathe {

struct PackedInputs {
  // All tensors are on one device, in one buffer. Rows from T on are zeros, and belong to no
  // sequence or to a surplus sequence. The surplus sequences B to S - 1 have one row each. Their
  // class is kIgnoreIndex; labels of other kinds are zeros.
  Tensor input_ids, token_type_ids;   // [rows] i32
  Tensor row_positions, row_samples;  // [rows] i32: the token's position; its Batch::sample_ids
  Tensor cu_seqlens;                  // [S+1] i32
  Tensor sample_ids;                  // [S] i32
  Tensor first_positions;             // [S] i32 zeros: positions of first tokens, for dropout
  Tensor num_sequences;               // [1] i32: B, without surplus sequences
  Tensor step;                        // [1] i32: keys dropout
  Tensor grad_seed;                   // [] f32: the loss's gradient, for recorded passes
  Tensor labels;                      // as in the batch, but integers are i64; may be undefined
  int64_t max_seqlen = 0;             // the longest sequence of the batch, or more

  // Makes the inputs of `batch`. `rows` is at least T, plus one for each surplus sequence.
  // `sequences` is S, at least B; 0 means B.
  static PackedInputs Make(const Batch& batch, int64_t rows, Device device, uint32_t step,
                           int64_t sequences = 0);
  // Returns true if Fill accepts this batch.
  bool Fits(const Batch& batch) const;
  // Fills the same tensors with another batch, of at most as many sequences and labels of the same
  // kind. Throws unless Fits(batch). The copy to a device is made beside its work and takes effect
  // after it.
  void Fill(const Batch& batch, uint32_t step, float grad_seed = 1);

 private:
  Tensor buffer_;  // [bytes] u8
};

}  // namespace lathe
