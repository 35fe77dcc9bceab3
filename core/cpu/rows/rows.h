// Sums, maxima and softmax of rows, on one thread. Rows are contiguous unless a stride is given.
#pragma once

#include <cstdint>

#include "lathe/core/cpu/convert.h"

namespace lathe::cpu {

struct RowKernels {
  template <typename T>
  struct ForType {
    // Returns the sum of x: (n), added up in double. The order depends on n alone.
    double (*sum)(const T* x, int64_t n);
    // Adds the sum of each column of x, (rows, n) with row stride ld, to sums: (n). Each column's
    // additions have the rows' order, but narrow ones with ld = n: there several rows are taken as
    // one at first.
    void (*add_columns)(MathType<T>* sums, const T* x, int64_t rows, int64_t n, int64_t ld);
    // Writes the first largest or smallest element of each of `n` columns of x, (rows, n) with row
    // stride ld, or its first NaN, to values: (n). Writes its row to `indices`, unless null. There
    // are less than 2^31 rows.
    void (*extremes)(T* values, int64_t* indices, const T* x, int64_t rows, int64_t n, int64_t ld,
                     bool largest);
  };
  // The softmax of each row, its logarithm, and their gradients. All are (rows, n). y is not x.
  template <typename T>
  struct Softmax {
    void (*softmax)(T* y, const T* x, int64_t rows, int64_t n);
    void (*log_softmax)(T* y, const T* x, int64_t rows, int64_t n);
    // dx = y (dy - sum dy y)
    void (*softmax_grad)(T* dx, const T* dy, const T* y, int64_t rows, int64_t n);
    // dx = dy - e^y sum dy
    void (*log_softmax_grad)(T* dx, const T* dy, const T* y, int64_t rows, int64_t n);
  };
  ForType<float> f32;
  ForType<double> f64;
  ForType<BFloat16> bf16;
  ForType<Float16> f16 = {};  // null on the host
  Softmax<float> softmax_f32;
  Softmax<double> softmax_f64;
};

}  // namespace lathe::cpu
