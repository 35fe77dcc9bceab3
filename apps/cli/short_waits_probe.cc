// For short_waits_test.sh: prints the GOMP_SPINCOUNT that the program ends up with, and its
// arguments.
#include <cstdio>
#include <cstdlib>

#include "lathe/apps/cli/short_waits.h"

int main(int argc, char** argv) {
  lathe::WaitBriefly(argv);
  const char* count = std::getenv("GOMP_SPINCOUNT");
  std::printf("%s", count == nullptr ? "none" : count);
  for (int i = 1; i < argc; ++i) std::printf(" [%s]", argv[i]);
  std::printf("\n");
}
