// What the losses with weights share. For their sources.
#pragma once

#include <cstdint>
#include <vector>

#include "lathe/core/ops/dispatch.h"
#include "lathe/core/tensor.h"

namespace lathe::weighted {

// Returns the weights' elements, or null for weights that are all 1.
inline const float* DataOf(const Tensor& weights) {
  return weights.defined() ? weights.data<float>() : nullptr;
}

inline double At(const float* weights, int64_t i) { return weights == nullptr ? 1.0 : weights[i]; }

// Returns what divides the sum of losses whose weights add up to `weight`.
inline double DivisorOf(double weight) { return weight > 0 ? weight : 1; }

// Throws unless the weights are undefined or n float32 on the device of `x`.
inline void CheckWeights(const char* op, const char* name, const Tensor& weights, int64_t n,
                         const Tensor& x) {
  if (!weights.defined()) return;
  Check(weights.shape() == Shape{n} && weights.dtype() == DType::kF32, op, name,
        " must have shape [", n, "] float32 but have ", weights.shape(), " ",
        ToString(weights.dtype()));
  CheckSameDevice(op, x.device(), {weights});
}

// Throws unless the loss can be computed of numbers like these.
inline void CheckNumbers(const char* op, const Tensor& x) {
  const bool on_host = x.device().is_cpu();
  Check(on_host ? IsFloating(x.dtype()) : MathDType(x.dtype()) == DType::kF32, op,
        "expected float32 on ", ToString(x.device()), " but got ", ToString(x.dtype()));
}

// Returns the sum of the rows' losses, in their order.
inline double SumOf(const std::vector<double>& rows) {
  double sum = 0;
  for (const double row : rows) sum += row;
  return sum;
}

// Calls body(i) for each row i, on several threads if there is much to do.
template <typename Body>
void ForEachRow(int64_t rows, int64_t columns, Body body) {
#pragma omp parallel for schedule(static) if (rows * columns > kParallelSize)
  for (int64_t i = 0; i < rows; ++i) body(i);
}

// Returns the product of row weights and column weights as a constant: [rows, columns].
inline Tensor Outer(const Tensor& of_rows, const Tensor& of_columns, int64_t rows, int64_t columns,
                    DType dtype) {
  std::vector<double> products;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < columns; ++c)
      products.push_back(At(DataOf(of_rows), i) * At(DataOf(of_columns), c));
  }
  return Tensor::FromVector(products, {rows, columns}).To(dtype);
}

}  // namespace lathe::weighted
