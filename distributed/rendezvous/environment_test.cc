#include "lathe/distributed/rendezvous/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "lathe/core/base/error.h"

namespace lathe {
namespace {

using Variables = std::map<std::string, std::string>;

ProcessEnvironment Read(const Variables& variables) {
  return ReadProcessEnvironment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  });
}

std::string ErrorOf(const Variables& variables) {
  try {
    Read(variables);
  } catch (const Error& e) {
    EXPECT_NE(e.hint(), "");
    return e.message();
  }
  return "nothing was thrown";
}

TEST(ProcessEnvironment, OneProcessWithoutALauncher) {
  for (const Variables& variables :
       {Variables{}, Variables{{"RANK", ""}, {"WORLD_SIZE", ""}},
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}}) {  // a batch script
    const ProcessEnvironment env = Read(variables);
    EXPECT_EQ(env.rank, 0);
    EXPECT_EQ(env.world_size, 1);
    EXPECT_EQ(env.launcher, "");
  }
}

TEST(ProcessEnvironment, Torchrun) {
  const ProcessEnvironment env = Read({{"RANK", "5"},
                                       {"WORLD_SIZE", "8"},
                                       {"LOCAL_RANK", "1"},
                                       {"LOCAL_WORLD_SIZE", "4"},
                                       {"MASTER_ADDR", "10.0.0.7"},
                                       {"MASTER_PORT", "1234"}});
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_addr, "10.0.0.7");
  EXPECT_EQ(env.master_port, 1234);
  EXPECT_EQ(env.job, "");
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LATHE_JOB_ID", "mine"}}).job, "mine");
}

TEST(ProcessEnvironment, TwoVariablesByHandAreEnoughOnOneMachine) {
  const ProcessEnvironment env = Read({{"RANK", "2"}, {"WORLD_SIZE", "3"}});
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_world_size, 3);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
  const ProcessEnvironment far =
      Read({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(far.local_rank, 0);
  EXPECT_EQ(far.local_world_size, 1);
}

TEST(ProcessEnvironment, AddressesOfIpv6) {
  Variables variables = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "[::1]"}};
  EXPECT_EQ(Read(variables).master_addr, "::1");
  EXPECT_EQ(Read(variables).local_world_size, 2);
  variables["MASTER_ADDR"] = "fd00::7";
  EXPECT_EQ(Read(variables).master_addr, "fd00::7");
  EXPECT_EQ(Read(variables).local_world_size, 1);
}

// A pod of a PyTorchJob that starts the program itself, though it shall have several processes.
TEST(ProcessEnvironment, APodThatNeedsALauncher) {
  Variables pod = {{"RANK", "1"},
                   {"WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "tune-master-0"},
                   {"PET_NNODES", "2"},
                   {"PET_NODE_RANK", "1"},
                   {"MASTER_PORT", "23456"},
                   {"PET_NPROC_PER_NODE", "2"}};
  EXPECT_EQ(ErrorOf(pod),
            "PET_NPROC_PER_NODE is 2 but LOCAL_RANK is not set: this machine shall have 2 "
            "processes, and nothing numbers them");
  for (const char* one : {"1", "auto", "gpu"}) {
    pod["PET_NPROC_PER_NODE"] = one;
    EXPECT_EQ(Read(pod).local_world_size, 1);
  }
  pod["PET_NPROC_PER_NODE"] = "2";
  pod["LOCAL_RANK"] = "1";  // `lathe launch` and torchrun set it
  pod["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_EQ(Read(pod).local_rank, 1);
}

TEST(ProcessEnvironment, OpenMpiAndMpich) {
  const ProcessEnvironment mpi = Read({{"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mpi.launcher, "Open MPI");
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.local_world_size, 2);
  const ProcessEnvironment pmi = Read({{"PMI_RANK", "3"},
                                       {"PMI_SIZE", "4"},
                                       {"MPI_LOCALRANKID", "1"},
                                       {"MPI_LOCALNRANKS", "2"},
                                       {"MASTER_ADDR", "a"}});
  EXPECT_EQ(pmi.launcher, "MPICH");
  EXPECT_EQ(pmi.rank, 3);
  EXPECT_EQ(pmi.local_rank, 1);
}

// Inside an mpirun or srun, RANK and WORLD_SIZE take precedence if the mpirun or srun has started
// WORLD_SIZE processes, or one launcher on each machine.
TEST(ProcessEnvironment, ALauncherInsideAnother) {
  const Variables inner = {{"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "node0"}};
  for (const Variables& outer :
       {Variables{{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NTASKS", "2"}},
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}},  // a batch script
        Variables{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
        Variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
        Variables{{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}}}) {
    Variables both = inner;
    both.insert(outer.begin(), outer.end());
    const ProcessEnvironment env = Read(both);
    EXPECT_EQ(env.launcher, "torchrun or lathe launch");
    EXPECT_EQ(env.rank, 5);
    EXPECT_EQ(env.world_size, 8);
    EXPECT_EQ(env.local_rank, 1);
  }
}

// A forgotten `export RANK=0 WORLD_SIZE=1` in front of an mpirun of two processes is refused.
TEST(ProcessEnvironment, ALargerJobOutside) {
  const Variables forgotten = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  const auto error_of = [&](Variables outer) {
    outer.insert(forgotten.begin(), forgotten.end());
    return ErrorOf(outer);
  };
  EXPECT_EQ(error_of({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
            "WORLD_SIZE is 1 but OMPI_COMM_WORLD_SIZE is 2: Open MPI has started more processes "
            "than the job has");
  EXPECT_EQ(error_of({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}),
            "WORLD_SIZE is 1 but PMI_SIZE is 4: MPICH has started more processes than the job "
            "has");
  EXPECT_EQ(error_of({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
            "WORLD_SIZE is 1 but SLURM_STEP_NUM_TASKS is 4: Slurm has started more processes than "
            "the job has");
  // Unsetting the outer size, as the hint says, makes separate jobs.
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMI_RANK", "3"}}).world_size, 1);
}

TEST(ProcessEnvironment, Slurm) {
  Variables variables = {{"SLURM_PROCID", "6"},
                         {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "3"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                         {"SLURM_STEP_NODELIST", "gpu[03-05,9]"},
                         {"SLURM_JOB_ID", "123456"}};
  const ProcessEnvironment env = Read(variables);
  EXPECT_EQ(env.launcher, "Slurm");
  EXPECT_EQ(env.rank, 6);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.master_addr, "gpu03");
  EXPECT_EQ(env.master_port, 15000 + 3456);
  EXPECT_EQ(env.job, "123456");
  variables["SLURM_STEP_ID"] = "2";
  EXPECT_EQ(Read(variables).master_port, 15000 + 3458);
  EXPECT_EQ(Read(variables).job, "123456.2");
  variables["SLURM_NODEID"] = "2";
  EXPECT_EQ(Read(variables).local_world_size, 2);
  variables["SLURM_STEP_NODELIST"] = "one,two";
  EXPECT_EQ(Read(variables).master_addr, "one");
  variables["MASTER_ADDR"] = "ten";
  variables["MASTER_PORT"] = "10";
  EXPECT_EQ(Read(variables).master_addr, "ten");
  EXPECT_EQ(Read(variables).master_port, 10);
}

// These variables are those of a rank of `torchrun --nproc_per_node 2`.
TEST(ProcessEnvironment, TorchrunListensAtItsPort) {
  Variables variables = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", "38119"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(Read(variables).master_port, 38120);
  EXPECT_EQ(Read(variables).job, "none");
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(Read(variables).master_port, 38123);
  variables["MASTER_PORT"] = "65533";
  EXPECT_EQ(Read(variables).master_port, 65529);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(Read(variables).master_port, 65533);
}

TEST(ProcessEnvironment, FirstHostOfSlurmsLists) {
  for (const auto& [list, first] : std::map<std::string, std::string>{
           {"one", "one"},
           {"gpu[03-05,9],other", "gpu03"},
           {"gpu[7,9]", "gpu7"},
           {"r[1-2]n[01-04]", "r1n01"},
           {"r[2,4]n[5],x", "r2n5"},
           {"rack[1-2]-ib.example,other[1-2]", "rack1-ib.example"},
           {"broken[", "broken"},
           {"broken[1-", "broken1"},
       }) {
    EXPECT_EQ(Read({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_STEP_NODELIST", list}})
                  .master_addr,
              first);
  }
}

// These variables are those that `srun --mpi=pmi2` sets for two processes on each of two machines.
TEST(ProcessEnvironment, SlurmWithPmi2) {
  const Variables pmi2 = {{"PMI_RANK", "3"},
                          {"PMI_SIZE", "4"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_STEP_NODELIST", "node[3-4]"},
                          {"SLURM_JOB_ID", "42"}};
  const ProcessEnvironment env = Read(pmi2);
  EXPECT_EQ(env.launcher, "Slurm");
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "node3");
  EXPECT_EQ(env.master_port, 15042);
  Variables with_address = pmi2;
  with_address["MASTER_ADDR"] = "10.0.0.7";
  EXPECT_EQ(Read(with_address).master_addr, "10.0.0.7");
  EXPECT_EQ(Read(with_address).local_rank, 1);
  // With a forgotten WORLD_SIZE, the error names Slurm's variable, since that is the one to unset.
  Variables forgotten = pmi2;
  forgotten.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(ErrorOf(forgotten),
            "WORLD_SIZE is 1 but SLURM_STEP_NUM_TASKS is 4: Slurm has started more processes than "
            "the job has");
}

// MPICH's variables count in a batch script that runs mpirun. They also count if mpirun starts its
// own helpers with srun, one on each machine.
TEST(ProcessEnvironment, MpichInsideOfSlurm) {
  const Variables mpich = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  for (const Variables& slurm :
       {Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}},
        Variables{{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"}}}) {
    Variables both = mpich;
    both.insert(slurm.begin(), slurm.end());
    const ProcessEnvironment env = Read(both);
    EXPECT_EQ(env.launcher, "MPICH");
    EXPECT_EQ(env.local_rank, 1);
  }
}

TEST(ProcessEnvironment, PmiWithoutMachines) {
  constexpr char kMessage[] =
      "PMI_RANK and PMI_SIZE are set, but neither MPI_LOCALRANKID with MPI_LOCALNRANKS nor "
      "MASTER_ADDR: nothing tells on which machines the job's processes run";
  EXPECT_EQ(ErrorOf({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), kMessage);
  EXPECT_EQ(ErrorOf({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}}), kMessage);
  // Slurm's variables belong to another step here.
  EXPECT_EQ(ErrorOf({{"PMI_RANK", "1"},
                     {"PMI_SIZE", "2"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "1"}}),
            kMessage);
  EXPECT_EQ(Read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).world_size, 1);
  EXPECT_EQ(
      Read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}).local_world_size,
      2);
}

TEST(ProcessEnvironment, Mistakes) {
  EXPECT_EQ(ErrorOf({{"RANK", "0"}}), "RANK is set but WORLD_SIZE is not");
  EXPECT_EQ(ErrorOf({{"WORLD_SIZE", "2"}}), "WORLD_SIZE is set but RANK is not");
  EXPECT_EQ(ErrorOf({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK must be a whole number from 0 to 1 but is \"2\"");
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "two"}}),
            "WORLD_SIZE must be a whole number from 1 to 1048576 but is \"two\"");
  EXPECT_EQ(ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
            "MASTER_PORT must be a whole number from 1 to 65535 but is \"70000\"");
  EXPECT_EQ(
      ErrorOf({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}),
      "LOCAL_RANK is 3 but this machine has 2 processes of the job");
  EXPECT_EQ(ErrorOf({{"OMPI_COMM_WORLD_RANK", "1"},
                     {"OMPI_COMM_WORLD_SIZE", "4"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            "MASTER_ADDR is not set, and the job's processes run on several machines");
}

}  // namespace
}  // namespace lathe
