// What the processes of `lathe test` find out, and what is right about it.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace lathe {

struct SelfTestCheck {
  std::string name;
  std::string problem;  // empty: all is well
  std::string detail = {};
  bool operator==(const SelfTestCheck&) const = default;
};

// Of one process.
struct SelfTestReport {
  int rank = 0, world_size = 1, local_world_size = 1;
  std::string mixed_precision = "no";
  std::string device = {};           // what computed, in words; empty: the CPU
  bool tf32 = false;                 // there: products of float32 round their inputs
  std::vector<double> losses;        // of each step, over all processes' samples
  std::vector<std::string> weights;  // a digest of each rank's after the last step
  std::vector<int64_t> evaluated;    // the samples, in the order in which evaluation met them
  std::vector<double> logits;        // theirs, as many for each
  std::vector<SelfTestCheck> collectives;
  bool operator==(const SelfTestReport&) const = default;
};

void WriteSelfTestReport(const SelfTestReport& report, const std::string& path);
SelfTestReport ReadSelfTestReport(const std::string& path);

// How far the losses of `tested` may be from those of one process on the CPU, as a share of them:
// sums have another order.
double SelfTestLimit(const SelfTestReport& one, const SelfTestReport& tested);

// What must hold between the training in one process on the CPU and that in several there, or in
// one on a GPU. `several` has those of this machine, at least one.
std::vector<SelfTestCheck> CompareSelfTests(const SelfTestReport& one,
                                            const std::vector<SelfTestReport>& several);
// The same as lines for people. Throws, naming what failed, unless all is well.
void PrintSelfTest(std::ostream& out, const SelfTestReport& one,
                   const std::vector<SelfTestReport>& several);

}  // namespace lathe
