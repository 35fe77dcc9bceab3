// The instances of templates that tests don't compile themselves; see instances_source.h.
#include "tools/prelude/test_prelude.h"

#ifndef __clang__
#define LATHE_EXTERN
#include "tools/prelude/instances.h"
#endif
