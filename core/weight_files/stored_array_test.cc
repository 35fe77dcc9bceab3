#include "lathe/core/weight_files/stored_array.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "lathe/core/base/file.h"
#include "lathe/core/weight_files/mapped_file.h"

namespace lathe {
namespace {

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> Read(const StoredArray& array, const Shape& shape) {
  Tensor out = Tensor::Empty(shape);
  ReadStoredArray("x", array, out);
  return out.ToVector<float>();
}

TEST(StoredArrayTest, FollowsStrides) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::string bytes = "?" + Bytes(values);  // not aligned
  StoredArray array = {.dtype = "F32", .shape = {2, 3, 4}, .file = "f", .data = bytes.data() + 1};
  EXPECT_EQ(Read(array, {2, 3, 4}), values);
  array.strides = {12, 4, 1};
  EXPECT_EQ(Read(array, {2, 3, 4}), values);
  // The same elements with their dimensions in reverse.
  array.shape = {4, 3, 2};
  array.strides = {1, 4, 12};
  const std::vector<float> reversed = Read(array, {4, 3, 2});
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k) {
        EXPECT_EQ(reversed[(i * 3 + j) * 2 + k], values[k * 12 + j * 4 + i]);
      }
    }
  }
  array.shape = {2, 1, 3};
  array.strides = {5, 1000, 2};
  EXPECT_EQ(Read(array, {2, 1, 3}), (std::vector<float>{0, 2, 4, 5, 7, 9}));
}

TEST(StoredArrayTest, SensibleShapes) {
  constexpr int64_t kLarge = int64_t{1} << 30;
  EXPECT_TRUE(IsSensible({}));
  EXPECT_TRUE(IsSensible({0, 3}));
  EXPECT_TRUE(IsSensible({kLarge, 1 << 18}));
  EXPECT_FALSE(IsSensible({kLarge, 1 << 19}));
  EXPECT_FALSE(IsSensible({0, kLarge, kLarge}));
  EXPECT_FALSE(IsSensible({kLarge, kLarge, 0}));
  EXPECT_FALSE(IsSensible({2, -1}));
  EXPECT_FALSE(IsSensible({INT64_MAX}));
}

TEST(StoredArrayTest, ForgottenPagesCanBeReadAgain) {
  std::vector<float> values(3'000'000);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::string file =
      (std::filesystem::path(testing::TempDir()) / "stored_array_test").string();
  WriteFileAtomically(file, Bytes(values));
  const auto memory = std::make_shared<const MappedFile>(file);
  const StoredArray array = {
      .dtype = "F32", .shape = {3'000'000}, .file = file, .data = memory->data(), .memory = memory};
  EXPECT_TRUE(Read(array, {3'000'000}) == values);
  EXPECT_TRUE(Read(array, {3'000'000}) == values);
  std::filesystem::remove(file);
}

TEST(StoredArrayTest, RefusesOtherShapesAndDTypes) {
  const std::string bytes(64, '\0');
  const StoredArray array = {.dtype = "F8_E4M3", .shape = {4}, .file = "f", .data = bytes.data()};
  const auto message = [&](const Shape& shape) -> std::string {
    try {
      Read(array, shape);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_EQ(message({2}), "f: tensor \"x\" has shape [4] but [2] is wanted");
  EXPECT_EQ(message({4}), "f: tensor \"x\" has dtype F8_E4M3, which can't be read as float32");
}

TEST(StoredArrayTest, KnowsTheSizesOfElements) {
  EXPECT_EQ(SizeOfElement("BOOL"), 1);
  EXPECT_EQ(SizeOfElement("BF16"), 2);
  EXPECT_EQ(SizeOfElement("U32"), 4);
  EXPECT_EQ(SizeOfElement("F64"), 8);
  EXPECT_EQ(SizeOfElement("C64"), 0);
}

TEST(MappedFileTest, RefusesPipes) {
  const std::string path = testing::TempDir() + "/pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  try {
    const MappedFile file(path);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), path + ": is not a regular file");
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace lathe
