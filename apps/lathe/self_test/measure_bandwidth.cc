#include "lathe/apps/lathe/self_test/measure_bandwidth.h"

#include <absl/status/status.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lathe/core/base/error.h"
#include "lathe/distributed/groups/collectives.h"
#include "lathe/train/support/progress.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsOfOneSize = 0.3;
constexpr int64_t kMostCalls = 50;

struct Collective {
  const char* name;
  // What a link carries, as a multiple of the size.
  double (*bus_share)(double num_ranks);
  std::function<void(ProcessGroup& group, std::span<float> data)> call;
  // Returns what each element of `own` is after the call, if rank r gives r + 1.
  float (*expected)(int num_ranks, int owner);
  bool fills_own_stripe_only = false;
};

std::vector<ElementRange> WholeOf(std::span<float> data) { return {{0, std::ssize(data)}}; }

float SumOfRanks(int num_ranks, int) {
  return static_cast<float>(num_ranks) * static_cast<float>(num_ranks + 1) / 2;
}

const std::vector<Collective>& Collectives() {
  static const std::vector<Collective> kCollectives = {
      {.name = "all-reduce",
       .bus_share = [](double n) { return 2 * (n - 1) / n; },
       .call = [](ProcessGroup& group, std::span<float> data) { group.AllReduce(data); },
       .expected = SumOfRanks},
      {.name = "reduce-scatter",
       .bus_share = [](double n) { return (n - 1) / n; },
       .call = [](ProcessGroup& group, std::span<float> data) { group.ReduceScatter(data); },
       .expected = SumOfRanks,
       .fills_own_stripe_only = true},
      {.name = "all-gather",
       .bus_share = [](double n) { return (n - 1) / n; },
       .call =
           [](ProcessGroup& group, std::span<float> data) {
             group.AllGatherStripes(data, WholeOf(data), WholeOf(data));
           },
       .expected = [](int, int owner) { return static_cast<float>(owner + 1); }},
      {.name = "broadcast",
       .bus_share = [](double) { return 1.0; },
       .call = [](ProcessGroup& group,
                  std::span<float> data) { group.Broadcast(std::as_writable_bytes(data), 0); },
       .expected = [](int, int) { return 1.0f; }}};
  return kCollectives;
}

double MaxOverRanks(ProcessGroup& group, double value) {
  group.AllReduce(std::span(&value, 1), ReduceOp::kMax);
  return value;
}

// Returns the mean time of a call on the slowest rank.
double SecondsOf(ProcessGroup& group, int64_t num_calls, const std::function<void()>& call) {
  group.Barrier();
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < num_calls; ++i) call();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return MaxOverRanks(group, seconds / static_cast<double>(num_calls));
}

// Makes one call and throws if its result is wrong.
void CheckResult(ProcessGroup& group, const Collective& collective, std::span<float> data) {
  std::ranges::fill(data, static_cast<float>(group.rank() + 1));
  collective.call(group, data);
  group.Barrier();  // others may still read this rank's data
  for (int owner = 0; owner < group.size(); ++owner) {
    if (collective.fills_own_stripe_only && owner != group.rank()) continue;
    const ElementRange stripe = StripeOfRank(WholeOf(data)[0], owner, group.size());
    const float expected = collective.expected(group.size(), owner);
    for (int64_t at = stripe.begin; at < stripe.end; ++at) {
      const float value = data[static_cast<size_t>(at)];
      if (value == expected) continue;
      throw Error(absl::StatusCode::kInternal,
                  std::string("[") + collective.name + "] element " + std::to_string(at) + " of " +
                      std::to_string(data.size()) + " is " + std::to_string(value) + " on rank " +
                      std::to_string(group.rank()) + " but should be " + std::to_string(expected));
    }
  }
}

std::string Right(const std::string& text, size_t width) {
  return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

void PrintRow(std::ostream& out, const std::string& size, const std::string& time,
              const std::string& algorithm, const std::string& bus) {
  out << Right(size, 12) << Right(time, 14) << Right(algorithm, 16) << Right(bus, 16) << std::endl;
}

}  // namespace

void MeasureBandwidth(ProcessGroup& group, int local_rank, int64_t max_bytes, std::ostream& out) {
  CheckSame(group, "bandwidth", {{"max_bytes", std::to_string(max_bytes)}},
            "give --max_bytes the same value on all machines");
  int64_t machines = local_rank == 0 ? 1 : 0;
  group.AllReduce(std::span(&machines, 1));
  const auto microseconds = [](double seconds) { return FormatNumber("%.1f", 1e6 * seconds); };
  out << group.size() << " ranks on " << machines << (machines == 1 ? " machine" : " machines")
      << ", float32 in the host's memory\n"
      << "barrier " << microseconds(SecondsOf(group, kMostCalls, [&] { group.Barrier(); })) << " us"
      << std::endl;
  std::vector<float> all(static_cast<size_t>(max_bytes) / sizeof(float));
  for (const Collective& collective : Collectives()) {
    out << '\n' << collective.name << '\n';
    PrintRow(out, "size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)");
    for (int64_t bytes = kLeastBytes; bytes <= max_bytes; bytes *= 4) {
      const std::span<float> data(all.data(), static_cast<size_t>(bytes) / sizeof(float));
      CheckResult(group, collective, data);
      std::ranges::fill(data, 0.0f);  // whose sums don't grow
      const auto call = [&] { collective.call(group, data); };
      const double guess = SecondsOf(group, 1, call);
      const double fitting = guess > 0 ? kSecondsOfOneSize / guess : 1;
      const auto num_calls =
          static_cast<int64_t>(std::clamp(fitting, 1.0, static_cast<double>(kMostCalls)));
      const double seconds = SecondsOf(group, num_calls, call);
      const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
      PrintRow(out, std::to_string(bytes), microseconds(seconds), FormatNumber("%.3f", rate),
               FormatNumber("%.3f", rate * collective.bus_share(group.size())));
    }
  }
}

}  // namespace lathe
