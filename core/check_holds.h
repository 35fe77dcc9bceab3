// Checks whether a dtype can hold a number.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "lathe/core/base/dtype.h"

namespace lathe {

// Throws `[op] uint8 can't hold 300` if an integer dtype has no such number, or if a floating dtype
// would make a finite number infinite. A fraction is cut off an integer. bool holds every number.
inline void CheckHolds(const char* op, double value, DType dtype) {
  const bool holds = DispatchAll(dtype, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, bool>) {
      return true;
    } else if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const double whole = std::trunc(value);
      return whole >= static_cast<double>(Limits::min()) && whole < std::ldexp(1, Limits::digits);
    } else {
      // Numbers from here on are rounded to infinity.
      const double end = std::is_same_v<T, float>      ? 0x1.ffffffp127
                         : std::is_same_v<T, BFloat16> ? 0x1.ffp127
                         : std::is_same_v<T, Float16>  ? 0x1.ffep15
                                                       : std::numeric_limits<double>::infinity();
      return !std::isfinite(value) || std::fabs(value) < end;
    }
  });
  Check(holds, op, ToString(dtype), " can't hold ", value);
}

// Throws the same, and for a fraction in an integer dtype, too.
inline void CheckHoldsWhole(const char* op, double value, DType dtype) {
  CheckHolds(op, value, dtype);
  const bool cuts = !IsFloating(dtype) && dtype != DType::kBool;
  Check(!cuts || std::trunc(value) == value, op, ToString(dtype), " can't hold ", value);
}

}  // namespace lathe
