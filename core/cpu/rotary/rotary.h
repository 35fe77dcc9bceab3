// Rotary positions: pairs of a head's columns turned by angles that depend on the row's position
// (Su et al. 2021). For columns a and b of pair i and the angle t of that pair:
//   y_a = x_a cos t - x_b sin t;  y_b = x_b cos t + x_a sin t
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

struct RotaryArgs {
  int64_t rows, heads, head_dim;  // of x; head_dim is even
  // (table_rows, head_dim): row p has the sines of position p, one for each pair, then the cosines.
  const float* table;
  int64_t table_rows;
  const int32_t* positions;  // (num_positions): row r has position positions[r % num_positions]
  int64_t num_positions;
  bool neighbours;  // pair i is columns 2 i and 2 i + 1; else columns i and i + head_dim / 2
  bool back;        // turns by -t, which is the gradient of turning by t
};

struct RotaryKernels {
  template <typename T>
  struct ForType {
    // y: (rows, heads * head_dim); y may be x. On the host positions are inside the table. On a
    // device the row of any other position is NaN.
    void (*turn)(T* y, const T* x, const RotaryArgs& args);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
};

}  // namespace lathe::cpu
