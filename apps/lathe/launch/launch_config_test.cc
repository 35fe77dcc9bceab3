// Tests the configuration file of `lathe launch`, and `lathe config`, which writes it.
#include "lathe/apps/lathe/launch/launch_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "lathe/apps/testing/cli_testing.h"
#include "lathe/core/base/error.h"

namespace lathe {
namespace {

class LaunchConfigTest : public CliTest {
 protected:
  void SetUp() override {
    CliTest::SetUp();
    setenv("CUDA_VISIBLE_DEVICES", "", 1);  // so that every machine asks the same questions
  }
  ~LaunchConfigTest() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  LaunchConfig Parse(const std::string& text) const {
    Write("c.yaml", text);
    return ReadLaunchConfig(Path("c.yaml"));
  }
  RunResult Config(std::vector<std::string> args, const std::string& answers = "") const {
    args.insert(args.begin(), "config");
    return RunProgram("lathe", args, {.input = answers});
  }
};

constexpr char kWritten[] = "hf/accelerate/default_config.yaml";

TEST_F(LaunchConfigTest, ReadsWhatAccelerateWrites) {
  const LaunchConfig config = Parse(R"(compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config: {}
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config: {}
enable_cpu_affinity: false
fsdp_config: {}
gpu_ids: 0,2
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: '29501'
main_training_function: main
megatron_lm_config: {}
mixed_precision: 'no'
num_machines: 2
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
tpu_name: null
command_file: ~
use_cpu: false
)");
  EXPECT_EQ(config.distributed_type, "MULTI_GPU");
  EXPECT_EQ(config.gpu_ids, "0,2");
  EXPECT_EQ(config.machine_rank, 1);
  EXPECT_EQ(config.main_process_ip, "10.0.0.1");
  EXPECT_EQ(config.main_process_port, 29501);
  EXPECT_EQ(config.mixed_precision, "no");
  EXPECT_EQ(config.num_machines, 2);
  EXPECT_EQ(config.num_processes, 4);
  EXPECT_FALSE(config.OnCpu());

  const LaunchConfig unquoted = Parse(
      "distributed_type: NO\nmixed_precision: no\nfp16: false\nnum_processes: -1\n"
      "main_process_ip:\nuse_cpu: true\n");
  EXPECT_EQ(unquoted.distributed_type, "NO");
  EXPECT_EQ(unquoted.mixed_precision, "no");
  EXPECT_EQ(unquoted.num_processes, std::nullopt);
  EXPECT_EQ(unquoted.main_process_ip, std::nullopt);
  EXPECT_TRUE(unquoted.OnCpu());
  EXPECT_EQ(Parse("{\"distributed_type\": \"MULTI_CPU\", \"num_processes\": 3}").num_processes, 3);
}

TEST_F(LaunchConfigTest, ReadsWhatItWrites) {
  LaunchConfig config;
  config.distributed_type = "MULTI_GPU";
  config.mixed_precision = "bf16";
  config.debug = true;
  config.num_processes = 8;
  config.num_machines = 2;
  config.machine_rank = 1;
  config.main_process_ip = "fe80::1%eth0: #";
  config.main_process_port = 29511;
  config.gpu_ids = "0,1";
  const std::string text = FormatLaunchConfig(config);
  const LaunchConfig read = Parse(text);
  EXPECT_EQ(FormatLaunchConfig(read), text);
  EXPECT_EQ(read.main_process_ip, config.main_process_ip);
  EXPECT_EQ(read.num_processes, 8);
  EXPECT_EQ(read.mixed_precision, "bf16");
  EXPECT_TRUE(read.debug);
}

TEST_F(LaunchConfigTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string text, message, hint;
  };
  const Case cases[] = {
      {"num_processes: x", ":2: num_processes must be a whole number but is \"x\"", "lathe config"},
      {"num_processes: 1.5", ":2: num_processes must be a whole number but is \"1.5\"", ""},
      {"num_processes: 0", ":2: num_processes must be at least 1 but is \"0\"", ""},
      {"num_processes: [1]", ":2: num_processes must be a whole number but is a list", ""},
      {"machine_rank: {a: 1}", ":2: machine_rank must be a whole number but is a map", ""},
      {"machine_rank: -1", ":2: machine_rank must be from 0 to", ""},
      {"main_process_port: 65536", ":2: main_process_port must be from 0 to 65535", ""},
      {"use_cpu: perhaps", ":2: use_cpu must be true or false but is \"perhaps\"", ""},
      {"gpu_ids: first", ":2: gpu_ids must be all or a list such as 0,1", ""},
      {"gpu_ids: 0,,1", ":2: gpu_ids must be all or a list such as 0,1", ""},
      {"num_proceses: 2", ":2: unknown key \"num_proceses\"", "did you mean num_processes?"},
      {"? [a]\n: 1", ":2: unknown key \"\"", ""},
      {"debug: true\ndebug: true", ":3: debug appears twice", ""},
      {"debug: [", "not valid YAML", "lathe config"},
      {"\tdebug: 1", ":2: not valid YAML", ""},
      {"mixed_precision: fp8", ":2: mixed_precision fp8: Lathe does not support this", ""},
      {"mixed_precision: f32", ":2: mixed_precision must be one of no, bf16, fp16 but is \"f32\"",
       ""},
      {"fsdp_config: {fsdp_version: 2}", ":2: fsdp_config: Lathe does not support this", ""},
      {"compute_environment: AMAZON_SAGEMAKER", ":2: compute_environment AMAZON_SAGEMAKER", ""},
      {"num_processes: 2", "num_processes is 2 but distributed_type is NO", "MULTI_CPU"},
  };
  const auto thrown = [&](const std::string& text, const std::string& message,
                          const std::string& hint) {
    try {
      Parse(text);
      ADD_FAILURE() << "nothing was thrown for " << text;
    } catch (const Error& e) {
      EXPECT_TRUE(e.message().starts_with(Path("c.yaml"))) << e.message();
      EXPECT_NE(e.message().find(message), std::string::npos) << e.message();
      EXPECT_NE(e.hint().find(hint), std::string::npos) << e.hint();
    }
  };
  for (const Case& c : cases) thrown("distributed_type: 'NO'\n" + c.text + "\n", c.message, c.hint);
  thrown("distributed_type: FSDP", ":1: distributed_type FSDP: Lathe does not support this",
         "config");
  thrown("distributed_type: MULTI", ":1: distributed_type must be one of NO, MULTI_CPU", "");
  thrown("debug: true", "distributed_type is missing", "lathe config");
  for (const char* text : {"", "just text", "- a\n- b\n"})
    thrown(text, "must have lines such as", "");
  std::string deep(100000, '[');
  thrown("debug: " + deep, "not valid YAML", "");
}

// With aliases, a few lines make billions of parts, or a value that contains itself.
TEST_F(LaunchConfigTest, RefusesAliasesWithoutEnd) {
  std::string multiplied = "distributed_type: NO\ntpu_env: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  const char *before = "a", *const keys[][2] = {
                                {"commands", "b"}, {"tpu_vm", "c"}, {"ipex_config", "d"}};
  for (const auto& [key, name] : keys) {
    multiplied += std::string(key) + ": &" + name + " [";
    for (int i = 0; i < 10; ++i) multiplied += (i == 0 ? "*" : ", *") + std::string(before);
    multiplied += "]\n";
    before = name;
  }
  for (const std::string& text :
       {std::string("distributed_type: NO\ncommands: &c [*c]\n"), multiplied}) {
    try {
      Parse(text);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_NE(e.message().find("has more than 1000 parts, or contains itself by an alias"),
                std::string::npos)
          << e.message();
    }
  }
}

TEST_F(LaunchConfigTest, ReadsHowPrecisionWasWrittenFirst) {
  const std::string type = "distributed_type: 'NO'\n";
  EXPECT_EQ(Parse(type + "fp16: true").mixed_precision, "fp16");
  EXPECT_EQ(Parse(type + "fp16: false").mixed_precision, std::nullopt);
  EXPECT_EQ(Parse(type + "fp16: true\nmixed_precision: bf16").mixed_precision, "bf16");
  EXPECT_EQ(Parse(type + "mixed_precision: bf16\nfp16: true").mixed_precision, "bf16");
}

TEST_F(LaunchConfigTest, AsksUntilAnswersFit) {
  RunResult run = Config({}, "both\nMULTI_CPU\n\n3\nfp8\nfp16\nbf16\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Please answer with one of NO MULTI_CPU MULTI_GPU."), std::string::npos);
  EXPECT_NE(run.out.find("Saved " + Path(kWritten)), std::string::npos) << run.out;
  LaunchConfig config = ReadLaunchConfig(Path(kWritten));
  EXPECT_EQ(config.distributed_type, "MULTI_CPU");
  EXPECT_EQ(config.num_machines, 1);
  EXPECT_EQ(config.num_processes, 3);
  EXPECT_EQ(config.mixed_precision, "bf16");
  EXPECT_TRUE(config.use_cpu);

  // The next time, it proposes the answers that it knows. Several machines need more answers.
  run = Config({}, "\n2\n2\n1\n\nnode0\n\n5\n6\n\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Please answer with a whole number from 0 to 1."), std::string::npos);
  EXPECT_NE(run.out.find("Please answer with a multiple of 2"), std::string::npos);
  config = ReadLaunchConfig(Path(kWritten));
  EXPECT_EQ(config.num_machines, 2);
  EXPECT_EQ(config.machine_rank, 1);
  EXPECT_EQ(config.main_process_ip, "node0");
  EXPECT_EQ(config.main_process_port, 29500);
  EXPECT_EQ(config.num_processes, 6);
  EXPECT_EQ(config.mixed_precision, "bf16");

  // `lathe launch` finds the file.
  EXPECT_EQ(
      RunProgram("lathe", {"launch", "sh", "-c", "test $RANK = 3 && echo $MASTER_ADDR; :"}).out,
      "node0\n");

  // If the job goes back to one machine, the file has no machine_rank any more.
  ASSERT_EQ(Config({}, "\n1\n2\n\n").exit_code, 0);
  config = ReadLaunchConfig(Path(kWritten));
  EXPECT_EQ(config.distributed_type, "MULTI_CPU");
  EXPECT_EQ(config.num_machines, 1);
  EXPECT_EQ(config.num_processes, 2);
  EXPECT_EQ(config.machine_rank, 0);
  EXPECT_EQ(config.main_process_ip, std::nullopt);
  EXPECT_EQ(config.main_process_port, std::nullopt);

  ASSERT_EQ(Config({}, "NO\n\n").exit_code, 0);
  config = ReadLaunchConfig(Path(kWritten));
  EXPECT_EQ(config.num_machines, 1);
  EXPECT_EQ(config.num_processes, 1);
  EXPECT_EQ(config.main_process_ip, std::nullopt);
}

// Keys that only Accelerate reads stay in the file and keep their meaning there.
TEST_F(LaunchConfigTest, AskingAgainDropsNothing) {
  Write("file.yaml", R"(compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config: {dynamo_backend: 'a, "b"', dynamo_mode: default}
enable_cpu_affinity: true
gpu_ids: 1,3
main_training_function: run
num_machines: 1
num_processes: 2
rdzv_backend: c10d
same_network: false
tpu_env: [A=1, 'no']
tpu_use_sudo: no
use_cpu: false
)");
  RunResult run = Config({"--config_file", Path("file.yaml")}, "\n\n\n\n\n");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_EQ(Read("file.yaml"), R"(compute_environment: 'LOCAL_MACHINE'
debug: false
distributed_type: 'MULTI_GPU'
gpu_ids: '1,3'
machine_rank: 0
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: false
downcast_bf16: "no"
dynamo_config: {dynamo_backend: "a, \"b\"", dynamo_mode: default}
enable_cpu_affinity: true
main_training_function: run
rdzv_backend: c10d
same_network: false
tpu_env: [A=1, "no"]
tpu_use_sudo: no
)");
  const std::string before = Read("file.yaml");
  run = Config({"--config_file", Path("file.yaml")}, "\n\n\n0,\n0,2\n\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Please answer with all, or numbers with commas between them."),
            std::string::npos)
      << run.out;
  std::string after = before;
  after.replace(after.find("1,3"), 3, "0,2");
  EXPECT_EQ(Read("file.yaml"), after);
}

TEST_F(LaunchConfigTest, WritesNothingWithoutAllAnswers) {
  for (const char* answers : {"", "MULTI_CPU\n", "MULTI_CPU\n1\n2\nfp8\n"}) {
    const RunResult run = Config({}, answers);
    ExpectError(run, "standard input ended before the last question; nothing was written");
    EXPECT_FALSE(Exists("hf"));
  }
}

TEST_F(LaunchConfigTest, ReplacesNoFileThatItCannotRead) {
  for (const char* text : {"precious: notes\n", "distributed_type: FSDP\n", ": : :\n"}) {
    Write("notes", text);
    ExpectError(Config({"--config_file", Path("notes")}, "NO\n\n"), "does not replace a file");
    EXPECT_EQ(Read("notes"), text);
  }
  ExpectError(Config({"--config_file", Path("model")}, "NO\n\n"), "does not replace a file");
  ExpectError(Config({"--config_file", Path("train.csv/c.yaml")}, "NO\n\n"), "Not a directory");
}

TEST_F(LaunchConfigTest, DefaultAsksNothingAndReplacesNothing) {
  EXPECT_EQ(Config({"default", "--mixed_precision", "bf16"}).exit_code, 0);
  const LaunchConfig config = ReadLaunchConfig(Path(kWritten));
  EXPECT_EQ(config.distributed_type, "NO");
  EXPECT_EQ(config.num_processes, 1);
  EXPECT_EQ(config.mixed_precision, "bf16");
  const std::string before = Read(kWritten);
  ExpectError(Config({"default"}), "default_config.yaml exists already");
  EXPECT_EQ(Read(kWritten), before);
  ExpectError(Config({"defaults"}), "unknown argument \"defaults\"", 2);
  ExpectError(Config({"--mixed_precision", "bf16"}), "only for `lathe config default`", 2);
}

TEST_F(LaunchConfigTest, LivesWhereAccelerateLooks) {
  EXPECT_EQ(DefaultConfigPath(), Path(kWritten));
  unsetenv("HF_HOME");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(DefaultConfigPath(), "/cache/huggingface/accelerate/default_config.yaml");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(DefaultConfigPath(), "/home/ada/.cache/huggingface/accelerate/default_config.yaml");
}

}  // namespace
}  // namespace lathe
