// Tests that several ranks follow one control, whichever of them sets it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "lathe/core/json/json_text.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/testing/testing.h"
#include "lathe/train/trainer_testing.h"

namespace lathe {
namespace {

// Trains on two ranks. `act` runs on the given rank only. Returns what `report` makes of each
// rank's events.
std::vector<std::string> TrainOnTwo(
    const TrainingArguments& arguments, int rank, const Recorder::Act& act,
    const std::function<std::string(const Trainer&, const Recorder&)>& report) {
  const std::vector<RankResult> results = RunRanks(2, [&](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(arguments);
    options.environment = env;
    options.timeout = std::chrono::seconds(20);
    Accelerator accelerator(options);
    const auto recorder = std::make_shared<Recorder>(env.rank == rank ? act : nullptr);
    Trainer trainer(arguments, accelerator, TinyInputs(), {recorder});
    trainer.Train();
    EXPECT_EQ(trainer.state().is_world_process_zero, env.rank == 0);
    return report(trainer, *recorder);
  });
  ExpectAllWell(results);
  return {results[0].said, results[1].said};
}

std::string Steps(const Trainer& trainer, const Recorder&) {
  return std::to_string(trainer.state().global_step);
}

TEST(TrainerRanksTest, AllStopAfterTheSameStep) {
  for (const int rank : {0, 1}) {
    const auto steps = TrainOnTwo(
        TinyArguments(), rank,
        [](auto& event, auto& state, auto& control) {
          if (event == "step_end" && state.global_step == 2) control.should_training_stop = true;
        },
        Steps);
    EXPECT_EQ(steps, (std::vector<std::string>{"2", "2"})) << rank;
  }
}

TEST(TrainerRanksTest, AllStopBeforeTheFirstStep) {
  const auto steps = TrainOnTwo(
      TinyArguments(), 1,
      [](auto& event, auto&, auto& control) {
        if (event == "train_begin") control.should_training_stop = true;
      },
      Steps);
  EXPECT_EQ(steps, (std::vector<std::string>{"0", "0"}));
}

TEST(TrainerRanksTest, AllLogEvaluateAndSave) {
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = testing::TempDir() + "trainer_ranks_test";
  arguments.overwrite_output_dir = true;
  const auto events = TrainOnTwo(
      arguments, 1,
      [](auto& event, auto& state, auto& control) {
        if (event == "step_end" && state.global_step == 1) control.should_log = true;
        if (event == "log") control.should_evaluate = true;
        if (event == "evaluate") control.should_save = true;
      },
      [](const Trainer&, const Recorder& recorder) {
        std::string acts;
        for (const std::string& event : recorder.events()) {
          if (event.starts_with("log ") || event.starts_with("evaluate ") ||
              event.starts_with("save"))
            acts += event + ", ";
        }
        return acts;
      });
  EXPECT_EQ(events[0], "log 1, evaluate 1, save 1, save 4, ");
  EXPECT_EQ(events[1], "log 1, evaluate 1, ");  // only the main process writes
  EXPECT_EQ(ReadFile(arguments.output_dir + "/own.txt"), "4");
}

TEST(TrainerRanksTest, RefusesUnequalCallbacks) {
  const std::vector<RankResult> results = RunRanks(2, [](const ProcessEnvironment& env) {
    AcceleratorOptions options = AcceleratorOptionsOf(TinyArguments());
    options.environment = env;
    options.timeout = std::chrono::seconds(20);
    Accelerator accelerator(options);
    std::vector<std::shared_ptr<Callback>> callbacks;
    if (env.rank == 1) callbacks.push_back(std::make_shared<Recorder>());
    const Trainer trainer(TinyArguments(), accelerator, TinyInputs(), callbacks);
    return std::string();
  });
  for (const RankResult& result : results) {
    EXPECT_NE(result.said.find("number of callbacks that set the control"), std::string::npos)
        << result.said;
  }
}

// After a restart with fewer processes, these share the batch of those before.
TEST(TrainerRanksTest, ThePlanNamesTheBatchThatIsTrained) {
  const std::pair<const char*, std::string> cases[] = {
      {"2", "8 (4 per epoch), batches of 1 on each of 2 processes"},
      {"3", "6 (3 per epoch), batches of 3 shared by 2 processes"},
      {"4", "4 (2 per epoch), batches of 2 on each of 2 processes"}};
  for (const auto& [before, plan] : cases) {
    TrainingArguments arguments = TinyArguments();
    arguments.per_device_train_batch_size = 1;
    setenv(kBatchProcessesVariable, before, 1);
    const auto plans =
        TrainOnTwo(arguments, 0, nullptr,
                   [](const Trainer& trainer, const Recorder&) { return trainer.Plan(); });
    EXPECT_EQ(plans[0], plan);
  }
  unsetenv(kBatchProcessesVariable);
}

TEST(TrainerRanksTest, TheMetricsNameTheSlowestRank) {
  const auto costs = TrainOnTwo(
      TinyArguments(), 1,
      [](auto& event, auto&, auto&) {
        if (event.starts_with("step_begin"))
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
      },
      [](const Trainer& trainer, const Recorder&) {
        const nlohmann::json& metrics = trainer.metrics();
        EXPECT_EQ(metrics.at("slowest_rank"), 1);
        EXPECT_GT(metrics.at("slowest_rank_extra_time"), 0.12);  // of 3 pauses
        EXPECT_GE(metrics.at("time_in_collectives_hidden"), 0);
        EXPECT_NEAR(metrics.at("time_in_collectives"),
                    metrics.at("time_in_collectives_hidden").get<double>() +
                        metrics.at("time_in_collectives_exposed").get<double>(),
                    1e-9);
        return DumpJson(metrics.at("time_in_collectives_exposed"));
      });
  EXPECT_GT(std::stod(costs[0]), 0.12);
}

// The main process reads and verifies checkpoints. That may take longer than ranks may be late.
// Here another rank has a lease on a manifest. So whoever opens the file waits until it is
// released.
TEST(TrainerRanksTest, AllWaitForASlowSearchForACheckpoint) {
  const std::string folder = testing::TempDir() + "trainer_ranks_test_slow";
  const std::string slow_file = folder + "/checkpoint-3/manifest.json";
  std::filesystem::remove_all(folder);
  TrainingArguments arguments = TinyArguments();
  arguments.output_dir = folder;
  arguments.save_strategy = "steps";
  arguments.save_steps = 1;
  const auto train = [&](bool is_slow) {
    const auto results = RunRanks(2, [&](const ProcessEnvironment& env) {
      std::thread holder;
      if (is_slow && env.rank == 1) {
        std::signal(SIGIO, SIG_IGN);  // says that somebody waits
        const int fd = open(slow_file.c_str(), O_RDWR | O_CLOEXEC);
        if (fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return std::string("there are no leases here");
        holder = std::thread([fd] {
          std::this_thread::sleep_for(std::chrono::seconds(7));
          fcntl(fd, F_SETLEASE, F_UNLCK);
          close(fd);
        });
      }
      AcceleratorOptions options = AcceleratorOptionsOf(arguments);
      options.environment = env;
      options.timeout = std::chrono::seconds(3);
      Accelerator accelerator(options);
      const auto start = std::chrono::steady_clock::now();
      std::string resumed;
      try {
        Trainer trainer(arguments, accelerator, TinyInputs());
        trainer.Train();
        resumed = trainer.resumed_from();
      } catch (const Error& e) {
        resumed = e.message();
      }
      if (holder.joinable()) holder.join();
      const bool was_slow = std::chrono::steady_clock::now() - start > std::chrono::seconds(5);
      return is_slow && !was_slow ? "nobody has waited" : resumed;
    });
    ExpectAllWell(results);
    return results[1].said;
  };
  EXPECT_EQ(train(false), "");
  arguments.resume_from_checkpoint = "true";
  EXPECT_EQ(train(true), folder + "/checkpoint-4");
}

// Each rank stands for a machine of its own, which has its own folder `out`.
TEST(TrainerRanksTest, MachinesThatShareNoFolderAreToldSoBeforeTheFirstStep) {
  const std::string root = testing::TempDir() + "trainer_ranks_test_machines";
  const auto train = [&](const std::string& out, bool shard) {
    std::filesystem::remove_all(root);
    const auto results = RunRanks(2, [&](const ProcessEnvironment& env) {
      const std::string own = root + "/" + std::to_string(env.rank);
      std::filesystem::create_directories(own);
      EXPECT_EQ(chdir(own.c_str()), 0);
      TrainingArguments arguments = TinyArguments();
      arguments.output_dir = out;
      arguments.save_strategy = "steps";
      arguments.shard_optimizer = shard;
      AcceleratorOptions options = AcceleratorOptionsOf(arguments);
      options.environment = PlacedOn(env, /*one_machine=*/false);
      options.timeout = std::chrono::seconds(20);
      Accelerator accelerator(options);
      try {
        Trainer trainer(arguments, accelerator, TinyInputs());
        return trainer.notes().empty() ? std::string() : trainer.notes().front();
      } catch (const Error& e) {
        return e.message();
      }
    });
    ExpectAllWell(results);
    EXPECT_EQ(results[0].said, results[1].said);
    return results[0].said;
  };
  const std::string problem = "out: rank 1 does not see the main process's output folder";
  EXPECT_EQ(train("out", true),
            problem + ", into which each process writes its part of a checkpoint");
  EXPECT_EQ(train("out", false),
            problem + "; copy a checkpoint to all machines before training goes on");
  EXPECT_EQ(train(root + "/out", true), "");
}

}  // namespace
}  // namespace lathe
