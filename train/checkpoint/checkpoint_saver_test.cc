// Tests how a checkpoint is copied: beside the training, or not at all where memory is short.
#include "lathe/train/checkpoint/checkpoint_saver.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "lathe/core/base/file.h"
#include "lathe/distributed/accelerator.h"
#include "lathe/distributed/testing/testing.h"
#include "lathe/train/checkpoint/available_memory.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMebibyte = 1 << 20;

std::string Folder() { return testing::TempDir() + "checkpoint_saver_test"; }

// Returns a state with `count` tensors of 4 MiB.
StateDict Large(const std::string& name, int count) {
  StateDict state;
  for (int i = 0; i < count; ++i)
    state.Add(name + std::to_string(i), Tensor::Full({1024, 1024}, i + 0.5));
  return state;
}

CheckpointJob Job(const std::string& name, const StateDict& model, const StateDict& optimizer) {
  CheckpointJob job{.name = name, .write_files = [](const std::string&) {}, .on_saved = {}};
  job.manifest.step = 1;
  job.model = model;
  job.optimizer = optimizer;
  return job;
}

// Saves, waits for the end and returns what went wrong.
std::string Save(CheckpointSaver& saver, CheckpointJob job, bool beside = true) {
  saver.Start(std::move(job), beside);
  for (;;) {
    if (const auto saved = saver.Poll()) return saved->error ? saved->error->message() : "";
    std::this_thread::yield();
  }
}

// Returns a line of /proc/self/status in bytes.
int64_t Status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":"))
      return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return -1;
}

// Returns by how much the call raises the most memory that this process has held.
template <typename Call>
int64_t PeakOf(Call call) {
  std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM = VmRSS
  const int64_t before = Status("VmRSS");
  call();
  return Status("VmHWM") - before;
}

void ExpectSameFiles(const std::string& a, const std::string& b) {
  for (const char* name : {"model.safetensors", "optimizer.h5"})
    EXPECT_TRUE(ReadFile(Folder() + "/" + a + "/" + name) ==
                ReadFile(Folder() + "/" + b + "/" + name))
        << name;
}

// Saves 96 MiB in a process of its own, after smaller ones have loaded the libraries. Returns by
// how many MiB that raises the most memory it has held. `limit`: how many bytes the process may
// take in all; 0: any number. Memory is then short from the beginning, because tensors come from
// addresses that are reserved as far as the process may.
std::string MebibytesToSave(const std::string& name, bool beside, int64_t limit = 0) {
  const auto results = RunRanks(1, [&](const ProcessEnvironment&) {
    if (limit > 0) {
      const auto most = static_cast<rlim_t>(Status("VmSize") + limit);
      const rlimit limits{most, most};
      EXPECT_EQ(setrlimit(RLIMIT_AS, &limits), 0);
    }
    const StateDict model = Large("weight", 8), optimizer = Large("moment", 16);
    CheckpointSaver saver(Folder(), nullptr);
    EXPECT_EQ(Save(saver, Job("small", Large("weight", 1), Large("moment", 1)), false), "");
    const int64_t peak =
        PeakOf([&] { EXPECT_EQ(Save(saver, Job(name, model, optimizer), beside), ""); });
    return std::to_string(peak / kMebibyte);
  });
  ExpectAllWell(results);
  return results[0].said;
}

TEST(CheckpointSaverTest, TakesOneMoreCopyOrNoneWhereMemoryIsShort) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer takes memory of its own for each byte";
#endif
  fs::remove_all(Folder());
  fs::create_directories(Folder());
  const int64_t copied = std::stoll(MebibytesToSave("copied", true));
  EXPECT_GE(copied, 96 - 8 - 2);  // the small states have left 8 MiB
  EXPECT_LE(copied, 96 + 8);
  EXPECT_LE(std::stoll(MebibytesToSave("direct", false)), 8);
  // Tensors take 2 * 64 MiB, of which 32 are free. A copy would need 64 more.
  EXPECT_LE(std::stoll(MebibytesToSave("short", true, 176 * kMebibyte)), 32 + 8);
  ExpectSameFiles("copied", "direct");
  ExpectSameFiles("copied", "short");
}

// A callback may throw what is no error of Lathe's.
TEST(CheckpointSaverTest, AnythingThatIsThrownCostsOneCheckpoint) {
  fs::remove_all(Folder());
  fs::create_directories(Folder());
  CheckpointSaver saver(Folder(), nullptr);
  CheckpointJob job = Job("first", Large("weight", 1), Large("moment", 1));
  job.write_files = [](const std::string&) { throw std::runtime_error("no card"); };
  EXPECT_EQ(Save(saver, job), "no card");
  EXPECT_TRUE(fs::is_empty(Folder()));
  EXPECT_EQ(Save(saver, Job("second", Large("weight", 1), Large("moment", 1))), "");
}

// Two ranks of one machine write 32 MiB each, and rank 0 the model, too. Either copy would fit
// alone.
TEST(CheckpointSaverTest, TheRanksOfAMachineShareItsMemory) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer takes memory of its own for each byte";
#endif
  fs::remove_all(Folder());
  fs::create_directories(Folder());
  const auto results = RunRanks(2, [](const ProcessEnvironment& env) {
    AcceleratorOptions options;
    options.environment = env;
    options.device = "cpu";
    Accelerator accelerator(options);
    const StateDict model = Large("weight", 1);
    const StateDict optimizer = Large("moment" + std::to_string(env.rank) + "_", 8);
    const auto peak = [&](const std::string& name, int64_t available) {
      CheckpointSaver saver(Folder(), &accelerator.group(),
                            {.num_processes = 2, .available = [=] { return available; }});
      CheckpointJob job = Job(name, model, optimizer);
      job.every_rank_writes = true;
      const int64_t bytes = PeakOf([&] { EXPECT_EQ(Save(saver, std::move(job)), ""); });
      accelerator.WaitForEveryone();
      return bytes / kMebibyte;
    };
    peak("libraries", 0);
    EXPECT_LE(peak("short", (64 + 48) * kMebibyte), 8);
    EXPECT_GE(peak("enough", (64 + 80) * kMebibyte), 32 - 2);
    return std::string();
  });
  ExpectAllWell(results);
  for (const char* name :
       {"model.safetensors", "optimizer-00001-of-00002.h5", "optimizer-00002-of-00002.h5"})
    EXPECT_TRUE(ReadFile(Folder() + "/short/" + name) == ReadFile(Folder() + "/enough/" + name))
        << name;
}

class AvailableMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "available_memory_test";
    fs::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:  9 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n");
  }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root_ + name).parent_path());
    std::ofstream(root_ + name) << text;
  }

  std::string root_;
};

TEST_F(AvailableMemoryTest, SystemAlone) {
  EXPECT_EQ(AvailableMemory(root_), 5000 * 1024);
  EXPECT_EQ(AvailableMemory(root_ + "/nowhere"), INT64_MAX);
  EXPECT_GT(AvailableMemory(), 0);
  EXPECT_LT(AvailableMemory(), INT64_MAX);
}

TEST_F(AvailableMemoryTest, GroupsOfVersion2) {
  Write("/proc/self/cgroup", "0::/user/job\n");
  Write("/sys/fs/cgroup/user/job/memory.max", "max\n");
  Write("/sys/fs/cgroup/user/job/memory.current", "700\n");
  EXPECT_EQ(AvailableMemory(root_), 5000 * 1024);
  Write("/sys/fs/cgroup/user/memory.max", "1000\n");
  Write("/sys/fs/cgroup/user/memory.current", "800\n");
  EXPECT_EQ(AvailableMemory(root_), 200);
  Write("/sys/fs/cgroup/user/memory.stat", "anon 1\nfile 3\ninactive_file 50\nactive_file 7\n");
  EXPECT_EQ(AvailableMemory(root_), 250);
  Write("/sys/fs/cgroup/user/job/memory.max", "600\n");  // more is taken than may be
  EXPECT_EQ(AvailableMemory(root_), 0);
}

// A container names its group as the host does, but has no folder of that name.
TEST_F(AvailableMemoryTest, GroupsOfVersion1) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/1f\n1:cpuset:/docker/1f\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "800\n");
  EXPECT_EQ(AvailableMemory(root_), 5000 * 1024);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 3\ntotal_inactive_file 60\n");
  EXPECT_EQ(AvailableMemory(root_), 260);
}

}  // namespace
}  // namespace lathe
