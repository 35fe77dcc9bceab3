// Runs the programs of this folder on small data, in one process and in several.
#pragma once

#include <string>
#include <vector>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {

class ExampleTest : public LaunchedTest {
 protected:
  // Runs the program in one process with one thread. Expects that it succeeds, in less than 30
  // seconds, and returns what it printed.
  std::string Run(const std::vector<std::string>& program);

  // Runs it by `lathe launch`. Expects as many losses as in `alone`, each within the relative
  // tolerance.
  void ExpectSameLosses(const std::string& alone, int num_processes,
                        const std::vector<std::string>& program, double tolerance);
};

// Returns the numbers that follow `name` and a space in the text, in their order.
std::vector<double> NumbersAfter(const std::string& name, const std::string& text);

}  // namespace lathe
