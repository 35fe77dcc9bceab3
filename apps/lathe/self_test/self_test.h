// The part of `lathe test` that each process runs: a short training of a tiny BERT, and
// collectives.
#pragma once

#include "lathe/apps/lathe/self_test/self_test_report.h"

namespace lathe {

// As the process that the environment says this one is, on the device that it says. The training
// has all that makes several processes harder than one: dropout, accumulation with a short last
// window, an uneven last batch, labels that don't count, clipping, a table that is exchanged by
// rows. `notes` is AcceleratorOptions::notes.
SelfTestReport RunSelfTest(bool notes);

}  // namespace lathe
