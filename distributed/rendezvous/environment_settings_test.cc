// Tests what programs and launchers read from the environment besides a process's place in its job.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "lathe/core/base/error.h"
#include "lathe/distributed/rendezvous/environment.h"

namespace lathe {
namespace {

TEST(CheckOneLauncherPerMachine, RefusesSeveralOnAMachine) {
  const auto refusal = [](int num_machines, const std::map<std::string, std::string>& variables) {
    try {
      CheckOneLauncherPerMachine(num_machines, [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      });
      return std::string();
    } catch (const Error& e) {
      EXPECT_NE(e.hint(), "");
      return e.message();
    }
  };
  EXPECT_EQ(refusal(1, {}), "");
  EXPECT_EQ(refusal(1, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "");  // a launcher replaces these
  const std::map<std::string, std::string> mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(refusal(1, mpi),
            "Open MPI has started 2 copies of this launcher (OMPI_COMM_WORLD_SIZE), and each would "
            "start a whole job on 1 machine");
  EXPECT_EQ(refusal(2, mpi), "");
  const std::map<std::string, std::string> slurm = {{"SLURM_PROCID", "0"},
                                                    {"SLURM_STEP_NUM_TASKS", "8"}};
  EXPECT_TRUE(refusal(2, slurm).starts_with("Slurm has started 8 copies of this launcher"));
  EXPECT_EQ(refusal(8, slurm), "");
  EXPECT_EQ(refusal(1, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), "");  // a batch script
}

TEST(ReadDevice, KnowsAcceleratesWords) {
  const auto device = [](const std::string& use_cpu, const std::string& use_gpu = "") {
    return ReadDevice([&](const char* name) -> std::optional<std::string> {
      const std::string value = name == std::string("ACCELERATE_USE_CPU") ? use_cpu
                                : name == std::string("LATHE_USE_GPU")    ? use_gpu
                                                                          : "";
      return value.empty() ? std::nullopt : std::optional(value);
    });
  };
  const auto read = [&](const std::string& value) { return device(value) == "cpu"; };
  EXPECT_EQ(device(""), "auto");
  EXPECT_EQ(device("false"), "auto");
  EXPECT_EQ(device("false", "1"), "cuda");
  EXPECT_EQ(device("true", "1"), "cpu");
  for (const char* yes : {"y", "yes", "t", "true", "on", "1", "True", "YES", "T", "On"})
    EXPECT_TRUE(read(yes)) << yes;
  for (const char* no : {"n", "no", "f", "false", "off", "0", "False", "NO", "oFF", ""})
    EXPECT_FALSE(read(no)) << no;
  for (const char* other : {"maybe", "2", "tr", " 1", "yes "}) {
    try {
      read(other);
      ADD_FAILURE() << other;
    } catch (const Error& e) {
      EXPECT_EQ(e.message(),
                std::string("ACCELERATE_USE_CPU must be true or false but is \"") + other + "\"");
      EXPECT_NE(e.hint(), "");
    }
  }
}

TEST(ReadTimeout, IsInSeconds) {
  for (const std::string variable : {"LATHE_TIMEOUT", "LATHE_HEARTBEAT_TIMEOUT"}) {
    const auto read = [&](const std::string& value) {
      const auto get = [&](const char* name) -> std::optional<std::string> {
        EXPECT_EQ(name, variable);
        return value.empty() ? std::nullopt : std::optional(value);
      };
      return variable == "LATHE_TIMEOUT" ? ReadTimeout(get) : ReadHeartbeatTimeout(get);
    };
    if (variable == "LATHE_TIMEOUT") {
      EXPECT_EQ(read(""), std::chrono::minutes(10));
    } else {
      EXPECT_EQ(read(""), std::nullopt);
    }
    EXPECT_EQ(read("1"), std::chrono::seconds(1));
    EXPECT_EQ(read("2.5"), std::chrono::milliseconds(2500));
    for (const char* other : {"0", "-3", "soon", "5s", "nan", "1e7"}) {
      try {
        read(other);
        ADD_FAILURE() << other;
      } catch (const Error& e) {
        EXPECT_EQ(
            e.message(),
            variable + " must be a number of seconds from 1 to 1000000 but is \"" + other + "\"");
        EXPECT_NE(e.hint(), "");
      }
    }
  }
}

TEST(ReadAccumulationSteps, AreAboveZero) {
  const auto read = [](const std::string& value) {
    return ReadAccumulationSteps([&](const char* name) -> std::optional<std::string> {
      EXPECT_STREQ(name, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
      return value.empty() ? std::nullopt : std::optional(value);
    });
  };
  EXPECT_EQ(read(""), 1);
  EXPECT_EQ(read("8"), 8);
  for (const char* other : {"0", "-1", "2.5", "many"}) EXPECT_THROW(read(other), Error) << other;
}

}  // namespace
}  // namespace lathe
