// Lathe's version, for bug reports.
#pragma once

namespace lathe {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lathe
