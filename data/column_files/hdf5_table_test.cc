#include "lathe/data/column_files/hdf5_table.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "lathe/core/base/file.h"
#include "lathe/data/column_files/hdf5_chunk.h"

namespace lathe {
namespace {

// tests/golden/make_hdf5_tables.py writes the files. Element [i, j, k] is 100 i + 10 j + k.
const std::string kFolder = "tests/golden/hdf5_tables/";

template <typename T>
std::vector<T> Row(const Hdf5Table& table, int64_t row, size_t column = 0) {
  EXPECT_EQ(table.column(column).dtype, DTypeOf<T>::value);
  std::vector<T> values(static_cast<size_t>(NumElements(table.column(column).row_shape)));
  table.ReadRow(column, row, values.data());
  return values;
}

// Checks all rows of a dataset whose elements are numbered.
template <typename T>
void ExpectNumbers(const Hdf5Table& table, size_t column = 0) {
  const Shape& shape = table.column(column).row_shape;
  for (int64_t i = 0; i < table.rows(); ++i) {
    std::vector<T> expected;
    const int64_t width = shape.size() > 0 ? shape[0] : 1, depth = shape.size() > 1 ? shape[1] : 1;
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t k = 0; k < depth; ++k) expected.push_back(static_cast<T>(100 * i + 10 * j + k));
    }
    ASSERT_EQ(Row<T>(table, i, column), expected) << table.column(column).name << " " << i;
  }
}

Error ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  return InvalidArgument("nothing was thrown");
}

Error Refusal(const std::string& file, const std::vector<std::string>& names) {
  return ErrorOf([&] { Hdf5Table table(kFolder + file, names); });
}

TEST(Hdf5TableTest, ReadsPlainColumns) {
  const Hdf5Table table(kFolder + "plain.h5", {"inputs", "targets", "/group/doubles", "compact"});
  EXPECT_EQ(table.rows(), 10);
  EXPECT_EQ(table.column(0).row_shape, Shape{3});
  EXPECT_EQ(table.column(1).row_shape, Shape{});
  EXPECT_EQ(table.column(2).row_shape, (Shape{2, 2}));
  ExpectNumbers<float>(table);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(Row<int64_t>(table, i, 1)[0], i % 3);
  EXPECT_EQ(Row<float>(table, 9, 2), (std::vector<float>{900.25f, 901.25f, 910.25f, 911.25f}));
  ExpectNumbers<float>(table, 3);
}

TEST(Hdf5TableTest, ReadsNumbersOfAllTypes) {
  for (const char* name : {"i1", "i2", "u2", "i4", "u4", "u8"})
    EXPECT_EQ(Row<int64_t>(Hdf5Table(kFolder + "plain.h5", {name}), 7)[0], 7) << name;
  EXPECT_EQ(Row<uint8_t>(Hdf5Table(kFolder + "plain.h5", {"u1"}), 7)[0], 7);
  EXPECT_EQ(Row<float>(Hdf5Table(kFolder + "plain.h5", {"f2"}), 7)[0], 7);
  const Hdf5Table large(kFolder + "plain.h5", {"large"});
  EXPECT_EQ(ErrorOf([&] { Row<int64_t>(large, 0); }).message(),
            kFolder +
                "plain.h5: dataset \"large\": the number 18446744073709551615 is too large "
                "for int64");
}

TEST(Hdf5TableTest, ReadsChunksWithAndWithoutFilters) {
  for (const int64_t cache : {0, 200, 1 << 20}) {
    for (const char* name : {"rows", "blocks", "gzip", "all", "checksum"})
      ExpectNumbers<float>(Hdf5Table(kFolder + "chunks.h5", {name}, cache));
    ExpectNumbers<int64_t>(Hdf5Table(kFolder + "chunks.h5", {"labels"}, cache));
    const Hdf5Table odd(kFolder + "chunks.h5", {"odd"}, cache);
    for (int64_t i = 0; i < 25; ++i)
      EXPECT_EQ(Row<uint8_t>(odd, i)[0], static_cast<uint8_t>(100 * i));
  }
}

TEST(Hdf5TableTest, ReadsBehindUserBlocksAndThroughLinks) {
  const Hdf5Table table(kFolder + "user_block.h5",
                        {"inputs", "alias/plain", "store/gzip", "alias/gzip"});
  for (size_t column = 0; column < 4; ++column) ExpectNumbers<float>(table, column);
  EXPECT_TRUE(Refusal("user_block.h5", {"nowhere"})
                  .message()
                  .starts_with(kFolder + "user_block.h5: has no dataset \"nowhere\"; it has "));
  for (const char* name : {"outside", "outside/x"}) {
    const Error error = Refusal("user_block.h5", {name});
    EXPECT_EQ(
        error.message(),
        kFolder + "user_block.h5: \"outside\" leads to another file, which Lathe does not read");
    EXPECT_TRUE(error.hint().starts_with("write the file again")) << error.hint();
  }
}

TEST(Hdf5TableTest, SeveralThreadsMayRead) {
  const Hdf5Table table(kFolder + "chunks.h5", {"gzip"}, 1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { ExpectNumbers<float>(table); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Hdf5TableTest, RefusesWhatIsNotThere) {
  const std::string none = kFolder + "plain.h5: has no dataset ";
  const std::string all = "; it has big_endian, compact, empty, f2, group/doubles, ";
  for (const char* name : {"labels", "group/x", "inputs/x", "targets "}) {
    const std::string said = Refusal("plain.h5", {"inputs", name}).message();
    EXPECT_TRUE(said.starts_with(none + '"' + name + '"' + all)) << said;
  }
  EXPECT_EQ(Refusal("plain.h5", {""}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal("plain.h5", {"group"}).message(),
            kFolder + "plain.h5: \"group\" is a group and no dataset");
  EXPECT_EQ(Refusal("plain.h5", {"words"}).message(),
            kFolder + "plain.h5: dataset \"words\" does not hold numbers");
  EXPECT_EQ(Refusal("plain.h5", {"scalar"}).message(),
            kFolder + "plain.h5: \"scalar\" is a single number and has no rows");
  EXPECT_EQ(Refusal("plain.h5", {"inputs", "short"}).message(),
            kFolder + "plain.h5: dataset \"short\" has 9 rows but \"inputs\" has 10");
  EXPECT_EQ(Refusal("plain.h5", {"big_endian"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Refusal("chunks.h5", {"lzf"}).message(),
      kFolder + "chunks.h5: \"lzf\" is packed by filter 32000 (LZF), which Lathe does not read");
  EXPECT_EQ(Refusal("chunks.h5", {"unwritten"}).message(),
            kFolder + "chunks.h5: \"unwritten\" has rows that were never written");
  EXPECT_EQ(Refusal("nowhere.h5", {"inputs"}).code(), absl::StatusCode::kNotFound);
  EXPECT_THROW(Hdf5Table(kFolder + "plain.h5", {}), Error);
  const Hdf5Table empty(kFolder + "plain.h5", {"empty"});
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_THROW(Row<float>(empty, 0), Error);
}

// Every file that is cut short is refused when it is opened, or when a row is read.
TEST(Hdf5TableTest, RefusesFilesThatAreCutShort) {
  const std::string path = testing::TempDir() + "cut.h5";
  for (const char* file : {"plain.h5", "chunks.h5"}) {
    const std::string whole = ReadFile(kFolder + file);
    const std::vector<std::string> names = {std::string(file) == "plain.h5" ? "inputs" : "all"};
    for (size_t size = 0; size < whole.size(); size += whole.size() / 23) {
      WriteFileAtomically(path, whole.substr(0, size));
      const Error e = ErrorOf([&] { Hdf5Table table(path, names); });
      EXPECT_TRUE(e.message().starts_with(path + ": ")) << e.message();
      EXPECT_EQ(e.code(), absl::StatusCode::kDataLoss) << e.message();
    }
  }
  WriteFileAtomically(path, "no HDF5");
  EXPECT_EQ(ErrorOf([&] { Hdf5Table table(path, {"x"}); }).message(), path + ": is no HDF5 file");
}

TEST(Hdf5TableTest, NoticesAFileThatIsCutShortLater) {
  const std::string path = testing::TempDir() + "later.h5";
  std::filesystem::copy_file(kFolder + "plain.h5", path,
                             std::filesystem::copy_options::overwrite_existing);
  const Hdf5Table table(path, {"inputs"});
  EXPECT_EQ(Row<float>(table, 9)[0], 900);
  std::filesystem::resize_file(path, 1000);
  const Error e = ErrorOf([&] { Row<float>(table, 9); });
  EXPECT_EQ(e.message(), path + ": is cut short");
  EXPECT_EQ(e.code(), absl::StatusCode::kDataLoss);
}

TEST(Hdf5TableTest, NoticesAChunkThatIsDamaged) {
  const std::string path = testing::TempDir() + "damaged.h5";
  const std::string whole = ReadFile(kFolder + "chunks.h5");
  const char* const set = std::getenv("LATHE_H5_RUNS");
  const int runs = set == nullptr ? 300 : std::atoi(set);
  std::mt19937 random(7);
  int refused = 0;
  // Any byte of the file may change. It is read or refused, and this process never crashes.
  for (int run = 0; run < runs; ++run) {
    std::string bytes = whole;
    for (int changes = 1 + run % 3; changes > 0; --changes)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
    WriteFileAtomically(path, bytes);
    try {
      const Hdf5Table table(path, {"all"});
      std::vector<double> row(
          static_cast<size_t>(NumElements(table.column(0).row_shape)));  // room for any dtype
      for (int64_t i = 0; i < std::min<int64_t>(table.rows(), 1000); ++i)
        table.ReadRow(0, i, row.data());
    } catch (const Error& e) {
      ++refused;
      EXPECT_TRUE(e.message().starts_with(path + ": ")) << e.message();
    }
  }
  EXPECT_GT(refused, 3);
}

TEST(Hdf5TableTest, TheFingerprintTellsFilesApart) {
  const std::string inputs = Hdf5Table(kFolder + "plain.h5", {"inputs"}).Fingerprint();
  EXPECT_EQ(Hdf5Table(kFolder + "plain.h5", {"inputs"}).Fingerprint(), inputs);
  EXPECT_NE(Hdf5Table(kFolder + "plain.h5", {"targets"}).Fingerprint(), inputs);
}

TEST(Hdf5ChunkTest, RefusesWhatDoesNotFit) {
  using F = Hdf5Filter;
  EXPECT_EQ(DecodeHdf5Chunk("abcd", {}, 4, 1), "abcd");
  EXPECT_EQ(DecodeHdf5Chunk("acebdf", {F::kShuffle}, 6, 2), "abcdef");
  EXPECT_EQ(DecodeHdf5Chunk("acbde", {F::kShuffle}, 5, 2), "abcde" /* one byte is left */);
  EXPECT_THROW(DecodeHdf5Chunk("abcd", {}, 5, 1), Error);
  EXPECT_THROW(DecodeHdf5Chunk("abcd", {F::kFletcher32}, 0, 1), Error);
  EXPECT_THROW(DecodeHdf5Chunk("ab", {F::kFletcher32}, 0, 1), Error);
  EXPECT_THROW(DecodeHdf5Chunk("abcd", {F::kDeflate}, 4, 1), Error);
  // A size that no compressed data of this length has takes no memory.
  EXPECT_EQ(ErrorOf([] { DecodeHdf5Chunk("abcd", {F::kDeflate}, uint64_t{1} << 62, 1); }).message(),
            "the compressed data of a chunk are too few");
  EXPECT_THROW(DecodeHdf5Chunk("abcd", {static_cast<F>(7)}, 4, 1), Error);
}

}  // namespace
}  // namespace lathe
