// For restart_with_short_spin_test.sh: prints the GOMP_SPINCOUNT that the program ends up with, and
// its arguments.
#include <cstdio>
#include <cstdlib>

#include "lathe/apps/cli/restart_with_short_spin.h"

int main(int argc, char** argv) {
  lathe::RestartWithShortSpin(argv);
  const char* count = std::getenv("GOMP_SPINCOUNT");
  std::printf("%s", count == nullptr ? "none" : count);
  for (int i = 1; i < argc; ++i) std::printf(" [%s]", argv[i]);
  std::printf("\n");
}
