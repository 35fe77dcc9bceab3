// Makes threads that wait for others leave their core soon to whoever needs it.
#pragma once

namespace lathe {

// Call this first in main, in a program with several OpenMP threads. libgomp's threads spin for
// milliseconds before they sleep. If other programs use the cores as well, they spin while the
// thread that they wait for can't run. Training then takes twice as long. libgomp reads how long to
// spin (GOMP_SPINCOUNT) before main. So this function sets the variable and starts the program once
// more, as the same process. It does nothing if the user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY,
// if there is one thread, or if the program can't be started again.
void RestartWithShortSpin(char** argv);

}  // namespace lathe
