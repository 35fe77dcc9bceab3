#include "lathe/examples/example_testing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace lathe {

std::vector<double> NumbersAfter(const std::string& name, const std::string& text) {
  std::vector<double> numbers;
  const std::string before = name + " ";
  for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
    at += before.size();
    numbers.push_back(std::strtod(text.c_str() + at, nullptr));
  }
  return numbers;
}

std::string ExampleTest::Run(const std::vector<std::string>& program) {
  setenv("OMP_NUM_THREADS", "1", 1);
  const TestClock::time_point start = TestClock::now();
  const RunResult run = RunProgram(program[0], {program.begin() + 1, program.end()});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_LT(SecondsSince(start), 30);
  return run.out;
}

void ExampleTest::ExpectSameLosses(const std::string& alone, int num_processes,
                                   const std::vector<std::string>& program, double tolerance) {
  const std::vector<double> expected = NumbersAfter("loss", alone);
  const RunResult run = Launch(num_processes, program);
  ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
  const std::vector<double> losses = NumbersAfter("loss", run.out);
  ASSERT_FALSE(expected.empty()) << alone;
  ASSERT_EQ(losses.size(), expected.size()) << run.out;
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    largest = std::max(largest, std::abs(losses[i] / expected[i] - 1));
  EXPECT_LE(largest, tolerance) << num_processes << " processes\n" << alone << run.out;
  std::ostringstream text;
  text << largest;
  RecordProperty("largest_difference_" + std::to_string(num_processes), text.str());
}

}  // namespace lathe
