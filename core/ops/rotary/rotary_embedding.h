// Rotary positions (Su et al. 2021, "RoFormer"). Queries and keys are turned by angles that grow
// with their positions. So the product of a query and a key depends on their distance alone.
//
//   const Tensor table = RotaryTable(512, RotaryFrequencies(64, 10000));
//   q = RotaryEmbedding(std::move(q), table, positions, {.num_heads = 12});
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/core/tensor.h"

namespace lathe {

// The columns of a head that are turned together, by one angle.
enum class RotaryPairs : uint8_t {
  kHalves,      // column i and column i + d / 2, as in GPT-NeoX and ModernBERT
  kNeighbours,  // columns 2 i and 2 i + 1, as in RoFormer
};

struct RotaryOptions {
  int64_t num_heads = 1;
  RotaryPairs pairs = RotaryPairs::kHalves;
  // The rows that are turned; all others stay as they are. -1: up to the last row. So one call can
  // turn the keys that lie above or below values.
  int64_t begin = 0, end = -1;
};

// Returns the frequencies theta^(-2 i / head_dim) for i from 0 to head_dim / 2 - 1. Each operation
// is rounded to float32, as in Transformers. Throws unless head_dim is positive and even, and theta
// positive and finite.
std::vector<float> RotaryFrequencies(int64_t head_dim, double theta);

// Returns the sines and cosines of the positions from 0 to num_positions - 1: [num_positions, d]
// f32 on the host, with d = 2 * frequencies.size(). Row p has the sines of the angles
// p * frequencies[i], then their cosines. The angles are rounded to float32, as in Transformers.
Tensor RotaryTable(int64_t num_positions, const std::vector<float>& frequencies);

// Returns x with the rows from options.begin to options.end turned: for columns a and b of pair i,
//   y_a = x_a cos - x_b sin;  y_b = x_b cos + x_a sin
// x: [N, H], float32 or bfloat16, on the host also float64, on a device also float16.
// positions: [P] i32. The r-th of the turned rows has position positions[r % P], and P divides the
// number of turned rows.
// table: [R, H / num_heads] f32, as RotaryTable returns it, without a gradient. It may also hold
// trained numbers: nothing relies on sin^2 + cos^2 = 1.
// Computes in float32, or in float64 if x is that.
//
// The result takes the place of x if the caller moves x in and nothing else holds its memory. So
// does the gradient. Throws for shapes, dtypes and devices that do not fit, and for a position
// outside the table. Positions on a device are not checked: one outside the table gives a row of
// NaN.
Tensor RotaryEmbedding(Tensor x, const Tensor& table, const Tensor& positions,
                       const RotaryOptions& options);

// Composes the same of single ops: documentation and test oracle.
Tensor RotaryEmbeddingComposed(const Tensor& x, const Tensor& table, const Tensor& positions,
                               const RotaryOptions& options);

}  // namespace lathe
