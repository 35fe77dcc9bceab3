#include "lathe/train/checkpoint/shared_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "lathe/distributed/testing/testing.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// Runs three ranks. Rank 2 stands for one on another machine: it works in another folder.
std::string WithoutFolder(const std::string& folder) {
  const std::string root = testing::TempDir() + "shared_folder_test";
  fs::remove_all(root);
  for (const char* name : {"/here/out", "/there/out"}) fs::create_directories(root + name);
  const auto results = RunRanks(3, [&](const ProcessEnvironment& env) {
    EXPECT_EQ(chdir((root + (env.rank == 2 ? "/there" : "/here")).c_str()), 0);
    AcceleratorOptions options;
    options.environment = env;
    options.device = "cpu";
    Accelerator accelerator(options);
    std::string ranks;
    for (const int rank : RanksWithoutFolder(accelerator, folder.empty() ? root : folder))
      ranks += std::to_string(rank) + " ";
    accelerator.WaitForEveryone();
    EXPECT_TRUE(fs::is_empty("out"));
    return ranks;
  });
  ExpectAllWell(results);
  for (const RankResult& result : results) EXPECT_EQ(result.said, results[0].said);
  return results[0].said;
}

TEST(SharedFolderTest, NamesTheRanksThatSeeAnother) {
  EXPECT_EQ(WithoutFolder("out"), "2 ");
  EXPECT_EQ(WithoutFolder(""), "");
  EXPECT_EQ(WithoutFolder("nowhere"), "");
}

}  // namespace
}  // namespace lathe
