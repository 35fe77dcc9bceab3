#include "lathe/data/column_files/column_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lathe/core/base/file.h"
#include "lathe/core/checkpoint/hdf5_session.h"
#include "lathe/core/checkpoint/sha256.h"
#include "lathe/core/json/json_text.h"
#include "lathe/data/column_files/column_file_writer.h"
#include "lathe/data/column_files/running_hash.h"

namespace lathe {
namespace {

class ColumnFileTest : public testing::Test {
 protected:
  // Writes a column of 300,000 numbers of 16 bits and one of 5 floats, in uneven pieces.
  void WriteTwoColumns() {
    ColumnFileWriter writer(path_, path_);
    writer.Add("numbers", ElementType::kU16);
    writer.Add("scores", ElementType::kF32);
    int64_t size = 1;
    for (int64_t at = 0; at < std::ssize(numbers_); at += size, size = size * 7 % 50021 + 1) {
      size = std::min(size, std::ssize(numbers_) - at);
      writer.Append("numbers", numbers_.data() + at, size);
    }
    writer.Append("scores", scores_);
    writer.Finish({{"rows", 5}});
  }
  std::string ErrorOfOpening() const {
    try {
      ColumnFile file(path_);
      file.ReadWhole<uint16_t>("numbers");
      return "";
    } catch (const Error& e) {
      return e.message();
    }
  }

  const std::string path_ = testing::TempDir() + "/columns_" + std::to_string(getpid()) + ".h5";
  std::vector<uint16_t> numbers_ = [] {
    std::vector<uint16_t> numbers(300000);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i * 40503u);
    return numbers;
  }();
  std::vector<float> scores_ = {0.5f, -1, 3e30f, 0, 7};
};

TEST_F(ColumnFileTest, ReadsWhatWasWritten) {
  WriteTwoColumns();
  const ColumnFile file(path_);
  EXPECT_EQ(file.about().at("rows"), 5);
  EXPECT_EQ(file.ReadWhole<uint16_t>("numbers"), numbers_);
  EXPECT_EQ(file.ReadWhole<float>("scores"), scores_);
  EXPECT_EQ(file.Find("none"), nullptr);
  EXPECT_THROW(file.ReadWhole<uint32_t>("numbers"), Error);
  const Column* column = file.Find("numbers");
  for (const int64_t begin : {0, 1, 131071, 131072, 262100, 299990}) {  // a chunk has 131072
    std::vector<uint16_t> part(10);
    file.Read(*column, 2 * begin, 20, part.data());
    EXPECT_EQ(part, std::vector<uint16_t>(numbers_.begin() + begin, numbers_.begin() + begin + 10));
  }
  char byte;
  EXPECT_THROW(file.Read(*column, column->bytes(), 1, &byte), Error);
  // Another process can open it even when it has been removed.
  unlink(path_.c_str());
  EXPECT_EQ(ColumnFile(file.PathForOthers()).ReadWhole<float>("scores"), scores_);
}

TEST_F(ColumnFileTest, IsAnHdf5File) {
  WriteTwoColumns();
  const Hdf5Session session(path_, /*writes=*/false);
  const Hdf5Handle file = session.Own(Hdf5().Fopen(path_.c_str(), 0, H5P_DEFAULT), Hdf5().Fclose);
  const Hdf5Handle dataset =
      session.Own(Hdf5().Dopen2(file.get(), "numbers", H5P_DEFAULT), Hdf5().Dclose);
  const Hdf5Handle space = session.Own(Hdf5().Dget_space(dataset.get()), Hdf5().Sclose);
  ASSERT_EQ(Hdf5().Sget_simple_extent_npoints(space.get()), std::ssize(numbers_));
  std::vector<uint16_t> read(numbers_.size());
  session.Checked(Hdf5().Dread(dataset.get(), Hdf5().native_uint16, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                               read.data()));
  EXPECT_EQ(read, numbers_);
}

TEST_F(ColumnFileTest, SameColumnsGiveTheSameBytes) {
  WriteTwoColumns();
  const std::string bytes = ReadFile(path_);
  WriteTwoColumns();
  EXPECT_EQ(ReadFile(path_), bytes);
}

TEST_F(ColumnFileTest, AnEmptyColumn) {
  ColumnFileWriter writer(path_, path_);
  writer.Add("numbers", ElementType::kI64);
  writer.Finish(nullptr);
  EXPECT_TRUE(ColumnFile(path_).ReadWhole<int64_t>("numbers").empty());
}

TEST_F(ColumnFileTest, RefusesWhatIsNotWhole) {
  unlink(path_.c_str());
  EXPECT_EQ(ErrorOfOpening(), path_ + ": No such file or directory");
  WriteTwoColumns();
  const std::string bytes = ReadFile(path_);
  EXPECT_EQ(ErrorOfOpening(), "");
  for (const size_t size : {size_t{0}, size_t{79}, size_t{80}, bytes.size() / 2, bytes.size() - 81,
                            bytes.size() - 80, bytes.size() - 1}) {
    WriteFileAtomically(path_, std::string_view(bytes).substr(0, size));
    EXPECT_TRUE(ErrorOfOpening().starts_with(path_ + ": is damaged: ")) << size;
  }
  WriteFileAtomically(path_, bytes.substr(1));
  EXPECT_TRUE(ErrorOfOpening().starts_with(path_ + ": is damaged: "));
  WriteFileAtomically(path_, bytes + "x");
  EXPECT_TRUE(ErrorOfOpening().starts_with(path_ + ": is damaged: "));
  // Any changed byte of the directory and the footer is found, and any of a column.
  ColumnFileFooter footer;
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  for (size_t at = bytes.size() - sizeof footer - footer.directory_size; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    WriteFileAtomically(path_, changed);
    EXPECT_NE(ErrorOfOpening(), "") << at;
  }
  WriteFileAtomically(path_, bytes);
  const int64_t address = ColumnFile(path_).Find("numbers")->addresses.at(1);
  std::string changed = bytes;
  changed[static_cast<size_t>(address) + 77] ^= 1;
  WriteFileAtomically(path_, changed);
  EXPECT_EQ(ErrorOfOpening(),
            path_ + ": is damaged: a part of column \"numbers\" has another digest");
}

TEST_F(ColumnFileTest, APipeInItsPlaceIsRefusedAtOnce) {
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOfOpening(), path_ + ": is damaged: it is too short");
  unlink(path_.c_str());
}

// The digest fits, so somebody has made the file to do harm.
TEST_F(ColumnFileTest, NumbersOfTheDirectoryMustBeWhole) {
  WriteTwoColumns();
  const std::string bytes = ReadFile(path_);
  ColumnFileFooter footer;
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  const size_t begin = bytes.size() - sizeof footer - footer.directory_size;
  const auto sound = ParseJson(bytes.substr(begin, footer.directory_size));
  for (const char* key : {"addresses", "digests", "size", "type"}) {
    nlohmann::json changed = sound;
    nlohmann::json& value = changed["columns"][0][key];
    (value.is_array() ? value[0] : value) = 1.7e34;
    const std::string directory = DumpJson(changed), digest = Sha256(directory);
    footer.directory_size = directory.size();
    std::memcpy(footer.directory_sha256, digest.data(), sizeof footer.directory_sha256);
    WriteFileAtomically(path_,
                        bytes.substr(0, begin) + directory +
                            std::string(reinterpret_cast<const char*>(&footer), sizeof footer));
    EXPECT_TRUE(ErrorOfOpening().starts_with(path_ + ": is damaged: its directory: ")) << key;
  }
}

TEST_F(ColumnFileTest, ReportsAFullDisk) {
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  getrlimit(RLIMIT_FSIZE, &old_limit);
  for (const rlim_t most : {100, 100000, 300000, 1000000}) {
    const rlimit limit = {most, old_limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string message;
    try {
      WriteTwoColumns();
    } catch (const Error& e) {
      message = e.message();
    }
    setrlimit(RLIMIT_FSIZE, &old_limit);
    EXPECT_TRUE(message.starts_with(path_ + ": ")) << most << " " << message;
  }
  signal(SIGXFSZ, old_handler);
}

TEST(RunningHashTest, EqualsHashName) {
  const std::string text = "columns of numbers";
  RunningHash hash;
  hash.Add(text.data(), 5);
  hash.Add(text.data() + 5, text.size() - 5);
  EXPECT_EQ(hash.value(), HashName(text));
  EXPECT_EQ(RunningHash().value(), HashName(""));
}

}  // namespace
}  // namespace lathe
