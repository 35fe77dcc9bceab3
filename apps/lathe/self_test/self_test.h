// The part of `lathe test` that each process runs: a short training of a tiny BERT, and
// collectives.
#pragma once

#include "lathe/apps/lathe/self_test/self_test_report.h"

namespace lathe {

// Runs as the rank and on the device that the environment gives. The training has everything that
// makes several processes harder than one. It has dropout, gradient accumulation with a short last
// window, an uneven last batch, labels that don't count and clipping. It also has a table whose
// gradient is exchanged by rows. `notes` is AcceleratorOptions::notes.
SelfTestReport RunSelfTest(bool notes);

}  // namespace lathe
