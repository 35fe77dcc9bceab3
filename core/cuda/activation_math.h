// Activation functions for the device's kernels.
#pragma once

#include <cmath>

#include "lathe/core/kernels/activation_functions.h"

namespace lathe::cuda {

struct DeviceMath {
  template <typename T>
  static constexpr T Exp(T x) {
    return std::exp(x);
  }
  template <typename T>
  static constexpr T Erf(T x) {
    return std::erf(x);
  }
  template <typename T>
  static constexpr T Tanh(T x) {
    return std::tanh(x);
  }
  // The device's slope is rounded twice, the host's once, so their last bits differ. Making them
  // equal would change the bits of trained models.
  template <typename T>
  static constexpr T kGeluNewSlope = 3 * T(kGeluNewCubic);
};
using DeviceFunctions = ActivationFunctions<DeviceMath>;

}  // namespace lathe::cuda
