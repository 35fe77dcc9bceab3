#include "lathe/apps/lathe/self_test/self_test_report.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lathe/core/base/error.h"
#include "lathe/core/base/file.h"
#include "lathe/core/json/json_text.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

using Json = nlohmann::json;

std::string CheckRanks(const std::vector<SelfTestReport>& several) {
  const SelfTestReport& first = several.front();
  if (std::ssize(several) != first.local_world_size) {
    return absl::StrCat(several.size(), " of this machine's ", first.local_world_size,
                        " processes reported");
  }
  for (const SelfTestReport& report : several) {
    if (report.world_size != first.world_size) {
      return absl::StrCat("rank ", report.rank, " is one of ", report.world_size,
                          " processes but rank ", first.rank, " is one of ", first.world_size);
    }
  }
  return "";
}

// Merges the checks of collectives that each rank made by itself: a check has a problem if any rank
// found one.
std::vector<SelfTestCheck> Collectives(const std::vector<SelfTestReport>& several) {
  std::vector<SelfTestCheck> checks = several.front().collectives;
  for (SelfTestCheck& check : checks) check.problem.clear();
  for (const SelfTestReport& report : several) {
    for (size_t i = 0; i < checks.size(); ++i) {
      if (!checks[i].problem.empty()) continue;
      if (i >= report.collectives.size()) {
        checks[i].problem = absl::StrCat("rank ", report.rank, " did not reach this check");
      } else if (const std::string& problem = report.collectives[i].problem; !problem.empty()) {
        checks[i].problem = absl::StrCat("rank ", report.rank, ": ", problem);
      }
    }
  }
  return checks;
}

// The name of what `several` are compared with.
std::string Reference(const std::vector<SelfTestReport>& several) {
  return several.front().device.empty() ? "one process" : "the CPU";
}

double RelativeDifference(double a, double b) {
  return a == b ? 0 : std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

SelfTestCheck CheckLearning(const SelfTestReport& one) {
  SelfTestCheck check = {"the loss falls", ""};
  if (one.losses.empty()) {
    check.problem = "there was no step";
    return check;
  }
  const double first = one.losses.front(), last = one.losses.back();
  check.detail = absl::StrCat("from ", first, " to ", last, " in ", one.losses.size(), " steps");
  if (!(last < first / 2)) check.problem = check.detail + ", which is more than half";
  return check;
}

SelfTestCheck CheckLosses(const SelfTestReport& one, const std::vector<SelfTestReport>& several) {
  SelfTestCheck check = {"losses are those of " + Reference(several), ""};
  const double limit = SelfTestLimit(one, several.front());
  double most = 0;
  for (const SelfTestReport& report : several) {
    if (report.losses.size() != one.losses.size()) {
      check.problem = absl::StrCat("rank ", report.rank, " made ", report.losses.size(),
                                   " steps but one process made ", one.losses.size());
      return check;
    }
    for (size_t i = 0; i < one.losses.size(); ++i) {
      const double difference = RelativeDifference(report.losses[i], one.losses[i]);
      most = std::max(most, difference);
      if (difference <= limit) continue;
      check.problem =
          absl::StrCat("the loss of step ", i + 1, " is ", report.losses[i], " on rank ",
                       report.rank, " but ", one.losses[i], " in one process");
      return check;
    }
  }
  check.detail = absl::StrCat("the largest relative difference is ", FormatNumber("%.1e", most),
                              "; ", FormatNumber("%.0e", limit), " is allowed");
  return check;
}

std::string CheckWeights(const std::vector<SelfTestReport>& several) {
  const SelfTestReport& first = several.front();
  if (std::ssize(first.weights) != first.world_size) {
    return absl::StrCat("rank ", first.rank, " has the digests of ", first.weights.size(), " of ",
                        first.world_size, " ranks");
  }
  for (size_t rank = 1; rank < first.weights.size(); ++rank) {
    if (first.weights[rank] != first.weights[0]) {
      return absl::StrCat("those of rank ", rank, " differ from those of rank 0");
    }
  }
  for (const SelfTestReport& report : several) {
    if (report.weights != first.weights) {
      return absl::StrCat("ranks ", first.rank, " and ", report.rank,
                          " received different digests");
    }
  }
  return "";
}

std::string CheckEvaluated(const SelfTestReport& one, const std::vector<SelfTestReport>& several) {
  std::vector<const SelfTestReport*> reports = {&one};
  for (const SelfTestReport& report : several) reports.push_back(&report);
  for (const SelfTestReport* report : reports) {
    const std::string who = report == &one ? "one process" : absl::StrCat("rank ", report->rank);
    for (size_t i = 0; i < report->evaluated.size(); ++i) {
      if (report->evaluated[i] == static_cast<int64_t>(i)) continue;
      return absl::StrCat(who, " got sample ", report->evaluated[i], " at place ", i);
    }
    if (report->evaluated.empty() || report->evaluated.size() != one.evaluated.size()) {
      return absl::StrCat(who, " got ", report->evaluated.size(), " samples but one process got ",
                          one.evaluated.size());
    }
  }
  return "";
}

// A logit may be 0, so differences are compared with the largest logit.
std::string CheckLogits(const SelfTestReport& one, const std::vector<SelfTestReport>& several) {
  double largest = 0;
  for (const double logit : one.logits) largest = std::max(largest, std::abs(logit));
  constexpr double kWiden = 10;  // logits add up the differences of all steps
  const double limit = kWiden * SelfTestLimit(one, several.front()) * largest;
  for (const SelfTestReport& report : several) {
    if (report.logits.size() != one.logits.size()) {
      return absl::StrCat("rank ", report.rank, " has ", report.logits.size(),
                          " logits but one process has ", one.logits.size());
    }
    for (size_t i = 0; i < one.logits.size(); ++i) {
      if (std::abs(report.logits[i] - one.logits[i]) <= limit) continue;
      return absl::StrCat("logit ", i, " is ", report.logits[i], " on rank ", report.rank, " but ",
                          one.logits[i], " in one process");
    }
  }
  return "";
}

}  // namespace

void WriteSelfTestReport(const SelfTestReport& report, const std::string& path) {
  Json collectives = Json::array();
  for (const SelfTestCheck& check : report.collectives) {
    collectives.push_back({check.name, check.problem});
  }
  const Json json = {{"rank", report.rank},
                     {"world_size", report.world_size},
                     {"local_world_size", report.local_world_size},
                     {"mixed_precision", report.mixed_precision},
                     {"device", report.device},
                     {"tf32", report.tf32},
                     {"losses", report.losses},
                     {"weights", report.weights},
                     {"evaluated", report.evaluated},
                     {"logits", report.logits},
                     {"collectives", collectives}};
  WriteFileAtomically(path, DumpJson(json));
}

SelfTestReport ReadSelfTestReport(const std::string& path) {
  const std::string text = ReadFile(path);
  try {
    const Json json = ParseJson(text);
    SelfTestReport report;
    json.at("rank").get_to(report.rank);
    json.at("world_size").get_to(report.world_size);
    json.at("local_world_size").get_to(report.local_world_size);
    json.at("mixed_precision").get_to(report.mixed_precision);
    json.at("device").get_to(report.device);
    json.at("tf32").get_to(report.tf32);
    json.at("losses").get_to(report.losses);
    json.at("weights").get_to(report.weights);
    json.at("evaluated").get_to(report.evaluated);
    json.at("logits").get_to(report.logits);
    for (const Json& check : json.at("collectives")) {
      report.collectives.push_back({check.at(0), check.at(1)});
    }
    return report;
  } catch (const Json::exception& e) {
    throw InvalidArgument(path + ": " + e.what());
  }
}

// The limits are at least ten times the differences that were seen with 1 to 16 processes. A
// gradient that is wrong by a thousandth exceeds them within a few steps. A GPU's functions and
// products round differently from the first step on. Its bfloat16 is compared with the CPU's, and
// its float16 with float32, because the CPU has no float16.
double SelfTestLimit(const SelfTestReport& one, const SelfTestReport& tested) {
  const bool narrow = tested.mixed_precision != "no" || tested.tf32;
  if (!tested.device.empty()) return narrow ? 5e-2 : 1e-4;
  return one.mixed_precision == "no" ? 1e-5 : 1e-2;
}

std::vector<SelfTestCheck> CompareSelfTests(const SelfTestReport& one,
                                            const std::vector<SelfTestReport>& several) {
  std::vector<SelfTestCheck> checks = {CheckLearning(one),
                                       {"all processes took part", CheckRanks(several)}};
  // Collectives of a single process have nothing to do.
  const bool alone = several.front().world_size == 1;
  if (!alone) {
    for (SelfTestCheck& check : Collectives(several)) checks.push_back(std::move(check));
  }
  checks.push_back(CheckLosses(one, several));
  if (!alone) checks.push_back({"weights are the same on all ranks", CheckWeights(several)});
  checks.push_back({"evaluation meets each sample once", CheckEvaluated(one, several)});
  checks.push_back(
      {"evaluation gives what " + Reference(several) + " gives", CheckLogits(one, several)});
  return checks;
}

namespace {

// Returns, for example, "2 processes on the CPU in bfloat16".
std::string DescribeSetUp(const SelfTestReport& report) {
  const std::string& precision = report.mixed_precision;
  return absl::StrCat(
      report.world_size, report.world_size == 1 ? " process" : " processes", " on ",
      report.device.empty()
          ? "the CPU"
          : (report.world_size == 1 ? "the GPU (" : "a GPU each (") + report.device + ")",
      " in ",
      precision == "bf16"   ? "bfloat16"
      : precision == "fp16" ? "float16"
      : report.tf32         ? "float32 with products in TF32"
                            : "float32");
}

}  // namespace

void PrintSelfTest(std::ostream& out, const SelfTestReport& one,
                   const std::vector<SelfTestReport>& several) {
  out << "a tiny BERT, " << one.losses.size() << " steps: " << DescribeSetUp(several.front())
      << ", compared with " << DescribeSetUp(one) << '\n';
  std::string failed;
  for (const SelfTestCheck& check : CompareSelfTests(one, several)) {
    const bool ok = check.problem.empty();
    const std::string& more = ok ? check.detail : check.problem;
    out << (ok ? "ok      " : "FAILED  ") << check.name << (more.empty() ? "" : ": ") << more
        << '\n';
    if (!ok) failed += (failed.empty() ? "" : ", ") + check.name;
  }
  if (!failed.empty()) {
    throw Error(absl::StatusCode::kInternal, "failed: " + failed,
                "`lathe env` prints what a bug report should contain");
  }
  out << "all is well\n";
}

}  // namespace lathe
