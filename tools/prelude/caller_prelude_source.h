// The same as prelude.h, for the folders that tools/lathe.bzl compiles with other options: GCC
// takes a compiled header only with its own.
#ifndef __clang__
#include "prelude.h"
#endif
