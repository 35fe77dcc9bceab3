// The reports of the processes of `lathe test`, and the checks of these reports.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace lathe {

struct SelfTestCheck {
  std::string name;
  std::string problem;  // empty if all is well
  std::string detail = {};
  bool operator==(const SelfTestCheck&) const = default;
};

// The report of one process.
struct SelfTestReport {
  int rank = 0, world_size = 1, local_world_size = 1;
  std::string mixed_precision = "no";
  std::string device = {};           // the device, in words; empty: the CPU
  bool tf32 = false;                 // float32 products there round their inputs to TF32
  std::vector<double> losses;        // of each step, over the samples of all processes
  std::vector<std::string> weights;  // a digest of each rank's weights after the last step
  std::vector<int64_t> evaluated;    // the samples, in the order in which the evaluation met them
  std::vector<double> logits;        // of these samples, as many for each sample
  std::vector<SelfTestCheck> collectives;
  bool operator==(const SelfTestReport&) const = default;
};

void WriteSelfTestReport(const SelfTestReport& report, const std::string& path);
SelfTestReport ReadSelfTestReport(const std::string& path);

// The largest relative difference that is allowed between the losses of `tested` and those of one
// process on the CPU. They differ because sums are added in another order.
double SelfTestLimit(const SelfTestReport& one, const SelfTestReport& tested);

// Compares the training in one process on the CPU with that in several processes there, or on GPUs.
// `several` holds the reports of this machine's processes, at least one.
std::vector<SelfTestCheck> CompareSelfTests(const SelfTestReport& one,
                                            const std::vector<SelfTestReport>& several);
// Prints the checks as lines for people. Throws, naming what failed, unless all is well.
void PrintSelfTest(std::ostream& out, const SelfTestReport& one,
                   const std::vector<SelfTestReport>& several);

}  // namespace lathe
