// Tests that finetune and the example loop give the same results in several processes as in one,
// under `lathe launch` and other launchers.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lathe/apps/testing/cli_testing.h"

namespace lathe {
namespace {

using Args = std::vector<std::string>;

TEST_F(LaunchedTest, GiveTheResultsOfOne) {
  // 96 samples make global batches of 12, and the last window of an epoch is short. The 40 samples
  // to evaluate are no multiple of 12.
  std::vector<double> one;
  std::string predictions;
  for (const int n : {1, 2, 3, 4}) {
    const std::string out = "out" + std::to_string(n), size = std::to_string(12 / n);
    const RunResult run =
        Launch(n, Finetune(out, {"--do_eval", "--do_predict", "--per_device_train_batch_size", size,
                                 "--per_device_eval_batch_size", size,
                                 "--gradient_accumulation_steps", "3", "--num_train_epochs", "4"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    // Only one process prints.
    EXPECT_EQ(run.out.find("\n  model "), run.out.rfind("\n  model "));
    EXPECT_EQ(run.out.find("processes   ") != std::string::npos, n > 1) << run.out;
    EXPECT_EQ(run.out.find("\nranks: ") != std::string::npos, n > 1) << run.out;
    EXPECT_EQ(Read(out + "/report.html").find(">cost of the ranks<") != std::string::npos, n > 1);
    EXPECT_EQ(ReadJson(out + "/train_results.json").contains("time_in_collectives"), n > 1);
    const std::vector<double> losses = Losses(out);
    nlohmann::json results = ReadJson(out + "/all_results.json");
    ASSERT_EQ(losses.size(), 12u);
    if (n == 1) {
      one = losses;
      predictions = Read(out + "/predict_results.tsv");
    }
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(losses[i], one[i], 1e-6 * one[i]) << n << " processes, step " << i + 1;
    const nlohmann::json first = ReadJson("out1/all_results.json");
    EXPECT_EQ(results["eval_samples"], 40);
    EXPECT_EQ(results["eval_accuracy"], first["eval_accuracy"]);
    EXPECT_NEAR(results["eval_loss"].get<double>(), first["eval_loss"].get<double>(), 1e-5);
    EXPECT_EQ(ReadJson(out + "/trainer_state.json")["num_input_tokens_seen"],
              ReadJson("out1/trainer_state.json")["num_input_tokens_seen"]);
    // Predicted labels agree; the last digits of the logits may differ.
    const std::string table = Read(out + "/predict_results.tsv");
    std::istringstream a(table), b(predictions);
    for (std::string x, y; std::getline(a, x) && std::getline(b, y);)
      EXPECT_EQ(x.substr(0, x.find('\t', x.find('\t') + 1)),
                y.substr(0, y.find('\t', y.find('\t') + 1)));
  }
}

TEST_F(LaunchedTest, WhetherTheyShareOutTheUpdateOrNot) {
  for (const int n : {2, 3}) {
    for (const char* precision : {"no", "bf16"}) {
      std::vector<double> whole;
      for (const char* shard : {"false", "true"}) {
        const RunResult run = Launch(
            n, Finetune("out", {"--shard_optimizer", shard, "--max_steps", "9", "--weight_decay",
                                "0.01", "--mixed_precision", precision,
                                "--gradient_accumulation_steps", "2", "--overwrite_output_dir"}));
        ASSERT_EQ(run.exit_code, 0) << run.err;
        const std::vector<double> losses = Losses("out");
        ASSERT_EQ(losses.size(), 9u);
        if (whole.empty()) whole = losses;
        for (size_t i = 0; i < losses.size(); ++i)
          EXPECT_NEAR(losses[i], whole[i], 1e-6 * whole[i]) << n << " processes, step " << i + 1;
      }
    }
  }
}

TEST_F(LaunchedTest, FilesWhoseNamesAreNotUtf8) {
  const std::string name = "tr\xe4in.csv";
  Write(name, Read("train.csv"));
  const RunResult run =
      Launch(2, Finetune("out", {"--max_steps", "3", "--train_file", Path(name)}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(LaunchedTest, MoreProcessesThanSamplesInABatch) {
  const RunResult run =
      Launch(4, Finetune("out", {"--max_train_samples", "6", "--do_eval", "--max_eval_samples", "3",
                                 "--num_train_epochs", "1", "--per_device_train_batch_size", "1"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Losses("out").size(), 2u);  // of batches of 4 and 2 samples
}

TEST_F(LaunchedTest, TheExampleLoopUnchanged) {
  std::string one;
  ASSERT_EQ(Launch(1, Finetune("start", {"--max_steps", "1"})).exit_code, 0);
  for (const int n : {1, 2, 3}) {
    const RunResult run = Launch(n, {"examples/training_loop", Path("start"), Path("train.csv"),
                                     Path("dev.csv"), Path("loop" + std::to_string(n))});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    if (n == 1) one = run.out;
    EXPECT_EQ(run.out, one);
    EXPECT_TRUE(Exists("loop" + std::to_string(n) + "/model.safetensors"));
  }
}

// The variables of torchrun, set by hand, work too, and so does Open MPI's mpirun if it is
// installed.
TEST_F(LaunchedTest, OtherLaunchers) {
  const auto quoted = [](const Args& args) {
    std::string text;
    for (const std::string& arg : args) text += "'" + arg + "' ";
    return text;
  };
  const auto finetune = [&](const std::string& out) {
    return Finetune(out, {"--max_steps", "5", "--per_device_train_batch_size", "6"});
  };
  const auto loop = [&](const std::string& out) {
    return Args{"examples/training_loop", Path("out"), Path("train.csv"), Path("dev.csv"),
                Path(out)};
  };
  int port = TestPort();
  const auto by_hand = [&](const Args& program) {
    const std::string both =
        "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=" +
        std::to_string(port++) + "; RANK=1 LOCAL_RANK=1 " + quoted(program) +
        " & RANK=0 LOCAL_RANK=0 " + quoted(program) + " && wait $!";
    return std::system(("(" + both + ") > " + Path("said")).c_str());
  };
  const auto mpirun = [&](const Args& program) {
    return std::system(("MASTER_PORT=" + std::to_string(port++) +
                        " mpirun --allow-run-as-root --oversubscribe -np 2 " + quoted(program) +
                        " > " + Path("said"))
                           .c_str());
  };
  ASSERT_EQ(Launch(2, finetune("out")).exit_code, 0);
  const RunResult launched_loop = Launch(2, loop("loop"));
  ASSERT_EQ(launched_loop.exit_code, 0) << launched_loop.err;
  EXPECT_EQ(by_hand(finetune("by_hand")), 0);
  EXPECT_EQ(Read("by_hand/model.safetensors"), Read("out/model.safetensors"));
  EXPECT_EQ(by_hand(loop("loop_by_hand")), 0);
  EXPECT_EQ(Read("said"), launched_loop.out);
  // Without LOCAL_WORLD_SIZE, nothing says how many processes this machine has or that all are
  // here.
  EXPECT_EQ(std::system(
                ("(export WORLD_SIZE=2 MASTER_ADDR=0.0.0.0 MASTER_PORT=" + std::to_string(port++) +
                 "; RANK=1 LOCAL_RANK=1 " + quoted(finetune("far")) + " & RANK=0 LOCAL_RANK=0 " +
                 quoted(finetune("far")) + " && wait $!) > " + Path("said"))
                    .c_str()),
            0);
  EXPECT_TRUE(Exists("far/model.safetensors"));
  EXPECT_EQ(Read("loop_by_hand/model.safetensors"), Read("loop/model.safetensors"));

  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "no mpirun";
  EXPECT_EQ(mpirun(finetune("mpi")), 0);
  EXPECT_EQ(Read("mpi/model.safetensors"), Read("out/model.safetensors"));
  EXPECT_EQ(mpirun(loop("loop_mpi")), 0);
  EXPECT_EQ(Read("said"), launched_loop.out);
  EXPECT_EQ(Read("loop_mpi/model.safetensors"), Read("loop/model.safetensors"));
}

TEST_F(LaunchedTest, MistakesAreToldOnce) {
  const RunResult wrong = Launch(3, Finetune("out", {"--learning_rate", "fast"}));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("error: --learning_rate must be a number but is \"fast\"\n"),
            std::string::npos)
      << wrong.err;
  EXPECT_EQ(wrong.err.find("error:"), wrong.err.rfind("error:")) << wrong.err;
  const RunResult missing =
      Launch(2, Finetune("out", {"--train_file", Path("nothing.csv"), "--ddp_timeout", "20"}));
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("lathe launch: rank 0 ("), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("error: " + Path("nothing.csv") + ": No such file"), std::string::npos)
      << missing.err;
  EXPECT_EQ(missing.err.find("rank 1"), std::string::npos) << missing.err;
  // A mistake that each rank finds by itself is reported once, too.
  for (const auto& [option, error] :
       {std::pair("--config_name", Path("none") + ": no such folder (--config_name)"),
        std::pair(
            "--device",
            std::string("[accelerator] device cuda:1 is one GPU but there are 3 processes"))}) {
    const RunResult run = Launch(
        3, Finetune("out", {option, option == std::string("--device") ? "cuda:1" : Path("none")}));
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_NE(run.err.find("error: " + error + "\n"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << run.err;
  }
}

// If only one machine or one process has a wrong command line, that one reports it.
TEST_F(LaunchedTest, AMistakeOfSomeIsToldByThem) {
  Args command = {"env", "RANK=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "WORLD_SIZE=4"};
  for (const std::string& arg : Finetune("out", {"--max_stops", "3"})) command.push_back(arg);
  const RunResult machine = Launch(1, command);
  EXPECT_EQ(machine.exit_code, 2);
  EXPECT_TRUE(machine.err.starts_with("rank 2: error: unknown option --max_stops\n"))
      << machine.err;

  std::string script = "test $RANK = 1 && set -- --learning_rate fast; exec";
  for (const std::string& arg : Finetune("out", {"--max_steps", "3"})) script += " '" + arg + "'";
  const RunResult process = Launch(2, {"sh", "-c", script + " \"$@\""});
  EXPECT_EQ(process.exit_code, 2);
  EXPECT_NE(process.err.find("rank 1: error: --learning_rate must be a number but is \"fast\"\n"),
            std::string::npos)
      << process.err;
}

TEST_F(LaunchedTest, AccelerateUseCpuIsTrueOrFalse) {
  Args both = {"ACCELERATE_USE_CPU=maybe"};
  for (const std::string& arg : Finetune("out", {"--max_steps", "1"})) both.push_back(arg);
  both.insert(both.begin(), "env");
  const RunResult run = Launch(2, both);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(
      run.err.starts_with("error: ACCELERATE_USE_CPU must be true or false but is "
                          "\"maybe\"\nhint: "))
      << run.err;
  EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << run.err;
  both[1] = "ACCELERATE_USE_CPU=TRUE";
  EXPECT_EQ(Launch(2, both).exit_code, 0);
}

// If a machine waits in vain for another one, all its ranks have the same error, and one reports
// it.
TEST_F(LaunchedTest, OneOfAMachineTellsWhoIsMissing) {
  for (const char* machine : {"0", "1"}) {
    const RunResult run =
        Launch(6, Finetune("out", {"--max_steps", "1"}), {},
               {"--num_machines", "2", "--machine_rank", machine, "--main_process_ip", "127.0.0.1",
                "--main_process_port", std::to_string(TestPort()), "--timeout", "2"});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_NE(run.err.find(*machine == '0' ? "error: ranks 3, 4, 5 did not join within 2 s\n"
                                           : "rank 3: error: 127.0.0.1:"),
              std::string::npos)
        << run.err;
    EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << run.err;
    EXPECT_NE(run.err.find("rank " + std::string(*machine == '0' ? "0" : "3") + " (process"),
              std::string::npos)
        << run.err;
  }
}

TEST_F(LaunchedTest, OneProgramAfterAnother) {
  std::string script;
  for (const char* out : {"first", "second"}) {
    script += script.empty() ? "" : " && ";
    for (const std::string& arg : Finetune(out, {"--max_steps", "2"})) script += " '" + arg + "'";
  }
  const RunResult run = Launch(2, {"sh", "-c", script});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(Read("first/model.safetensors"), Read("second/model.safetensors"));
}

TEST_F(LaunchedTest, WhoAskedForGpusGetsNoCpu) {
  for (const int processes : {1, 2}) {
    Args program = {"env", "CUDA_VISIBLE_DEVICES=", "ACCELERATE_USE_CPU=0", "LATHE_USE_GPU=1"};
    for (const std::string& arg : Finetune("out", {"--max_steps", "1"})) program.push_back(arg);
    const RunResult run = Launch(processes, program);
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << run.err;
    EXPECT_NE(run.err.find("CUDA"), std::string::npos) << run.err;
    EXPECT_FALSE(Exists("out/model.safetensors"));
  }
}

TEST_F(LaunchedTest, ABadLossStopsAllAndIsToldOnce) {
  const RunResult run = Launch(
      2, Finetune("out", {"--learning_rate", "1e30", "--max_steps", "20", "--max_grad_norm", "0"}));
  EXPECT_EQ(run.exit_code, 1);
  // There are an error, a hint and the launcher's line.
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 3) << run.err;
  EXPECT_NE(run.err.find("the last good model, from before step"), std::string::npos) << run.err;
  // Both ranks end with the same code, and on a busy machine either may end first.
  EXPECT_NE(run.err.find("\nlathe launch: rank "), std::string::npos) << run.err;
  EXPECT_TRUE(Exists("out/model.safetensors"));
}

// The main process of a user's own program fails after the last call that the ranks have in common.
// The other rank ends without an error.
TEST_F(LaunchedTest, AMainProcessThatFailsAtTheEndLetsTheOthersEndWell) {
  ASSERT_EQ(Launch(1, Finetune("start", {"--max_steps", "1"})).exit_code, 0);
  for (int round = 0; round < 10; ++round) {
    const RunResult run = Launch(2, {"examples/training_loop", Path("start"), Path("train.csv"),
                                     Path("dev.csv"), "/proc/nothing"});
    EXPECT_EQ(run.exit_code, 1) << run.err;
    EXPECT_EQ(run.err.find("error: "), 0u) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 2) << run.err;
    EXPECT_NE(run.err.find("\nlathe launch: rank 0 (process "), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace lathe
