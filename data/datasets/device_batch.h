// DeviceBatch: the tensors of a batch on the device where the model computes. One copy brings them
// there, filled up to a number of rows.
//
//   DeviceBatch inputs = DeviceBatch::Make(batch, rows, device, step);
//
// The two halves of Make may be used alone, such as for one buffer and many batches in turn:
//
//   const Tensor numbers = DeviceBatch::Pack(batch, shape, step);  // on the host
//   DeviceBatch inputs = DeviceBatch::In(copy_on_device, batch, shape);
#pragma once

#include <cstdint>

#include "lathe/data/datasets/batch.h"

namespace lathe {

// The sizes to which the inputs of a batch are filled up.
struct PackedShape {
  int64_t rows;        // at least T, plus one for each surplus sequence
  int64_t sequences;   // S, at least B
  int64_t max_seqlen;  // the longest sequence of the batch, or more
};

struct DeviceBatch {
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
  Tensor sample_weights;              // [S] f32, 0 for surplus sequences; undefined as the batch's
  Tensor encoded;          // [S, H] f32, 0 for surplus sequences; undefined as the batch's
  int64_t max_seqlen = 0;  // that of the shape

  // Makes the inputs of `batch`, without surplus sequences. The copy to a device is made beside its
  // work and takes effect after it.
  static DeviceBatch Make(const Batch& batch, int64_t rows, Device device, uint32_t step);

  // Returns the numbers of all tensors, one tensor after another: [bytes] u8 on the host. Throws
  // unless the batch fits into the shape.
  static Tensor Pack(const Batch& batch, const PackedShape& shape, uint32_t step,
                     float grad_seed = 1);
  // Returns the tensors that lie in `buffer`, which has what Pack returned. All batches of one
  // shape with labels of one kind have their tensors at the same places.
  static DeviceBatch In(const Tensor& buffer, const Batch& batch, const PackedShape& shape);
};

}  // namespace lathe
