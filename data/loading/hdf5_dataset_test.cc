#include "lathe/data/loading/hdf5_dataset.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "lathe/core/base/file.h"
#include "lathe/data/loading/data_loader.h"

namespace lathe {
namespace {

const std::string kFolder = "tests/golden/hdf5_tables/";

TEST(Hdf5DatasetTest, LoadsBatches) {
  Hdf5Dataset data(kFolder + "plain.h5", {"inputs", "targets"});
  static_assert(std::is_same_v<decltype(data), Hdf5Dataset<2>>);
  for (const int workers : {0, 1, 3}) {
    DataLoader loader(data, {.batch_size = 4, .shuffle = true, .num_workers = workers});
    int64_t rows = 0;
    for (auto& [inputs, targets] : loader) {
      ASSERT_EQ(inputs.shape(), (Shape{targets.dim(0), 3}));
      for (int64_t i = 0; i < targets.dim(0); ++i) {
        const auto row = static_cast<int64_t>(inputs.data<float>()[3 * i]) / 100;
        EXPECT_EQ(targets.data<int64_t>()[i], row % 3);
        ++rows;
      }
    }
    EXPECT_EQ(rows, 10);
  }
}

TEST(Hdf5DatasetTest, OneColumnAndManyChunks) {
  const Hdf5Dataset data(kFolder + "chunks.h5", {"gzip"}, /*cache_bytes=*/500);
  EXPECT_EQ(data.Size(), 25);
  auto [train, eval] = RandomSplit(data, {0.8, 0.2});
  DataLoader loader(train, {.batch_size = 7, .num_workers = 2});
  int64_t rows = 0;
  for (const auto& batch : loader) {
    ASSERT_EQ(batch[0].ndim(), 3);
    rows += batch.size();
  }
  EXPECT_EQ(rows, 20);
}

// An error in the middle of an epoch names the sample and the file.
TEST(Hdf5DatasetTest, AFileThatIsCutShortMeanwhile) {
  const std::string path = testing::TempDir() + "cut_in_training.h5";
  std::filesystem::copy_file(kFolder + "plain.h5", path,
                             std::filesystem::copy_options::overwrite_existing);
  DataLoader loader(Hdf5Dataset(path, {"inputs", "targets"}), {.batch_size = 2, .prefetch = 0});
  auto it = loader.begin();
  std::filesystem::resize_file(path, 500);
  try {
    ++it;
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "[data_loader] sample 2: " + path + ": is cut short");
  }
}

}  // namespace
}  // namespace lathe
