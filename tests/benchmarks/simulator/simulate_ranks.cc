// Computes what training in 2 to 4,096 ranks costs, without them: the schedules of the group over a
// model of links. It prints the tables of docs/distributed.md.
//
//   simulate_ranks                       # the tables
//   simulate_ranks --call all_reduce --machines 2,2,2 --bytes 100000000 --gigabits 0.4
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "lathe/apps/cli/flags.h"
#include "lathe/apps/cli/report_error.h"
#include "lathe/core/base/error.h"
#include "lathe/tests/benchmarks/simulator/link_model.h"
#include "lathe/tests/benchmarks/simulator/recorded_call.h"
#include "lathe/tests/benchmarks/simulator/step_model.h"
#include "lathe/train/support/progress.h"

namespace lathe::simulator {
namespace {

struct Options {
  std::vector<std::string> ranks = {"2",   "4",   "8",   "16",   "32",   "64",
                                    "128", "256", "512", "1024", "2048", "4096"};
  std::vector<std::string> models = {"base", "large"}, gigabits = {"10", "25", "100", "400"};
  int64_t ranks_per_machine = 8;
  ComputeModel compute;
  double latency_us = 20, message_us = 5, memory_gigabytes = 200, teraflops = 1;
  int64_t batch_size = 32, length = 128;
  std::string call;
  std::vector<std::string> machines = {"1", "1"};
  int64_t bytes = 100'000'000;
  bool help = false;
};

int64_t WholeNumber(const std::string& text, const std::string& option) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1)
    throw InvalidArgument(option + " must be whole numbers from 1 on but has \"" + text + "\"");
  return value;
}

std::vector<LinkModel> LinksOf(const Options& options) {
  std::vector<LinkModel> links;
  for (const std::string& text : options.gigabits) {
    char* end = nullptr;
    const double gigabits = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !(gigabits > 0))
      throw InvalidArgument("--gigabits must be numbers above 0 but has \"" + text + "\"");
    links.push_back({.bits_per_second = 1e9 * gigabits,
                     .latency = options.latency_us / 1e6,
                     .message_seconds = options.message_us / 1e6,
                     .memory_per_second = 1e9 * options.memory_gigabytes});
  }
  return links;
}

// Ranks lie on at least two machines, so that each job has a network.
std::vector<int> MachinesOf(int64_t num_ranks, int64_t ranks_per_machine) {
  const int64_t machines = std::min(
      num_ranks, std::max<int64_t>(2, (num_ranks + ranks_per_machine - 1) / ranks_per_machine));
  std::vector<int> sizes;
  for (int64_t machine = 0; machine < machines; ++machine) {
    sizes.push_back(
        static_cast<int>(num_ranks * (machine + 1) / machines - num_ranks * machine / machines));
  }
  return sizes;
}

int RunCall(const Options& options) {
  std::vector<int> machines;
  for (const std::string& text : options.machines)
    machines.push_back(static_cast<int>(WholeNumber(text, "--machines")));
  const MachineLayout layout = LayoutOf(machines);
  const int64_t elements = options.bytes / 4;
  RecordedCall call;
  if (options.call == "all_reduce") call = RecordAllReduce(layout, elements);
  if (options.call == "reduce_scatter") call = RecordReduceScatter(layout, elements);
  if (options.call == "all_gather") call = RecordAllGatherStripes(layout, {{0, elements}});
  if (options.call == "broadcast") call = RecordBroadcast(layout, options.bytes, 0);
  if (options.call == "barrier") call = RecordBarrier(layout);
  for (const LinkModel& link : LinksOf(options)) {
    const double seconds = SecondsOf(call, layout, link);
    int64_t most = 0;
    for (int machine = 0; machine < layout.num_machines(); ++machine)
      most = std::max(most, call.BytesSent(layout, machine));
    std::cout << options.call << FormatNumber(" at %g Gbit/s: ", link.bits_per_second / 1e9)
              << FormatNumber("%.6g s, ", seconds)
              << FormatNumber("%.6g MB sent by the machine that sends most, ",
                              static_cast<double>(most) / 1e6)
              << FormatNumber("%.1f %% of its link, ",
                              100 * static_cast<double>(most) * 8 / link.bits_per_second / seconds)
              << call.messages.size() << " messages\n";
  }
  return 0;
}

int RunTables(const Options& options) {
  const std::vector<LinkModel> links = LinksOf(options);
  std::vector<StepWork> works;
  std::string head = "| ranks | machines | connections of a rank, in all |";
  std::string times = "| ranks |", line = "|---|---|---|", times_line = "|---|";
  for (const std::string& model : options.models) {
    works.push_back(WorkOf(model));
    head += " BERT-" + model + ": MB sent by a machine | messages of a rank |";
    line += "---|---|";
    for (const std::string& gigabits : options.gigabits) {
      times += " BERT-" + model + ", " + gigabits + " Gb/s |";
      times_line += "---|";
    }
  }
  std::string rows;
  std::cout << head << '\n' << line << std::endl;
  for (const std::string& text : options.ranks) {
    const int64_t ranks = WholeNumber(text, "--ranks");
    const MachineLayout layout = LayoutOf(MachinesOf(ranks, options.ranks_per_machine));
    const Connections connections = CountConnections(layout);
    StepModel steps(layout, links, options.compute);
    std::cout << "| " << FormatCount(ranks) << " | " << FormatCount(layout.num_machines()) << " | "
              << FormatCount(connections.most) << ", " << FormatCount(connections.all) << " |";
    rows += "| " + FormatCount(ranks) + " |";
    for (const StepWork& work : works) {
      for (const StepCost& cost : steps.Costs(work)) {
        rows += FormatNumber(" %.2f s,", cost.seconds) +
                FormatNumber(" %.0f %% |", 100 * cost.HiddenShare());
      }
      std::cout << FormatNumber(" %.0f |", static_cast<double>(steps.bytes_of_machine()) / 1e6)
                << ' ' << FormatCount(steps.num_messages() / ranks) << " |" << std::flush;
    }
    std::cout << std::endl;
    rows += '\n';
  }
  std::cout << '\n' << times << '\n' << times_line << '\n' << rows << std::flush;
  return 0;
}

int Run(const std::vector<std::string>& args) {
  Options o;
  FlagTable table("Usage: simulate_ranks [options]\n");
  table.Group("Job");
  table.Add("ranks", &o.ranks, "numbers of ranks, one for each row");
  table.Add("ranks_per_machine", &o.ranks_per_machine, "but two machines at least").Min(1);
  table.Add("models", &o.models, "base, large or tiny");
  table.Add("batch_size", &o.batch_size, "sequences of each rank in a step").Min(1);
  table.Add("length", &o.length, "tokens of a sequence").Min(1);
  table.Add("teraflops", &o.teraflops, "of a rank, a second").Min(1e-6);
  table.Group("Machines");
  table.Add("gigabits", &o.gigabits, "of a link, a second, each way");
  table.Add("latency_us", &o.latency_us, "of a link, in microseconds").Min(0);
  table.Add("message_us", &o.message_us, "of processor time for a message at each end").Min(0);
  table
      .Add("memory_gigabytes", &o.memory_gigabytes,
           "that a machine's ranks read together, a second")
      .Min(1e-6);
  table.Group("One call");
  table.Add("call", &o.call, "simulates this call alone")
      .Choices({"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"});
  table.Add("machines", &o.machines, "ranks of each machine");
  table.Add("bytes", &o.bytes, "of the whole data").Min(4);
  table.Add("help", &o.help, "show this text");
  const std::string help = table.Help();
  const std::vector<std::string> rest = table.Parse(args);
  if (!rest.empty()) throw InvalidArgument("unknown argument \"" + rest[0] + "\"");
  if (o.help) {
    std::cout << help;
    return 0;
  }
  o.compute = {.tokens_of_rank = o.batch_size * o.length, .flops_of_rank = 1e12 * o.teraflops};
  return o.call.empty() ? RunTables(o) : RunCall(o);
}

}  // namespace
}  // namespace lathe::simulator

int main(int argc, char** argv) {
  return lathe::ReportErrors(lathe::kErrorExitCode, [&] {
    return lathe::simulator::Run({argv + 1, argv + argc});
  });
}
