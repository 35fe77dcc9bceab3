// Tests `lathe test`: the checks of reports, and the command as a user runs it.
#include <cstdlib>
#include <functional>
#include <future>
#include <sstream>
#include <utility>

#include "lathe/apps/lathe/self_test/self_test_report.h"
#include "lathe/apps/testing/self_test_testing.h"
#include "lathe/core/base/error.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Reports = std::vector<SelfTestReport>;

SelfTestReport OneProcess() {
  return {.losses = {1.1, 0.7, 0.2},
          .weights = {"w"},
          .evaluated = {0, 1, 2},
          .logits = {1, -1, 2, -2, 0.5, 0},
          .collectives = {{"Gather", ""}, {"Reduce", ""}}};
}

// The reports of two ranks on one machine, with differences that are allowed.
Reports TwoProcesses() {
  Reports reports(2, OneProcess());
  for (int rank = 0; rank < 2; ++rank) {
    SelfTestReport& report = reports[static_cast<size_t>(rank)];
    report.rank = rank;
    report.world_size = report.local_world_size = 2;
    report.weights = {"v", "v"};
    report.losses[1] *= 1 + 1e-7;
    report.logits[2] += 1e-6;
  }
  return reports;
}

// Returns "name: problem" of the checks that fail.
std::vector<std::string> Failures(const SelfTestReport& one, const Reports& several) {
  std::vector<std::string> failures;
  for (const SelfTestCheck& check : CompareSelfTests(one, several)) {
    if (!check.problem.empty()) failures.push_back(check.name + ": " + check.problem);
  }
  return failures;
}

TEST(SelfTestReport, AllIsWell) {
  EXPECT_EQ(Failures(OneProcess(), TwoProcesses()), Args{});
  EXPECT_EQ(Failures(OneProcess(), {OneProcess()}), Args{});
}

TEST(SelfTestReport, WhatIsWrongIsNamed) {
  using Change = std::function<void(SelfTestReport&)>;
  const std::pair<Change, std::string> cases[] = {
      {[](auto& r) { r.losses[1] *= 1 + 1e-4; },
       "losses are those of one process: the loss of step 2 is 0.70007 on rank 1 but 0.7 in one "
       "process"},
      {[](auto& r) { r.losses.pop_back(); },
       "losses are those of one process: rank 1 made 2 steps but one process made 3"},
      {[](auto& r) { r.weights[1] = "u"; },
       "weights are the same on all ranks: ranks 0 and 1 received different digests"},
      {[](auto& r) {
         r.evaluated = {0, 2, 2};
       },
       "evaluation meets each sample once: rank 1 got sample 2 at place 1"},
      {[](auto& r) {
         r.evaluated = {0, 1};
       },
       "evaluation meets each sample once: rank 1 got 2 samples but one process got 3"},
      {[](auto& r) {
         r.evaluated = {0, 1, 2, 3};
       },
       "evaluation meets each sample once: rank 1 got 4 samples but one process got 3"},
      {[](auto& r) { r.logits[5] = 0.01; },
       "evaluation gives what one process gives: logit 5 is 0.01 on rank 1 but 0 in one process"},
      {[](auto& r) { r.logits.clear(); },
       "evaluation gives what one process gives: rank 1 has 0 logits but one process has 6"},
      {[](auto& r) { r.collectives[1].problem = "got 1 instead of 2"; },
       "Reduce: rank 1: got 1 instead of 2"},
      {[](auto& r) { r.collectives.pop_back(); }, "Reduce: rank 1 did not reach this check"},
      {[](auto& r) { r.world_size = 3; },
       "all processes took part: rank 1 is one of 3 processes but rank 0 is one of 2"},
  };
  for (const auto& [change, failure] : cases) {
    Reports several = TwoProcesses();
    change(several[1]);
    EXPECT_EQ(Failures(OneProcess(), several), Args{failure});
  }
  Reports several = TwoProcesses();
  for (SelfTestReport& report : several) report.weights[1] = "u";
  EXPECT_EQ(Failures(OneProcess(), several),
            Args{"weights are the same on all ranks: those of rank 1 differ from those of rank 0"});
  several = TwoProcesses();
  several.pop_back();
  EXPECT_EQ(Failures(OneProcess(), several),
            Args{"all processes took part: 1 of this machine's 2 processes reported"});
}

TEST(SelfTestReport, ATrainingThatDoesNotLearn) {
  const auto with_losses = [](SelfTestReport report) {
    report.losses = {1.1, 1.0, 0.9};
    return report;
  };
  EXPECT_EQ(Failures(with_losses(OneProcess()), {with_losses(OneProcess())}),
            Args{"the loss falls: from 1.1 to 0.9 in 3 steps, which is more than half"});
}

TEST(SelfTestReport, BFloat16IsRounder) {
  SelfTestReport one = OneProcess(), other = OneProcess();
  one.mixed_precision = "bf16";
  other.losses[2] *= 1.005;
  EXPECT_EQ(Failures(one, {other}), Args{});
  other.losses[2] *= 1.01;
  EXPECT_EQ(Failures(one, {other}).size(), 1u);
}

TEST(SelfTestReport, AGpuIsComparedWithTheCpu) {
  const SelfTestReport one = OneProcess();
  SelfTestReport other = one;
  other.device = "a GPU";
  other.losses[2] *= 1 + 5e-5;
  other.weights = {"v"};
  EXPECT_EQ(Failures(one, {other}), Args{});
  other.losses[2] *= 1 + 1e-4;
  EXPECT_EQ(Failures(one, {other}).size(), 1u);
  other.tf32 = true;
  EXPECT_EQ(Failures(one, {other}), Args{});
  other.tf32 = false;
  other.mixed_precision = "fp16";  // compared with float32, because the CPU has no float16
  EXPECT_EQ(Failures(one, {other}), Args{});
  std::ostringstream out;
  PrintSelfTest(out, one, {other});
  EXPECT_TRUE(
      out.str().starts_with("a tiny BERT, 3 steps: 1 process on the GPU (a GPU) in float16, "
                            "compared with 1 process on the CPU in float32\nok      the loss"))
      << out.str();
  EXPECT_EQ(out.str().find("Gather"), std::string::npos) << out.str();
}

TEST(SelfTestReport, IsPrintedWithALineForEachCheck) {
  std::ostringstream well;
  PrintSelfTest(well, OneProcess(), TwoProcesses());
  EXPECT_TRUE(
      well.str().starts_with("a tiny BERT, 3 steps: 2 processes on the CPU in float32, compared "
                             "with 1 process on the CPU in float32\n"));
  EXPECT_TRUE(
      well.str().ends_with("ok      evaluation gives what one process gives\nall is well\n"))
      << well.str();

  Reports several = TwoProcesses();
  several[0].collectives[0].problem = "got nothing";
  several[1].losses[0] = 3;
  std::ostringstream ill;
  try {
    PrintSelfTest(ill, OneProcess(), several);
    FAIL() << ill.str();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "failed: Gather, losses are those of one process");
  }
  EXPECT_NE(ill.str().find("\nFAILED  Gather: rank 0: got nothing\nok      Reduce\n"),
            std::string::npos)
      << ill.str();
  EXPECT_EQ(ill.str().find("all is well"), std::string::npos);
}

TEST(SelfTestReport, GoesThroughAFile) {
  SelfTestReport report = TwoProcesses()[1];
  report.losses[0] = 1.0 / 3;
  report.collectives[0].problem = "a \"quoted\" one";
  const std::string path = testing::TempDir() + "/report.json";
  WriteSelfTestReport(report, path);
  EXPECT_EQ(ReadSelfTestReport(path), report);
  EXPECT_THROW(ReadSelfTestReport(path + ".missing"), Error);
}

class TestCommand : public SelfTestCommandTest {
 protected:
  TestCommand() : SelfTestCommandTest("lathe") {}
  // Expects that `num_processes` processes on the CPU pass.
  static void ExpectPassedOnCpu(const RunResult& run, int num_processes,
                                const std::string& mixed_precision = "no") {
    const std::string on_cpu =
        mixed_precision == "no" ? " on the CPU in float32" : " on the CPU in bfloat16";
    ExpectPassed(run, std::to_string(num_processes) + " processes" + on_cpu, "1 process" + on_cpu,
                 ExpectedNotes(mixed_precision));
    for (const char* check : {"the loss falls: ", "Gather\n", "triggers\n", "losses are those",
                              "weights are the same", "evaluation meets"}) {
      EXPECT_NE(run.out.find("\nok      " + std::string(check)), std::string::npos)
          << check << " is missing in\n"
          << run.out;
    }
  }
};

TEST_F(TestCommand, TwoProcessesUnlessMoreAreAskedFor) {
  ExpectPassedOnCpu(Test({"--cpu"}), 2);
  ExpectPassedOnCpu(Test({"--cpu", "--num_processes", "3"}), 3);
}

TEST_F(TestCommand, MoreProcessesThanSamplesInABatch) {
  ExpectPassedOnCpu(Test({"--cpu", "--num_processes", "9", "--mixed_precision", "bf16"}), 9,
                    "bf16");
}

TEST_F(TestCommand, AsTheFileSays) {
  Write("bf16.yaml", "distributed_type: MULTI_CPU\nnum_processes: 3\nmixed_precision: bf16\n");
  ExpectPassedOnCpu(Test({"--config_file", Path("bf16.yaml")}), 3, "bf16");
}

TEST_F(TestCommand, TwoMachines) {
  const std::string port = std::to_string(FreePort());
  const auto machine = [&](const char* rank) {
    return Test({"--cpu", "--num_processes", "4", "--num_machines", "2", "--machine_rank", rank,
                 "--main_process_ip", "127.0.0.1", "--main_process_port", port});
  };
  auto other = std::async(std::launch::async, machine, "1");
  ExpectPassedOnCpu(machine("0"), 4);
  ExpectPassedOnCpu(other.get(), 4);
}

// Returns the sizes in the table of a collective, and expects a time and rates in each row.
std::vector<int64_t> SizesOf(const std::string& out, const std::string& collective,
                             double bus_share) {
  std::vector<int64_t> sizes;
  const size_t begin = out.find("\n" + collective + "\n");
  EXPECT_NE(begin, std::string::npos) << out;
  std::istringstream lines(out.substr(begin + collective.size() + 2));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "    size (B)     time (us)    algbw (GB/s)    busbw (GB/s)");
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    double size = 0, microseconds = 0, algorithm = 0, bus = 0;
    EXPECT_TRUE(words >> size >> microseconds >> algorithm >> bus) << line;
    EXPECT_GT(microseconds, 0);
    // Printed times are rounded to 0.1 microseconds, and rates to 0.001 GB/s.
    EXPECT_GE(algorithm, size / (microseconds + 0.051) / 1e3 - 0.001) << line;
    EXPECT_LE(algorithm, size / (microseconds - 0.051) / 1e3 + 0.001) << line;
    EXPECT_NEAR(bus, algorithm * bus_share, 0.0011) << line;
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

void ExpectBandwidths(const RunResult& run, int num_ranks, const std::string& machines) {
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(run.out.starts_with(std::to_string(num_ranks) + " ranks on " + machines +
                                  ", float32 in the host's memory\nbarrier "))
      << run.out;
  const double n = num_ranks;
  const std::vector<int64_t> sizes = {1024, 4096, 16384, 65536};
  EXPECT_EQ(SizesOf(run.out, "all-reduce", 2 * (n - 1) / n), sizes);
  EXPECT_EQ(SizesOf(run.out, "reduce-scatter", (n - 1) / n), sizes);
  EXPECT_EQ(SizesOf(run.out, "all-gather", (n - 1) / n), sizes);
  EXPECT_EQ(SizesOf(run.out, "broadcast", 1), sizes);
}

TEST_F(TestCommand, BandwidthBetweenItsProcesses) {
  for (const int n : {2, 3}) {
    ExpectBandwidths(
        Test({"--bandwidth", "--max_bytes", "100000", "--num_processes", std::to_string(n)}), n,
        "1 machine");
  }
}

TEST_F(TestCommand, BandwidthUnderALauncher) {
  ExpectBandwidths(
      RunProgram("lathe", {"launch", "--cpu", "--num_processes", "3", "apps/lathe/lathe", "test",
                           "--bandwidth", "--max_bytes", "65536"}),
      3, "1 machine");
  const RunResult refused =
      RunProgram("lathe", {"launch", "--cpu", "--num_processes", "2", "apps/lathe/lathe", "test",
                           "--bandwidth", "--timeout", "9"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(refused.err.starts_with(
      "error: --timeout has no effect, since this process was started by a launcher\n"))
      << refused.err;
}

TEST_F(TestCommand, BandwidthBetweenMachines) {
  const std::string port = std::to_string(FreePort());
  const auto machine = [&](const char* rank) {
    return Test({"--bandwidth", "--max_bytes", "65536", "--num_processes", "2", "--num_machines",
                 "2", "--machine_rank", rank, "--main_process_ip", "127.0.0.1",
                 "--main_process_port", port});
  };
  auto other = std::async(std::launch::async, machine, "1");
  ExpectBandwidths(machine("0"), 2, "2 machines");
  EXPECT_EQ(other.get().out, "");
}

TEST_F(TestCommand, ATrainingThatFails) {
  // The training fails because its report can't be written.
  const RunResult run = RunProgram("lathe", {"test", "--cpu"}, {.max_file_bytes = 100});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find("error: the training in one process ended with exit code 1\n"),
            std::string::npos)
      << run.err;
}

TEST_F(TestCommand, BadOptionsGetOneLine) {
  ExpectError(Test({"everything"}), "unknown argument \"everything\"", 2);
  ExpectError(Test({"--num_processes", "0"}), "--num_processes must be at least 1", 2);
  ExpectError(Test({"--cpu", "--num_processes", "1"}),
              "one process on the CPU would be compared with itself", 2);
  ExpectError(Test({"--cpu", "--num_processes", "3", "--num_machines", "2", "--main_process_ip",
                    "127.0.0.1"}),
              "num_processes is 3, which 2 machines can't share evenly", 2);
  ExpectError(Test({"--max_bytes", "5000"}), "--max_bytes has no effect without --bandwidth", 2);
  ExpectError(Test({"--bandwidth", "--max_bytes", "5"}), "--max_bytes must be at least 1024", 2);
  ExpectError(Test({"--bandwidth", "--num_processes", "1"}),
              "--num_processes is 1, but bandwidth is measured between processes", 2);
  ExpectError(Test({"--config_file", Path("nothing")}), "nothing: No such file or directory", 1);
}

}  // namespace
}  // namespace lathe
