// Threads that wait for others and soon leave their core to whoever needs it.
#pragma once

namespace lathe {

// First in main, of a program with several OpenMP threads. libgomp's threads spin for milliseconds
// before they sleep; where other programs use the cores as well, they spin while the thread that
// they wait for can't run, and training takes twice as long. libgomp reads how long to spin
// (GOMP_SPINCOUNT) before main, so the program starts once more, as the same process, with that
// set. Does nothing if the user has set it or OMP_WAIT_POLICY, if there is one thread, or if the
// program can't be started again.
void WaitBriefly(char** argv);

}  // namespace lathe
