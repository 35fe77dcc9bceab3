// The same as prelude.h, for emulated kernels under AddressSanitizer: GCC takes a compiled header
// only with its own options.
#ifndef __clang__
#include "prelude.h"
#endif
