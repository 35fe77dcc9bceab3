// Joins jobs as the schedulers of docs/distributed.md start them: with their environment variables.
#include <gtest/gtest.h>
#include <netdb.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "lathe/distributed/job/join_process_group.h"
#include "lathe/distributed/rendezvous/environment.h"
#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

using Variables = std::map<std::string, std::string>;

// Starts a process with each of these sets of variables. All must join one job, and each must find
// the local rank that is expected of it.
void ExpectOneJob(const std::vector<Variables>& processes, const std::vector<int>& local_ranks) {
  const int n = static_cast<int>(processes.size());
  const auto results = RunProcesses(Environments(n, 1), [&](const ProcessEnvironment& number) {
    for (const auto& [name, value] : processes[number.rank]) setenv(name.c_str(), value.c_str(), 1);
    const ProcessEnvironment env = ReadProcessEnvironment();
    EXPECT_EQ(env.rank, number.rank);
    EXPECT_EQ(env.world_size, n);
    EXPECT_EQ(env.local_rank, local_ranks[number.rank]);
    const auto group = JoinProcessGroup(env, {.timeout = std::chrono::seconds(30)});
    std::vector<float> sum(1, static_cast<float>(env.rank + 1));
    group->AllReduce(sum);
    EXPECT_EQ(sum[0], static_cast<float>(n * (n + 1) / 2));
    return std::string();
  });
  ExpectAllWell(results);
}

// Returns this machine's name, which stands for that of the machine of rank 0; "" if it leads
// nowhere.
std::string NameOfThisMachine() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  addrinfo* found = nullptr;
  if (getaddrinfo(name, nullptr, nullptr, &found) != 0) return "";
  freeaddrinfo(found);
  return name;
}

// One master and two workers. Each pod has one process, which the pod starts itself.
TEST(Schedulers, PyTorchJobOfKubernetes) {
  const std::string master = NameOfThisMachine();
  if (master.empty()) GTEST_SKIP() << "this machine's name leads nowhere";
  const std::string port = std::to_string(FreePort());
  std::vector<Variables> pods;
  for (int pod = 0; pod < 3; ++pod) {
    pods.push_back({{"PYTHONUNBUFFERED", "1"},
                    {"MASTER_ADDR", master},
                    {"MASTER_PORT", port},
                    {"WORLD_SIZE", "3"},
                    {"RANK", std::to_string(pod)},
                    {"PET_NNODES", "3"},
                    {"PET_NODE_RANK", std::to_string(pod)},
                    {"PET_NPROC_PER_NODE", "auto"},
                    {"PET_MASTER_ADDR", master},
                    {"PET_MASTER_PORT", port},
                    {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
  }
  ExpectOneJob(pods, {0, 0, 0});
}

// Two workers with two slots each. Open MPI sets its variables; -x adds MASTER_ADDR.
TEST(Schedulers, MpiOperatorOfKubernetes) {
  const std::string master = NameOfThisMachine();
  if (master.empty()) GTEST_SKIP() << "this machine's name leads nowhere";
  const std::string port = std::to_string(FreePort());
  std::vector<Variables> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back({{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                     {"OMPI_COMM_WORLD_SIZE", "4"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % 2)},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
                     {"PMIX_NAMESPACE", "2411921409"},
                     {"MASTER_ADDR", master},
                     {"MASTER_PORT", port},
                     {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
  }
  ExpectOneJob(ranks, {0, 1, 0, 1});
}

// srun with two tasks on each of two nodes. Nothing but Slurm's own variables says where to meet.
TEST(Schedulers, Slurm) {
  const std::string master = NameOfThisMachine();
  if (master.empty()) GTEST_SKIP() << "this machine's name leads nowhere";
  const int job = FreePort();  // another one for each run, as the port follows from it
  std::vector<Variables> tasks;
  for (int task = 0; task < 4; ++task) {
    tasks.push_back({{"SLURM_JOB_ID", std::to_string(job)},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", std::to_string(task)},
                     {"SLURM_LOCALID", std::to_string(task % 2)},
                     {"SLURM_NODEID", std::to_string(task / 2)},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_STEP_NUM_TASKS", "4"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                     {"SLURM_STEP_NODELIST", master + ",other"}});
  }
  ExpectOneJob(tasks, {0, 1, 0, 1});
}

}  // namespace
}  // namespace lathe
