// Two machines of two processes each: network namespaces that a pair of virtual cards connects,
// where the test may make them, else two addresses of this machine.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>

#include "lathe/apps/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

int Shell(const std::string& command) {
  const int status = std::system(("{ " + command + "; } > /dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class TwoMachines : public LaunchedTest {
 protected:
  void SetUp() override {
    LaunchedTest::SetUp();
    has_network_ =
        Shell("ip netns add " + Name(0) + " && ip netns add " + Name(1) +
              " && ip link add card netns " + Name(0) + " type veth peer name card netns " +
              Name(1) + " && ip -n " + Name(0) + " addr add 10.77.0.1/24 dev card" + " && ip -n " +
              Name(1) + " addr add 10.77.0.2/24 dev card" + " && ip -n " + Name(0) +
              " link set card up && ip -n " + Name(0) + " link set lo up && ip -n " + Name(1) +
              " link set card up && ip -n " + Name(1) + " link set lo up") == 0;
  }
  void TearDown() override {
    for (const int machine : {0, 1}) Shell("ip netns del " + Name(machine));
    LaunchedTest::TearDown();
  }
  static std::string Name(int machine) {
    return "lathe" + std::to_string(getpid()) + (machine == 0 ? "a" : "b");
  }

  // Runs the command in two ranks on each machine and returns the launchers' exit codes; what they
  // print goes to files out.0, err.0 and so on. `meanwhile` runs beside them.
  std::vector<int> Run(
      const Args& program, const std::function<void()>& meanwhile = [] {}) {
    std::vector<int> codes(2);
    std::vector<std::thread> machines;
    for (int machine = 0; machine < 2; ++machine) {
      std::string command = "echo $$ > " + Path("launcher." + std::to_string(machine)) + "; exec " +
                            (has_network_ ? "ip netns exec " + Name(machine) + " " : "");
      command += "apps/lathe launch --cpu --num_processes 4 --num_machines 2 --machine_rank " +
                 std::to_string(machine) + " --main_process_ip " +
                 (has_network_ ? "10.77.0.1" : "127.0.0.2") + " --main_process_port " +
                 std::to_string(20000 + getpid() % 20000);
      for (const std::string& arg : program) command += " '" + arg + "'";
      const std::string number = std::to_string(machine);
      command += " > " + Path("out." + number) + " 2> " + Path("err." + number);
      machines.emplace_back([command, &code = codes[static_cast<size_t>(machine)]] {
        const int status = std::system(command.c_str());
        code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      });
    }
    meanwhile();
    for (std::thread& machine : machines) machine.join();
    return codes;
  }

  // Its process, while Run runs.
  pid_t LauncherOf(int machine) const {
    return std::stoi(Read("launcher." + std::to_string(machine)));
  }

  bool has_network_ = false;
};

TEST_F(TwoMachines, GiveTheResultsOfOneProcess) {
  const Args more = {"--max_steps", "12", "--do_eval"};
  const auto with_batch = [&](const std::string& out, const std::string& size) {
    Args all = more;
    all.insert(all.end(), {"--per_device_train_batch_size", size});
    return Finetune(out, all);
  };
  ASSERT_EQ(Launch(1, with_batch("one", "12")).exit_code, 0);
  ASSERT_EQ(Run(with_batch("four", "3")), (std::vector<int>{0, 0}))
      << Read("err.0") << Read("err.1");
  std::cout << (has_network_ ? "two network namespaces" : "two addresses") << "\n";
  const std::vector<double> one = Losses("one"), four = Losses("four");
  ASSERT_EQ(one.size(), 12u);
  ASSERT_EQ(four.size(), 12u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(four[i], one[i], 1e-6 * one[i]) << i;
  EXPECT_EQ(ReadJson("four/eval_results.json")["eval_accuracy"],
            ReadJson("one/eval_results.json")["eval_accuracy"]);
  EXPECT_EQ(Read("out.1"), "");  // the main process's machine tells
}

TEST_F(TwoMachines, ASignalToOneLauncherEndsBothAlike) {
  const Args program =
      Finetune("out", {"--max_steps", "1000000", "--per_device_train_batch_size", "2"});
  for (const int machine : {0, 1}) {
    std::filesystem::remove_all(Path("out"));
    for (const int m : {0, 1}) Write("out." + std::to_string(m), "");
    const std::vector<int> codes = Run(program, [&] {
      while (Read("out.0").find("step 5/") == std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kill(LauncherOf(machine), SIGINT);
    });
    EXPECT_EQ(codes, (std::vector<int>{130, 130})) << Read("err.0") << Read("err.1");
    EXPECT_TRUE(Exists("out/model.safetensors"));
    EXPECT_NE(Read("out.0").find("interrupted after step "), std::string::npos) << Read("out.0");
    // The one that got it knows why; the other one says what its ranks have said.
    EXPECT_EQ(Read("err." + std::to_string(machine)), "");
    EXPECT_TRUE(Read("err." + std::to_string(1 - machine))
                    .ends_with(") ended with exit code 130, as told by signal 2 (Interrupt)\n"))
        << Read("err." + std::to_string(1 - machine));
  }
}

TEST_F(TwoMachines, BothNoticeThatTheNetworkIsCut) {
  if (!has_network_) GTEST_SKIP() << "no network namespaces can be made here";
  const Args program = Finetune("out", {"--max_steps", "1000000", "--per_device_train_batch_size",
                                        "2", "--ddp_timeout", "3"});
  Clock::time_point cut;
  Write("out.0", "");
  const std::vector<int> codes = Run(program, [&] {
    while (Read("out.0").find("step 5/") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cut = Clock::now();
    EXPECT_EQ(Shell("ip -n " + Name(0) + " link set card down"), 0);
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - cut).count();
  std::cout << "network cut, timeout 3 s: over after " << seconds << " s\n";
  EXPECT_EQ(codes, (std::vector<int>{75, 75}));
  EXPECT_LT(seconds, 30);
  EXPECT_NE(Read("err.0").find("rank 0 can't go on: "), std::string::npos) << Read("err.0");
  EXPECT_NE(Read("err.1").find("rank 2: error: "), std::string::npos) << Read("err.1");
  EXPECT_TRUE(Exists("out/model.safetensors"));
}

}  // namespace
}  // namespace lathe
